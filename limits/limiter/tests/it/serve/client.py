"""Tests a limiter through a client generated from its OpenAPI description.

usage: client.py URL TOKEN GENERATED_DIR

The limiter has the limits `a`, with one request per second, and `b`, with one per ten seconds and a burst of two.
"""

import datetime
import sys

url, token, generated = sys.argv[1:]
sys.path.insert(0, generated)

from limiter_client import AuthenticatedClient, Client  # noqa: E402
from limiter_client.api.default import delay, feedback, increment, reserve  # noqa: E402
from limiter_client.models import Counted, Feedback, FeedbackResult, Increment, Problem, Reserve, Slot  # noqa: E402

client = AuthenticatedClient(base_url=url, token=token)

slot = delay.sync("a", "k", client=client)
assert isinstance(slot, Slot) and slot.wait == 0 and slot.binding is None, slot
assert slot.at == slot.now and slot.at.tzinfo is not None, slot

reserved = reserve.sync("a", "k", client=client, body=Reserve(), also=["b/k"])
assert isinstance(reserved, Slot) and reserved.wait == 0, reserved
waited = reserve.sync("a", "k", client=client, body=Reserve(wait=True))
assert isinstance(waited, Slot) and waited.wait == 0 and waited.binding == "a/peak", waited

counted = increment.sync("b", "k", client=client, body=Increment(n=1, at=slot.now))
assert isinstance(counted, Counted) and counted.counted and counted.binding == "b/slow", counted
old = slot.now - datetime.timedelta(days=1)
counted = increment.sync("b", "k", client=client, body=Increment(at=old))
assert isinstance(counted, Counted) and not counted.counted, counted

response = reserve.sync_detailed("b", "k", client=client, body=Reserve(max_wait=1.5))
problem = response.parsed
assert isinstance(problem, Problem) and problem.status == 429, response
assert problem.violated_policies == ["b/slow"] and problem.wait > 1.5, problem
assert int(response.headers["Retry-After"]) >= problem.wait, response.headers

assert response.headers["X-RateLimit-Limit"] == "2" and response.headers["X-RateLimit-Remaining"] == "0", response.headers
assert 0 < int(response.headers["X-RateLimit-Reset"]) <= int(response.headers["Retry-After"]), response.headers

result = feedback.sync("a", "new", client=client, body=Feedback(status=429, retry_after="7"))
assert isinstance(result, FeedbackResult) and result.applied and result.binding == "feedback", result

unknown = delay.sync("c", "k", client=client)
assert isinstance(unknown, Problem) and unknown.type_.value.endswith("unknown-limit"), unknown
unauthorized = delay.sync("a", "k", client=Client(base_url=url))
assert isinstance(unauthorized, Problem) and unauthorized.status == 401, unauthorized

for _ in range(2):
    counted = increment.sync("called", "k", client=client, interval=3600, requests=2, body=Increment())
    assert isinstance(counted, Counted) and counted.counted, counted
slot = delay.sync("called", "k", client=client, interval=3600, requests=2)
assert isinstance(slot, Slot) and slot.wait > 3000, slot
other = delay.sync("called", "k", client=client, interval=3600, requests=3)
assert isinstance(other, Problem) and other.type_.value.endswith("invalid-rule"), other

