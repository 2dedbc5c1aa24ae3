"""A visitor of websites: a browser, and what the producer and the consumer know about it. Needs only the standard library."""

import json
import re
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from devtools import TIMEOUT_SECONDS


class Visitor:
    """EDGE is the origin of a producer, PRODUCER its admin address, and CONSUMER that of a consumer that reads from it."""

    def __init__(self, page, edge, producer, consumer):
        self.page, self.edge, self.producer, self.consumer = page, edge, producer, consumer

    def visit(self, url):
        self.page.run("globalThis.isOld = true")
        self.page.call("Page.navigate", url=url)
        self.page.wait(f"document.readyState === 'complete' && location.href === {json.dumps(url)} && !globalThis.isOld")

    def cookies(self, name, edge=None):
        cookies = self.page.call("Network.getAllCookies")["cookies"]
        host = urlsplit(edge or self.edge).hostname
        return [cookie for cookie in cookies if cookie["name"] == name and cookie["domain"] == host]

    def uid(self, edge=None):
        cookies = self.cookies("uid", edge)
        assert len(cookies) == 1, cookies
        assert cookies[0]["secure"] and cookies[0]["httpOnly"] and cookies[0]["sameSite"] == "None", cookies
        return cookies[0]["value"]

    def without_third_party_cookies(self):
        self.page.call("Network.clearBrowserCookies")
        self.page.call("Network.setCookieControls", enableThirdPartyCookieRestriction=True,
                       disableThirdPartyCookieMetadata=True, disableThirdPartyCookieHeuristics=True)

    def counts(self, metric):
        """The values of a metric other than zero, by labels."""
        metrics = urllib.request.urlopen(f"http://{self.producer}/metrics", timeout=TIMEOUT_SECONDS).read().decode()
        found = re.findall(rf"^{metric}\{{(.*)\}} (\d+)$", metrics, re.MULTILINE)
        return {labels: int(count) for labels, count in found if count != "0"}

    def stored(self, user):
        try:
            url = f"http://{self.consumer}/v1/users/{user}"
            return json.load(urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS))["buyer_uids"]
        except urllib.error.HTTPError as error:
            assert error.code == 404, error
            return {}

    def wait_stored(self, user, expected):
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while (found := self.stored(user)) != expected:
            assert time.monotonic() < deadline, f"{found} instead of {expected}"
            time.sleep(0.02)
