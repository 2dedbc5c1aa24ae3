"""Asks a limiter through a client that was generated from its description, and checks what it answers.

usage: client.py URL TOKEN GENERATED_DIR

The limiter has the limits `a`, one a second, and `b`, two at once and one in ten seconds.
"""

import datetime
import sys

url, token, generated = sys.argv[1:]
sys.path.insert(0, generated)

from limiter_client import AuthenticatedClient, Client  # noqa: E402
from limiter_client.api.default import delay, feedback, increment, reserve  # noqa: E402
from limiter_client.api.default import get_limit  # noqa: E402
from limiter_client.models import Counted, Feedback, Increment, Learned, Problem, Reserve, Slot  # noqa: E402
from limiter_client.models import Limit  # noqa: E402

client = AuthenticatedClient(base_url=url, token=token)

asked = delay.sync("a", "k", client=client)
assert isinstance(asked, Slot) and asked.wait == 0 and asked.binding is None, asked
assert asked.at == asked.now and asked.at.tzinfo is not None, asked

taken = reserve.sync("a", "k", client=client, body=Reserve(), also=["b/k"])
assert isinstance(taken, Slot) and taken.wait == 0, taken
waited = reserve.sync("a", "k", client=client, body=Reserve(wait=True))
assert isinstance(waited, Slot) and waited.wait == 0 and waited.binding == "a/peak", waited

told = increment.sync("b", "k", client=client, body=Increment(n=1, at=asked.now))
assert isinstance(told, Counted) and told.counted and told.binding == "b/slow", told
old = asked.now - datetime.timedelta(days=1)
told = increment.sync("b", "k", client=client, body=Increment(at=old))
assert isinstance(told, Counted) and not told.counted, told

answer = reserve.sync_detailed("b", "k", client=client, body=Reserve(max_wait=1.5))
problem = answer.parsed
assert isinstance(problem, Problem) and problem.status == 429, answer
assert problem.violated_policies == ["b/slow"] and problem.wait > 1.5, problem
assert int(answer.headers["Retry-After"]) >= problem.wait, answer.headers

assert answer.headers["X-RateLimit-Limit"] == "2" and answer.headers["X-RateLimit-Remaining"] == "0", answer.headers
assert 0 < int(answer.headers["X-RateLimit-Reset"]) <= int(answer.headers["Retry-After"]), answer.headers

learned = feedback.sync("a", "new", client=client, body=Feedback(status=429, retry_after="7"))
assert isinstance(learned, Learned) and learned.learned and learned.binding == "learned", learned

unknown = delay.sync("c", "k", client=client)
assert isinstance(unknown, Problem) and unknown.type_.value.endswith("unknown-limit"), unknown
nobody = delay.sync("a", "k", client=Client(base_url=url))
assert isinstance(nobody, Problem) and nobody.status == 401, nobody

for _ in range(2):
    told = increment.sync("called", "k", client=client, body=Increment(interval=3600, requests=2))
    assert isinstance(told, Counted) and told.counted, told
asked = delay.sync("called", "k", client=client, interval=3600, requests=2)
assert isinstance(asked, Slot) and asked.wait > 3000, asked
other = delay.sync("called", "k", client=client, interval=3600, requests=3)
assert isinstance(other, Problem) and other.type_.value.endswith("rule-of-call"), other

got = get_limit.sync("a", client=client)
assert isinstance(got, Limit) and got.source == "file" and got.terms.rules[0].rate == "1/s", got
