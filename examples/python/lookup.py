"""Looks up the buyer uids of users through a consumer's lookup port over gRPC, as a bidder does (docs/lookup.md).

    pip install grpcio grpcio-tools
    echo alice,bob 17,42 | python lookup.py 127.0.0.1:9095

Arguments: ADDRESS [TOKEN_FILE [CA_FILE]]. A CA file enables TLS. Each line of the input is one lookup: users and DSP ids. The output has
a line for each user: the user, and DSP=BUYER_UID for each match.
"""

import pathlib
import sys

import grpc

# Directory of cookiesync/v1/cookiesync.proto, from which grpcio-tools generates code at startup. To generate it once:
# python -m grpc_tools.protoc -Iproto --python_out=. --grpc_python_out=. cookiesync/v1/cookiesync.proto
PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto"
sys.path.append(str(PROTO))
pb, rpc = grpc.protos_and_services("cookiesync/v1/cookiesync.proto")

# What the auction can wait. The call ends then, with or without a response.
DEADLINE_SECONDS = 0.02
# After a restart of the consumer, the channel reconnects within a second.
OPTIONS = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1_000)]


class Lookups:
    def __init__(self, address, token_file=None, ca_file=None):
        # Opened once, and used by all threads for all auctions.
        if ca_file:
            credentials = grpc.ssl_channel_credentials(pathlib.Path(ca_file).read_bytes())
            self.channel = grpc.secure_channel(address, credentials, OPTIONS)
        else:
            self.channel = grpc.insecure_channel(address, OPTIONS)
        self.get = rpc.LookupStub(self.channel).Get
        token = token_file and pathlib.Path(token_file).read_text(encoding="utf-8").split()[0]
        self.metadata = [("authorization", f"Bearer {token}")] if token else []

    def warm_up(self):
        """Connects before the first auction. No user has an empty id, so this lookup does not change the match rates."""
        self.buyer_uids([""], [1], timeout=5, wait_for_ready=True)

    def buyer_uids(self, users, dsps, timeout=DEADLINE_SECONDS, wait_for_ready=False):
        """One dict for each user, from DSPs to the value of `user.buyeruid`. An absent DSP gets its bid request without a buyer uid."""
        request = pb.LookupRequest(user_ids=users, dsp_ids=dsps)
        try:
            response = self.get(request, timeout, self.metadata, wait_for_ready=wait_for_ready)
        except grpc.RpcError as error:
            # Never wait or retry within an auction: bid without buyer uids, and count the error. UNAVAILABLE, RESOURCE_EXHAUSTED and
            # DEADLINE_EXCEEDED end by themselves. Others, such as UNAUTHENTICATED, must be repaired.
            print(f"no buyer uids: {error.code().name}: {error.details()}", file=sys.stderr)
            return [{} for _ in users]
        # Not read by the deadline: these users and DSPs may have matches. Bid without them, and cache nothing.
        not_read = sum(found.status == pb.UserMatches.STATUS_NOT_READ for found in response.users)
        if not_read or response.unavailable_dsps:
            print(f"not read: {not_read} users, DSPs {list(response.unavailable_dsps)}", file=sys.stderr)
        return [{match.dsp_id: match.buyer_uid for match in found.matches} for found in response.users]


def main():
    lookups = Lookups(*sys.argv[1:])
    lookups.warm_up()
    for line in sys.stdin:
        users, dsps = (part.split(",") for part in line.split())
        for user, found in zip(users, lookups.buyer_uids(users, map(int, dsps))):
            print(user, *(f"{dsp}={buyer_uid}" for dsp, buyer_uid in found.items()), flush=True)


main()
