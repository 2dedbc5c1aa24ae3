#!/bin/sh
# Queries the limiter before a command that calls a partner:
#   LIMITER=http://127.0.0.1:9099 before-each-call.sh LIMIT COUNTER COMMAND…
# LIMITER_TOKEN is the token, if the limiter requires one. Needs curl 7.76 or later.
set -eu
limit=$1 counter=$2
shift 2
url=${LIMITER:-http://127.0.0.1:9099}/v1/limits/$limit/$counter/reserve
# The response is delayed until the slot. A slot more than 25 s ahead is not reserved, and the script fails.
curl --silent --show-error --fail-with-body --max-time 60 --header 'Content-Type: application/json' \
    ${LIMITER_TOKEN:+--header "Authorization: Bearer $LIMITER_TOKEN"} \
    --data '{"wait": true, "max_wait": 25}' "$url" >&2
exec "$@"
