"""Opens GetCookies with code generated from the .proto, reads nothing until it is told to, then reads and checks all.

usage: pausing_client.py ADDRESS EXPECTED.txt GENERATED_DIR

EXPECTED.txt: a line `user id, tab, DSP id, tab, buyer uid` for each cookie. Prints one line `ready` once the stream is
open; the cookies must be sent after that, and the line `read` on standard input after them.
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
                got = f"{cookie.user_id}\t{cookie.dsp_id}\t{cookie.buyer_uid}\n"
                assert got == line, (number, got, line)
        stream.cancel()


main()
