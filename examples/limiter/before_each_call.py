"""Queries the limiter before a call to a partner, and reports the partner's response to the limiter.

usage: before_each_call.py URL_OF_LIMITER LIMIT COUNTER URL_OF_PARTNER

Needs only Python 3.9. LIMITER_TOKEN is the token, if the limiter requires one.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

RATE_LIMIT_HEADERS = (
    "Retry-After",
    "RateLimit",
    "RateLimit-Remaining",
    "RateLimit-Reset",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
)


def post(url, body):
    headers = {"Content-Type": "application/json"}
    if os.environ.get("LIMITER_TOKEN"):
        headers["Authorization"] = "Bearer " + os.environ["LIMITER_TOKEN"]
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def before_each_call(counter_url):
    """Waits until the call may be made. Raises an HTTPError (429) if the slot is more than a minute ahead."""
    slot = post(counter_url + "/reserve", {"wait": True, "max_wait": 60})
    # The limiter delays its response by up to 30 seconds.
    time.sleep(slot["wait"])


def call(url):
    """Returns status and headers of the partner's response."""
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            return response.status, response.headers
    except urllib.error.HTTPError as error:
        return error.code, error.headers


def main():
    limiter, limit, counter, partner = sys.argv[1:]
    names = [urllib.parse.quote(name, safe="") for name in (limit, counter)]
    counter_url = limiter + "/v1/limits/" + "/".join(names)
    before_each_call(counter_url)
    status, headers = call(partner)
    feedback = {"status": status}
    for name in RATE_LIMIT_HEADERS:
        if values := headers.get_all(name):
            feedback[name.lower().replace("-", "_")] = ", ".join(values)
    post(counter_url + "/feedback", feedback)
    print(status)


if __name__ == "__main__":
    main()
