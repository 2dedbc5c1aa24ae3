"""Asks a producer for sync plans as a browser does, and calls the partners in them.

    target/debug/producer --contracts examples/plan.toml --uid mint &
    python sync_plan.py [ADDRESS]

ADDRESS is that of the sync port (default 127.0.0.1:8080). The script is the browser, with its HTTP cookies, and the partners. The
first plan is empty and sets the HTTP cookie `uid`; the second contains all partners; after their matches, the third is empty.
Needs only the standard library.
"""

import http.client
import http.server
import json
import re
import sys
import threading
import urllib.request
from http.cookiejar import CookieJar
from urllib.parse import parse_qs, urlsplit

EXCHANGE = "match.ssp.example"
PAGE = "https://paper.example"


class Partner(http.server.BaseHTTPRequestHandler):
    """Replaces the macro in the parameter `r` with its own id for the browser, and redirects there."""

    def do_GET(self):
        (url,) = parse_qs(urlsplit(self.path).query)["r"]
        name = self.headers["Host"].split(".")[0]
        self.send_response(302)
        self.send_header("Location", re.sub(r"\$UID|\[BETA_ID\]", f"id-of-{name}", url))
        self.end_headers()

    def log_message(self, *_):
        pass


class Browser:
    """Sends requests for the exchange to its sync port without TLS, and all others to the partners."""

    def __init__(self, edge, partners):
        class Hosts(urllib.request.HTTPSHandler):
            def https_open(self, request):
                return self.do_open(connect, request)

        def connect(host, **options):
            return http.client.HTTPConnection(edge if host == EXCHANGE else partners, **options)

        self.jar = CookieJar()
        self.opener = urllib.request.build_opener(Hosts(), urllib.request.HTTPCookieProcessor(self.jar))

    def plan(self):
        """Asks for a plan, as a script of the page would."""
        body = json.dumps({"limit": 10, "debug": True}).encode()
        headers = {"Origin": PAGE, "Content-Type": "text/plain"}
        request = urllib.request.Request(f"https://{EXCHANGE}/cookie_sync", body, headers)
        with self.opener.open(request, timeout=10) as response:
            return json.load(response)

    def call(self, url):
        """Calls a partner, and follows its redirects."""
        with self.opener.open(url, timeout=10) as response:
            return urlsplit(response.url).path, response.status


def show(number, plan, browser):
    print(f"plan {number}: {plan['status']}, {len(plan['bidder_status'])} partners; HTTP cookies:",
          " ".join(sorted(cookie.name for cookie in browser.jar)))
    for entry in plan.get("debug", []):
        print(f"  {entry['bidder']} left out: {entry['error']}")


def main():
    edge = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8080"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Partner)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    browser = Browser(edge, f"127.0.0.1:{server.server_port}")
    for number in (1, 2, 3):
        plan = browser.plan()
        show(number, plan, browser)
        # One after the other: parallel answers would overwrite each other's HTTP cookie.
        for entry in sorted(plan["bidder_status"], key=lambda it: it["bidder"]):
            path, status = browser.call(entry["usersync"]["url"])
            print(f"  {entry['bidder']} ({entry['usersync']['type']}) returned to {path}: {status}")


main()
