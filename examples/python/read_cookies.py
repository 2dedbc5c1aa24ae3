"""Reads every cookie of all producers, as JSON lines.

    pip install grpcio grpcio-tools
    python read_cookies.py --name my-host producers.example:7676

It connects to every address of a DNS name. `--name` is the subscriber's name. A reader that reconnects with its name within a
minute loses nothing, unless the producer has restarted. It may receive its last cookies twice. Two readers must not use the same
name.
"""

import argparse
import json
import pathlib
import socket
import sys
import threading
import time

import grpc

# Directory of cookiesync/v1/cookiesync.proto, from which grpcio-tools generates code at startup. To generate it once:
# python -m grpc_tools.protoc -Iproto --python_out=. --grpc_python_out=. cookiesync/v1/cookiesync.proto
PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto"
sys.path.append(str(PROTO))
pb, rpc = grpc.protos_and_services("cookiesync/v1/cookiesync.proto")

OPTIONS = [
    # Fixed windows. With adaptive windows, some HTTP/2 implementations drop the connection of a reader that pauses.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    # Detects half-open connections.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # One connection for each stream.
    ("grpc.use_local_subchannel_pool", 1),
]
# Permanent errors: the name or the token is invalid, or another reader uses the name.
FINAL = {
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
}
DELAY_SECONDS = (0.1, 5)


def channel(address, host, settings):
    if not settings.ca:
        return grpc.insecure_channel(address, OPTIONS)
    files = [path and pathlib.Path(path).read_bytes() for path in (settings.ca, settings.key, settings.cert)]
    named = [("grpc.ssl_target_name_override", host)]
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(*files), OPTIONS + named)


def read(address, host, settings, handle):
    """Passes each cookie of one producer to `handle`, and reconnects until an error is permanent."""
    metadata = []
    if settings.token_file:
        metadata.append(("authorization", f"Bearer {pathlib.Path(settings.token_file).read_text(encoding='utf-8-sig').split()[0]}"))
    min_delay, max_delay = DELAY_SECONDS
    delay = min_delay
    while True:
        with channel(address, host, settings) as connection:
            try:
                for cookie in rpc.CookieStreamerStub(connection).GetCookies(
                    pb.GetCookiesRequest(host=settings.name, supports_age=True), metadata=metadata
                ):
                    handle(address, cookie)
                    delay = min_delay
            except grpc.RpcError as error:
                print(f"{address}: {error.code().name}: {error.details()}", file=sys.stderr)
                if error.code() in FINAL:
                    return
        # The producer restarts, or disconnected this reader because it was too slow.
        time.sleep(delay)
        delay = min(2 * delay, max_delay)


def addresses(producers):
    """(address, host name) of every producer."""
    for producer in producers:
        host, port = producer.rsplit(":", 1)
        for *_, found in socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM):
            yield (f"[{found[0]}]:{port}" if ":" in found[0] else f"{found[0]}:{port}"), host


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("producer", nargs="+", metavar="HOST:PORT")
    parser.add_argument("--name", default=socket.gethostname())
    parser.add_argument("--ca", metavar="FILE", help="CA certificates; enables TLS")
    parser.add_argument("--cert", metavar="FILE", help="client certificate, with --key, if producers require one")
    parser.add_argument("--key", metavar="FILE")
    parser.add_argument("--token-file", metavar="FILE", help="token file, if producers require a token")
    settings = parser.parse_args()
    lines = threading.Lock()

    def handle(address, cookie):
        # Of two cookies of one user and DSP, the cookie accepted later is valid, even if it arrives first.
        accepted = time.time() - cookie.age_micros / 1e6
        line = {"user_id": cookie.user_id, "dsp_id": cookie.dsp_id, "buyer_uid": cookie.buyer_uid, "accepted": accepted}
        with lines:
            print(json.dumps(line), flush=True)

    threads = [
        threading.Thread(target=read, args=(address, host, settings, handle), daemon=True)
        for address, host in sorted(set(addresses(settings.producer)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.exit("all streams have ended")


try:
    main()
except KeyboardInterrupt:
    sys.exit(0)
