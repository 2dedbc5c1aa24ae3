#!/bin/sh
# Sends valid and refused matches to a producer with contracts, and prints the responses. Start the producer first:
#   target/debug/producer --contracts examples/contracts.toml --opt-out &
# EDGE is another address of the sync port.
set -eu
sync() {
    printf '%-12s ' "$1"
    curl --silent --output /dev/null --write-out '%{http_code} %{redirect_url}\n' --cookie "$2" \
        "http://${EDGE:-127.0.0.1:8080}/?$3"
}
sync valid uid=alice 'd=17&b=buyer-0017'
sync macro uid=bob 'd=17&b=%24%7BUSER_ID%7D'
sync pattern uid=bob 'd=17&b=short'
sync 'opted out' 'uid=carol; cookiesync_optout=1' 'd=17&b=buyer-0017'
sync observed uid=dave 'd=42&b=OUR_USER_ID'
sync blocked uid=erin 'd=117&b=buyer-0017'
