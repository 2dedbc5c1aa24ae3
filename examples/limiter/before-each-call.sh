#!/bin/sh
# Asks the limiter before a command that calls a partner:
#   LIMITER=http://127.0.0.1:9099 before-each-call.sh LIMIT COUNTER COMMAND…
# LIMITER_TOKEN is the token, where the limiter wants one. Needs curl 7.76 or later.
set -eu
limit=$1 counter=$2
shift 2
url=${LIMITER:-http://127.0.0.1:9099}/v1/limits/$limit/$counter/reserve
# Holds for up to 30 s until the slot is there; a slot that is farther off is not taken, and this fails.
curl --silent --show-error --fail-with-body --max-time 60 --header 'Content-Type: application/json' \
    ${LIMITER_TOKEN:+--header "Authorization: Bearer $LIMITER_TOKEN"} \
    --data '{"wait": true, "max_wait": 25}' "$url" >&2
exec "$@"
