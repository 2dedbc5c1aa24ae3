"""Opens GetCookies with code generated from the .proto, pauses until signaled, then reads and checks every cookie.

usage: pausing_client.py ADDRESS EXPECTED.txt GENERATED_DIR

EXPECTED.txt: a line of user id, DSP id and buyer uid, separated by tabs, for each cookie. Prints the line `ready` once the
stream is open. The cookies must be sent after that, followed by the line `read` on standard input.
"""

import sys

import grpc

address, expected_path, generated = sys.argv[1:]
sys.path.insert(0, generated)

from cookiesync.v1 import cookiesync_pb2 as pb  # noqa: E402
from cookiesync.v1 import cookiesync_pb2_grpc as rpc  # noqa: E402


def main():
    with grpc.insecure_channel(address) as channel:
        stub = rpc.CookieStreamerStub(channel)
        stream = stub.GetCookies(pb.GetCookiesRequest(host="pausing"))
        stream.initial_metadata()
        print("ready", flush=True)
        assert sys.stdin.readline().strip() == "read"
        with open(expected_path, encoding="utf-8") as expected:
            for number, line in enumerate(expected):
                cookie = next(stream)
                received = f"{cookie.user_id}\t{cookie.dsp_id}\t{cookie.buyer_uid}\n"
                assert received == line, (number, received, line)
        stream.cancel()


main()
