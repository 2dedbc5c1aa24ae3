"""Asks a limiter over gRPC, and checks what it answers.

usage: grpc_client.py ADDRESS TOKEN GENERATED_DIR

The limiter has the limits `a`, one a second, and `b`, two at once and one in ten seconds; the token opens both.
"""

import sys
import time

import grpc
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_status import rpc_status

address, token, generated = sys.argv[1:]
sys.path.insert(0, generated)

from cookiesync.limiter.v1 import limiter_pb2 as messages  # noqa: E402
from cookiesync.limiter.v1 import limiter_pb2_grpc as services  # noqa: E402

channel = grpc.insecure_channel(address)
limiter = services.LimiterStub(channel)
bearer = [("authorization", f"Bearer {token}")]


def of(*names):
    return [messages.Counter(limit=limit, counter=counter) for limit, counter in names]


def ask(method, request, metadata=bearer):
    return method(request, metadata=metadata, timeout=60, wait_for_ready=True)


def refused(method, request, code, reason, metadata=bearer):
    """The ErrorInfo and the RetryInfo of a call that is refused with this code, for this reason."""
    try:
        answer = ask(method, request, metadata)
    except grpc.RpcError as error:
        assert error.code() == code, error
        status = rpc_status.from_call(error)
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        for detail in status.details:
            detail.Unpack(info)
            detail.Unpack(retry)
        assert (info.domain, info.reason) == ("cookiesync.limiter", reason), info
        return info.metadata, retry
    raise AssertionError(answer)


before = time.time_ns() // 1000
slot = ask(limiter.Delay, messages.DelayRequest(of=of(("a", "k")))).slot
assert slot.wait_micros == 0 and slot.binding == "", slot
assert before - 60_000_000 < slot.at_unix_micros == slot.now_unix_micros, slot

taken = ask(limiter.Reserve, messages.ReserveRequest(of=of(("a", "k"), ("b", "k")))).slot
assert taken.wait_micros == 0, taken
waited = ask(limiter.Reserve, messages.ReserveRequest(of=of(("a", "k")), wait=True)).slot
assert waited.wait_micros == 0 and waited.binding == "a/peak", waited
assert waited.at_unix_micros >= taken.at_unix_micros + 1_000_000, (taken, waited)
later = ask(limiter.Reserve, messages.ReserveRequest(of=of(("a", "far")), n=1, horizon_micros=0)).slot
assert later.wait_micros == 0, later

told = ask(limiter.Increment, messages.IncrementRequest(of=of(("b", "k")), at_unix_micros=slot.now_unix_micros))
assert told.counted and told.next.binding == "b/slow" and told.next.wait_micros > 0, told
day = 86_400_000_000
told = ask(limiter.Increment, messages.IncrementRequest(of=of(("b", "k")), at_unix_micros=slot.now_unix_micros - day))
assert not told.counted, told

code = grpc.StatusCode
over = messages.ReserveRequest(of=of(("b", "k")), horizon_micros=1_500_000)
metadata, retry = refused(limiter.Reserve, over, code.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
assert metadata["binding"] == "b/slow" and int(metadata["wait_micros"]) > 1_500_000, metadata
assert metadata["type"] == "https://iana.org/assignments/http-problem-types#quota-exceeded", metadata
assert retry.retry_delay.ToMicroseconds() >= int(metadata["wait_micros"]), (metadata, retry)

heard = messages.FeedbackRequest(of=of(("a", "new"))[0], status=429, retry_after="7")
heard = ask(limiter.Feedback, heard)
assert heard.learned and heard.next.binding == "learned" and heard.next.wait_micros > 0, heard

delay = messages.DelayRequest
future = messages.IncrementRequest(of=of(("a", "k")), at_unix_micros=slot.now_unix_micros + day)
for method, request, expected, reason in [
    (limiter.Delay, delay(of=of(("c", "k"))), code.NOT_FOUND, "UNKNOWN_LIMIT"),
    (limiter.Delay, delay(), code.INVALID_ARGUMENT, "INVALID_REQUEST"),
    (limiter.Delay, delay(of=of(("a", "k")), n=7), code.FAILED_PRECONDITION, "TOO_MANY_AT_ONCE"),
    (limiter.Increment, future, code.FAILED_PRECONDITION, "TOO_EARLY"),
    (limiter.Feedback, messages.FeedbackRequest(status=429), code.INVALID_ARGUMENT, "INVALID_REQUEST"),
    (limiter.Delay, delay(of=of(("a", "k" * 70_000))), code.RESOURCE_EXHAUSTED, "TOO_LARGE"),
]:
    refused(method, request, expected, reason)
of_a = delay(of=of(("a", "k")))
refused(limiter.Delay, of_a, code.UNAUTHENTICATED, "UNAUTHORIZED", [])
refused(limiter.Delay, of_a, code.UNAUTHENTICATED, "UNAUTHORIZED", [("authorization", "Bearer another-token-16b")])
narrow = [("authorization", "Bearer narrow-token-16b")]
ask(limiter.Delay, of_a, narrow)
refused(limiter.Delay, delay(of=of(("a", "k"), ("b", "k"))), code.PERMISSION_DENIED, "FORBIDDEN", narrow)

health = health_pb2_grpc.HealthStub(channel)
for service in ["", "cookiesync.limiter.v1.Limiter"]:
    checked = ask(health.Check, health_pb2.HealthCheckRequest(service=service))
    assert checked.status == health_pb2.HealthCheckResponse.SERVING, checked
refused(health.Check, health_pb2.HealthCheckRequest(), code.UNAUTHENTICATED, "UNAUTHORIZED", [])


class WithToken(grpc.StreamStreamClientInterceptor):
    """Adds the token to the calls of the reflection client, which takes no metadata."""

    def intercept_stream_stream(self, continuation, details, requests):
        details = details._replace(metadata=bearer)
        return continuation(details, requests)


reflected = ProtoReflectionDescriptorDatabase(grpc.intercept_channel(channel, WithToken()))
assert "cookiesync.limiter.v1.Limiter" in reflected.get_services(), reflected.get_services()
found = reflected.FindFileContainingSymbol("cookiesync.limiter.v1.Limiter")
assert [method.name for method in found.service[0].method] == ["Delay", "Reserve", "Increment", "Feedback"], found
