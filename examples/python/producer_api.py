"""Requests to the API of a producer, with retries; used by send_matches.py and delete_users.py."""

import argparse
import http.client
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

# Request in progress, rate limit exceeded, and responses of a proxy or of a producer that shuts down.
RETRIED = {409, 429, 502, 503, 504}


class Failed(Exception):
    """The API has rejected a request, or did not respond in time."""


class Api:
    def __init__(self, args):
        self.url, self.retry_for = args.url.rstrip("/"), args.retry_for
        authorities = Path(args.ca).read_text(encoding="utf-8-sig") if args.ca else None
        self.tls = ssl.create_default_context(cadata=authorities)
        token = os.environ.get("COOKIESYNC_TOKEN")
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def request(self, method, path, body=None, headers=None):
        """Returns the JSON of a successful response. Retries for up to `--retry-for` seconds."""
        request = urllib.request.Request(self.url + path, body, {**self.headers, **(headers or {})}, method=method)
        deadline, backoff = time.monotonic() + self.retry_for, 0.5
        while True:
            try:
                with urllib.request.urlopen(request, timeout=90, context=self.tls) as response:
                    return json.load(response)
            except urllib.error.HTTPError as error:
                reason = f"{error.code}: {detail(error)}"
                if error.code not in RETRIED:
                    raise Failed(reason) from error
                after = error.headers.get("Retry-After", "")
                wait = int(after) if after.isdecimal() else 1
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason, backoff = getattr(error, "reason", error), min(2 * backoff, 30)
                if isinstance(reason, ssl.SSLError):
                    raise Failed(reason) from error
                wait = backoff
            if time.monotonic() + wait > deadline:
                raise Failed(f"{reason} (no success within {self.retry_for:.0f} s)")
            print(f"{reason}; next attempt in {wait:.0f} s", file=sys.stderr)
            time.sleep(wait)


def detail(error):
    """The explanation in an error response."""
    try:
        problem = json.load(error)
        return problem.get("detail") or problem["title"]
    except (ValueError, KeyError, AttributeError):
        return error.reason


def parser(description):
    """Parser of the arguments of both programs."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", metavar="URL", type=url, help="address of --api of a producer")
    parser.add_argument("--ca", metavar="FILE", help="certificate authority of the producer")
    parser.add_argument("--retry-for", metavar="SECONDS", type=float, default=600, help="maximum time to retry a request (600)")
    return parser


def url(text):
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} does not begin with http:// or https://")
    return text


def run(main):
    try:
        sys.exit(main())
    except (Failed, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted; run the command again to continue")
