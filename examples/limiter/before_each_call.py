"""Asks the limiter before each call to a partner, and tells it what the partner said.

usage: before_each_call.py URL_OF_LIMITER LIMIT COUNTER URL_OF_PARTNER

Needs nothing but Python 3.9. LIMITER_TOKEN is the token, where the limiter wants one.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request


def ask(url, body):
    headers = {"Content-Type": "application/json"}
    if os.environ.get("LIMITER_TOKEN"):
        headers["Authorization"] = "Bearer " + os.environ["LIMITER_TOKEN"]
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def before_each_call(counter_url):
    """Returns when the call may go. Raises when its slot is farther off than the maximum wait (429)."""
    slot = ask(counter_url + "/reserve", {"wait": True, "max_wait": 60})
    # The limiter holds its answer for 30 seconds at most.
    time.sleep(slot["wait"])


def call(url):
    """Status and headers of the partner's answer."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.headers


def main():
    limiter, limit, counter, partner = sys.argv[1:]
    names = [urllib.parse.quote(name, safe="") for name in (limit, counter)]
    counter_url = limiter + "/v1/limits/" + "/".join(names)
    before_each_call(counter_url)
    status, headers = call(partner)
    said = {
        "retry_after": headers.get("Retry-After"),
        "ratelimit": headers.get("RateLimit"),
        "x_ratelimit_remaining": headers.get("X-RateLimit-Remaining"),
        "x_ratelimit_reset": headers.get("X-RateLimit-Reset"),
    }
    said = {name: value for name, value in said.items() if value is not None}
    ask(counter_url + "/feedback", {"status": status, **said})
    print(status)


if __name__ == "__main__":
    main()
