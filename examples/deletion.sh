#!/bin/sh
# Sends three syncs of a user, deletes the user, and waits until all nodes have confirmed the deletion. Start the programs first:
#   target/debug/producer --api 127.0.0.1:8081 &
#   target/debug/consumer &
# EDGE, API and NODE are other addresses of the sync port, the API and the consumer.
set -eu
edge=${EDGE:-127.0.0.1:8080} api=${API:-127.0.0.1:8081} node=${NODE:-127.0.0.1:9091}

for dsp in 17 42 99; do
    curl --silent --show-error --fail --cookie uid=alice "http://$edge/?d=$dsp&b=buyer-$dsp"
done
until curl --silent "http://$node/v1/users/alice" | grep buyer-17.*buyer-42.*buyer-99; do sleep 0.1; done

deletion=$(curl --silent --show-error --fail --request DELETE "http://$api/v1/users/alice")
echo "$deletion"
receipt=$(echo "$deletion" | sed 's/.*"receipt":"\([^"]*\)".*/\1/')
until curl --silent "http://$api/v1/receipts/$receipt" | grep '"done":true'; do sleep 0.1; done
curl --silent --output /dev/null --write-out 'lookup: %{http_code}\n' "http://$node/v1/users/alice"
