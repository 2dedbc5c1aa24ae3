"""Reads both streams of a producer with code generated from the .proto, and checks their messages.

usage: client.py ADDRESS EXPECTED.json GENERATED_DIR

EXPECTED.json: a list of [user id, DSP id, buyer uid], the contents of the log from sequence number 1. Prints the line `ready`
once GetCookies is open. The cookies must be sent after that.
"""

import json
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

address, expected_path, generated = sys.argv[1:]
sys.path.insert(0, generated)

from cookiesync.v1 import cookiesync_pb2 as pb  # noqa: E402
from cookiesync.v1 import cookiesync_pb2_grpc as rpc  # noqa: E402

SERVICE = "cookiesync.v1.CookieStreamer"
TIMEOUT_SECONDS = 30


def triple(cookie):
    return (cookie.user_id, cookie.dsp_id, cookie.buyer_uid)


def check_health(channel):
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", SERVICE):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_SECONDS)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING, (service, answer)


def check_reflection(channel):
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
    ]
    listed, described = stub.ServerReflectionInfo(iter(requests), timeout=TIMEOUT_SECONDS)
    services = {service.name for service in listed.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= services, services
    assert described.file_descriptor_response.file_descriptor_proto, described


def read_cookies(stream, expected):
    for number, cookie in enumerate(expected):
        received = triple(next(stream))
        assert received == cookie, (number, received, cookie)
    stream.cancel()


def read_events(stub, expected):
    request = pb.SubscribeRequest(subscriber="python-subscribe", start=pb.START_POSITION_OLDEST)
    stream = stub.Subscribe(request, timeout=TIMEOUT_SECONDS)
    hello = next(stream)
    assert hello.WhichOneof("event") == "hello", hello
    assert hello.hello.outcome == pb.RESUME_OUTCOME_FRESH, hello
    assert hello.hello.first_sequence == 1, hello
    cookies = []
    while len(cookies) < len(expected):
        event = next(stream)
        if event.WhichOneof("event") == "heartbeat":
            continue
        assert event.WhichOneof("event") == "chunk", event
        chunk = event.chunk
        assert chunk.epoch == hello.hello.epoch
        assert chunk.first_sequence == len(cookies) + 1, (chunk.first_sequence, len(cookies))
        assert chunk.count == len(chunk.cookies), (chunk.count, len(chunk.cookies))
        cookies.extend(triple(cookie) for cookie in chunk.cookies)
    assert cookies == expected
    stream.cancel()


def check_rejection(stub):
    for call, request in (
        (stub.GetCookies, pb.GetCookiesRequest()),
        (stub.Subscribe, pb.SubscribeRequest()),
    ):
        try:
            next(call(request, timeout=TIMEOUT_SECONDS))
            raise AssertionError("an empty name was accepted")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error


def main():
    with open(expected_path, encoding="utf-8") as file:
        expected = [tuple(cookie) for cookie in json.load(file)]
    with grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(timeout=TIMEOUT_SECONDS)
        check_health(channel)
        check_reflection(channel)
        stub = rpc.CookieStreamerStub(channel)
        check_rejection(stub)
        cookies = stub.GetCookies(pb.GetCookiesRequest(host="python"), timeout=TIMEOUT_SECONDS)
        cookies.initial_metadata()
        print("ready", flush=True)
        read_cookies(cookies, expected)
        read_events(stub, expected)


main()
