"""Sends a sync over TLS, reads a stream over TLS with a certificate and a token, and checks that calls without the token are
rejected.

usage: secure_client.py HTTP_ADDRESS ADDRESS CA.pem CERTIFICATE.pem KEY.pem TOKEN_FILE GENERATED_DIR
"""

import socket
import ssl
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

http_address, address, ca, certificate, key, token_file, generated = sys.argv[1:]
sys.path.insert(0, generated)

from cookiesync.v1 import cookiesync_pb2 as pb  # noqa: E402
from cookiesync.v1 import cookiesync_pb2_grpc as rpc  # noqa: E402

TIMEOUT_SECONDS = 30


def read(path):
    with open(path, "rb") as file:
        return file.read()


def sync():
    """Sends two requests in one write, and reads until the end of the TLS connection."""
    context = ssl.create_default_context(cafile=ca)
    context.set_alpn_protocols(["h2", "http/1.1"])
    host, port = http_address.split(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS) as plain:
        with context.wrap_socket(plain, server_hostname=host, suppress_ragged_eofs=False) as tls:
            assert tls.selected_alpn_protocol() == "http/1.1"
            request = b"GET /?d=17&b=a-1 HTTP/1.1\r\nCookie: uid=alice\r\n"
            tls.sendall(request + b"\r\n" + request + b"Connection: close\r\n\r\n")
            answer = b"".join(iter(lambda: tls.recv(4096), b""))
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 2, answer


def events(channel):
    request = pb.SubscribeRequest(subscriber="python", start=pb.START_POSITION_OLDEST)
    return rpc.CookieStreamerStub(channel).Subscribe(request, timeout=TIMEOUT_SECONDS)


def reflect(channel):
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    return next(stub.ServerReflectionInfo(requests, timeout=TIMEOUT_SECONDS))


def check_rejected(call, channel):
    try:
        next(call(channel))
        raise AssertionError("a call without a token was accepted")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNAUTHENTICATED, error


def main():
    sync()
    tls = grpc.ssl_channel_credentials(read(ca), read(key), read(certificate))
    with grpc.secure_channel(address, tls) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = health.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_SECONDS)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING, answer
        check_rejected(events, channel)
        check_rejected(lambda channel: iter([reflect(channel)]), channel)
    token = grpc.access_token_call_credentials(read(token_file).decode().strip())
    with grpc.secure_channel(address, grpc.composite_channel_credentials(tls, token)) as channel:
        assert reflect(channel).list_services_response.service
        stream = events(channel)
        assert next(stream).WhichOneof("event") == "hello"
        for event in stream:
            if event.WhichOneof("event") == "chunk":
                assert [cookie.user_id for cookie in event.chunk.cookies] == ["alice"] * 2, event
                break
        stream.cancel()


main()
