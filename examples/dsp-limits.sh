#!/bin/sh
# Sends 900 cookies of a DSP with a limit of 300 per second, and shows how the queue drains. Start the producer first:
#   target/debug/producer --contracts examples/producer-limits.toml --api 127.0.0.1:8081 &
# API and ADMIN are other addresses of the producer's API and its admin port.
set -eu
seq 900 | sed 's/.*/{"u":"user-&","d":17,"b":"buyer-&"}/' |
    curl --silent --show-error --fail --header 'Content-Type: application/x-ndjson' --data-binary @- \
        "http://${API:-127.0.0.1:8081}/v1/cookies"
echo
while :; do
    metrics=$(curl --silent --show-error --fail "http://${ADMIN:-127.0.0.1:9090}/metrics" |
        sed -n 's/^producer_limits_\(accepted\|queued\)_cookies.*limit="dsp-17".* /\1 /p')
    echo $metrics
    case $metrics in *'queued 0'*) break ;; esac
    sleep 1
done
