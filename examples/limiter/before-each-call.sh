#!/bin/sh
# Reserves a slot of a limiter, waits for it, and then runs a command that calls a partner:
#   LIMITER=http://127.0.0.1:9099 before-each-call.sh LIMIT COUNTER COMMAND…
# LIMITER_TOKEN is the token, if the limiter requires one. Needs curl 7.76 or later.
set -eu
limit=$1 counter=$2
shift 2
url=${LIMITER:-http://127.0.0.1:9099}/v1/limits/$limit/$counter/reserve
# The limiter delays its response until the slot begins. If the slot is more than 25 s away, it reserves nothing, and this script
# fails.
response=$(curl --silent --show-error --fail-with-body --max-time 60 --header 'Content-Type: application/json' \
    ${LIMITER_TOKEN:+--header "Authorization: Bearer $LIMITER_TOKEN"} \
    --data '{"wait": true, "max_wait": 25}' "$url") || {
    code=$?
    echo "$response" >&2
    exit $code
}
echo "$limit/$counter: slot reserved, the call may proceed" >&2
exec "$@"
