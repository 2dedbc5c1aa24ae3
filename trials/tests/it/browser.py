"""Tests the syncs of a real Chromium: pixel, redirects, opt-out, and minted cookies with and without third-party cookies.

usage: browser.py CHROMIUM CERTIFICATE KEY EDGE PARTITIONED PRODUCER CONSUMER PARTNERS

EDGE is the origin of a producer that mints cookies, and PARTITIONED is that of a producer that mints partitioned cookies.
PRODUCER is the admin address of the first producer, and CONSUMER is that of a consumer that reads from both. On the port
PARTNERS, this script serves the pages of a publisher and the syncs of the partners; the contracts of the first producer redirect
DSPs 1 to 3 there. Needs only the standard library.
"""

import http.server
import json
import re
import ssl
import sys
import threading
import time
from urllib.parse import parse_qs, urlsplit

from devtools import TIMEOUT_SECONDS, Page, browser
from visitor import Visitor

PIXEL = "1x1"

# Resolves with the size of the image, or "error".
LOAD = """new Promise((resolve) => { const image = new Image(); image.src = %s; document.body.append(image);
  image.onload = () => resolve(`${image.naturalWidth}x${image.naturalHeight}`); image.onerror = () => resolve('error'); })"""


class Partners(http.server.BaseHTTPRequestHandler):
    """A publisher's page, and https://partner-N.example/done, which continues with the sync of the next partner."""

    protocol_version = "HTTP/1.1"
    edge = ""
    syncs = []

    def do_GET(self):
        url = urlsplit(self.path)
        partner = re.match(r"partner-(\d)\.example", self.headers["Host"])
        if url.path == "/done" and partner:
            number = int(partner[1])
            query = parse_qs(url.query)
            self.syncs.append((number, query["u"][0], query["x"][0]))
            following = f"d={number + 1}&b=id-{number + 1}" if number < 3 else "d=17&b=id-17"
            self.send_response(302)
            self.send_header("Location", f"{self.edge}/sync?{following}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = b"<!doctype html><title>Publisher</title><body></body>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Walk(Visitor):
    def __init__(self, page, edge, producer, consumer, partners):
        super().__init__(page, edge, producer, consumer)
        self.publisher = f"https://publisher.example:{partners}/"

    def load(self, query, edge=None):
        """Loads a sync as an image of the publisher's page."""
        return self.page.run(LOAD % json.dumps(f"{edge or self.edge}/sync?{query}"))

    def requests(self):
        """Sync requests by outcome."""
        counts = self.counts("producer_edge_requests_total")
        return {labels.split('"')[1]: count for labels, count in counts.items()}

    def counted(self, before):
        """Requests counted since `before`, by outcome."""
        return {outcome: count - before.get(outcome, 0) for outcome, count in self.requests().items() if count != before.get(outcome, 0)}


def pixel_and_redirects(walk):
    walk.visit(walk.publisher)
    assert walk.load("d=17&b=pixel") == PIXEL
    user = walk.uid()
    walk.wait_stored(user, {"17": "pixel"})
    assert walk.requests() == {"uid_minted": 1, "accepted": 1}, walk.requests()
    assert walk.load("d=1&b=id-1") == PIXEL
    assert Partners.syncs == [(number, user, f"id-{number}") for number in (1, 2, 3)], Partners.syncs
    assert walk.uid() == user
    walk.wait_stored(user, {str(dsp): f"id-{dsp}" for dsp in (1, 2, 3, 17)})
    return user


def opt_out(walk, user):
    def press():
        walk.visit(f"{walk.edge}/optout")
        walk.page.run("globalThis.isOld = true; document.querySelector('button').click()")
        walk.page.wait("document.readyState === 'complete' && !globalThis.isOld")

    press()
    assert [cookie["value"] for cookie in walk.cookies("cookiesync_optout")] == ["1"]
    walk.wait_stored(user, {})
    walk.visit(walk.publisher)
    before = walk.requests()
    assert walk.load("d=17&b=opted-out") == PIXEL
    assert walk.counted(before) == {"opted_out": 1}, walk.counted(before)
    press()
    assert walk.cookies("cookiesync_optout") == []
    walk.visit(walk.publisher)
    assert walk.load("d=17&b=opted-in") == PIXEL
    # Were the match of the browser that opted out recorded, it would precede this one.
    walk.wait_stored(user, {"17": "opted-in"})


def without_third_party_cookies(walk, partitioned):
    walk.without_third_party_cookies()
    walk.visit(walk.publisher)
    before = walk.requests()
    assert walk.load("d=17&b=blocked") == "error"
    assert walk.counted(before) == {"uid_minted": 1, "uid_not_kept": 1}, walk.counted(before)
    assert walk.cookies("uid") == []
    # A partitioned cookie is not a third-party cookie.
    assert walk.load("d=17&b=partitioned", partitioned) == PIXEL
    user = walk.uid(partitioned)
    walk.wait_stored(user, {"17": "partitioned"})
    opt_out_in_frame(walk, partitioned, user)


def opt_out_in_frame(walk, edge, user):
    """On the page itself, an opt-out does not hold on the publisher's website; in a frame of the publisher, it does."""
    walk.visit(f"{edge}/optout")
    walk.page.run("globalThis.isOld = true; document.querySelector('button').click()")
    walk.page.wait("document.readyState === 'complete' && !globalThis.isOld")
    walk.visit(walk.publisher)
    assert walk.load("d=17&b=not-covered", edge) == PIXEL
    walk.wait_stored(user, {"17": "not-covered"})
    walk.page.run(f"""new Promise((resolve) => {{ const frame = document.createElement('iframe'); frame.src = '{edge}/optout';
      frame.onload = resolve; document.body.append(frame); frame.focus(); }})""")
    # A frame that has just loaded may miss a key.
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while walk.stored(user):
        assert time.monotonic() < deadline, "the button in the frame has no effect"
        walk.page.run("document.activeElement.blur(); document.querySelector('iframe').focus()")
        for key, number, text in (("Tab", 9, ""), ("Enter", 13, "\r")):
            for kind in ("keyDown", "keyUp"):
                walk.page.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=number, text=text)
        effect = time.monotonic() + 5
        while walk.stored(user) and time.monotonic() < effect:
            time.sleep(0.02)
    cookies = [cookie for cookie in walk.cookies("cookiesync_optout", edge) if cookie.get("partitionKey")]
    publisher = [cookie for cookie in cookies if "publisher.example" in json.dumps(cookie["partitionKey"])]
    assert [cookie["value"] for cookie in publisher] == ["1"], cookies
    # A match that was recorded would be counted by the caller.
    assert walk.load("d=17&b=opted-out", edge) == PIXEL


def main():
    chromium, certificate, key, edge, partitioned, producer, consumer, partners = sys.argv[1:]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    Partners.edge = edge
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(partners)), Partners)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    flags = ["--host-resolver-rules=MAP *.example 127.0.0.1", "--ignore-certificate-errors"]
    with browser(chromium, *flags) as port:
        walk = Walk(Page(port), edge, producer, consumer, partners)
        user = pixel_and_redirects(walk)
        opt_out(walk, user)
        without_third_party_cookies(walk, partitioned)


main()
