"""Checks the status pages of a producer and a consumer in a real Chromium, through its DevTools protocol.

usage: pages.py CHROMIUM PRODUCER CONSUMER CONSUMER-NAME CONSUMER-PID HOSTILE-NAME KNOWN-USER BUYER-UID DIR

Writes screenshots of both pages to DIR, at 400 and 1280 pixels, in the light and the dark scheme. Prints errors and exits
with 1 if a check fails. A page must not write to the console, send a request to another port, be wider than the screen, shift
its layout when it updates, or insert a name as HTML. It must look up a user, show the durable position of the consumer, and turn red
while the consumer is stopped.
Needs only the standard library.
"""

import base64
import json
import os
import re
import signal
import sys
import urllib.request
from urllib.parse import urlsplit

from devtools import TIMEOUT_SECONDS, Page, browser


class StatusPage(Page):
    def show(self, address, width, scheme):
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=f"http://{address}/")
        self.wait("document.readyState === 'complete' && document.getElementById('link').textContent === 'live'")

    def screenshot(self, path):
        size = self.run("document.documentElement.scrollHeight")
        width = self.run("window.innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": min(size, 6000), "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))


def violations(page, addresses):
    """Console messages of the page, and its requests to other ports."""
    errors = []
    for event in page.events:
        method, about = event.get("method"), event.get("params", {})
        if method == "Log.entryAdded" and about["entry"]["level"] in ("warning", "error"):
            errors.append(f"console: {about['entry']['text']} {about['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled":
            errors.append(f"console: {about['args']}")
        elif method == "Runtime.exceptionThrown":
            errors.append(f"exception: {about['exceptionDetails']}")
        elif method == "Network.requestWillBeSent":
            url = urlsplit(about["request"]["url"])
            if url.scheme not in ("data", "about") and url.netloc not in addresses:
                errors.append(f"request to {about['request']['url']}")
    return errors


# Positions of all numbers and headings. An update must not move them.
POSITIONS = """[...document.querySelectorAll('.figure, h2, th, td')].filter((node) => node.offsetParent).map((node) => {
  const box = node.getBoundingClientRect(); return [Math.round(box.left), Math.round(box.top + scrollY)].join(); }).join(' ')"""


# How pages display durations. Requests take far less than a millisecond.
TIMES = {0: "0 s", 0.000004: "4 µs", 0.0000123: "12 µs", 0.0009994: "999 µs", 0.0042: "4.2 ms", 0.0235: "24 ms", 1.24: "1.2 s"}


# The column "durable up to" of the nodes that confirm. Other subscribers have a dash.
DURABLE = """[...document.querySelectorAll('[data-label="durable up to"]')]
  .map((cell) => Number(cell.textContent.replaceAll(",", ""))).filter((sequence) => !Number.isNaN(sequence))"""


def check_durable(page, consumer):
    """The page follows the cursor of the only consumer, and is never ahead of it."""

    def cursor():
        metrics = urllib.request.urlopen(f"http://{consumer}/metrics", timeout=TIMEOUT_SECONDS).read().decode()
        return int(re.search(r"^consumer_cursor_sequence\{.*\} (\d+)$", metrics, re.MULTILINE)[1])

    page.wait(f"{DURABLE}.some((sequence) => sequence >= {cursor()})")
    shown, after = page.run(DURABLE), cursor()
    if len(shown) != 1 or shown[0] > after:
        return [f"producer: durable up to {shown}, but the consumer's cursor is {after}"]
    return []


def check_silence(page, name, process_id, directory):
    """A page whose process does not respond says so in red, and recovers."""
    if (title := page.run("document.title")) != f"{name} · consumer":
        return [f"the title is {title}"]
    os.kill(process_id, signal.SIGSTOP)
    try:
        page.wait("document.getElementById('ready').textContent.startsWith('no response since ')")
        page.screenshot(f"{directory}/consumer-stopped.png")
        colors = page.run("['header', '#ready'].map((it) => getComputedStyle(document.querySelector(it)).color)")
    finally:
        os.kill(process_id, signal.SIGCONT)
    page.wait("!document.body.classList.contains('stale') && document.getElementById('ready').textContent === 'ready'")
    normal = page.run("getComputedStyle(document.querySelector('header')).color")
    return [] if colors[0] == colors[1] != normal else [f"the header is {colors[0]}, normally {normal}"]


def check(page, pages, name, process_id, hostile, user, uid, directory):
    errors = []
    for process, address in pages.items():
        for width in (400, 1280):
            for scheme in ("light", "dark"):
                where = f"{process} at {width}, {scheme}"
                page.show(address, width, scheme)
                # Waits for the second sample.
                page.run("globalThis.first = document.getElementById('uptime').title")
                page.wait("document.getElementById('uptime').title !== globalThis.first")
                before = page.run(POSITIONS)
                page.run("globalThis.first = document.getElementById('uptime').title")
                page.wait("document.getElementById('uptime').title !== globalThis.first")
                if page.run(POSITIONS) != before:
                    errors.append(f"{where}: an update shifts the layout")
                if page.run("document.documentElement.scrollWidth > window.innerWidth"):
                    errors.append(f"{where}: wider than the screen")
                if page.run("document.scripts.length !== 1 || document.images.length !== 0"):
                    errors.append(f"{where}: a name was inserted as HTML")
                if process == "producer" and hostile not in page.run("document.body.textContent"):
                    errors.append(f"{where}: {hostile} is not shown")
                page.screenshot(f"{directory}/{process}-{width}-{scheme}.png")
        if process == "producer":
            errors += check_durable(page, pages["consumer"])
        for seconds, shown in TIMES.items():
            if page.run(f"time({seconds})") != shown:
                errors.append(f"{process}: {seconds} s is shown as {page.run(f'time({seconds})')}")
    # The consumer's page was shown last.
    page.run(f"document.getElementById('user').value = {json.dumps(user)}; document.querySelector('form button').click()")
    page.wait(f"document.getElementById('uids').textContent.includes({json.dumps(uid)})")
    page.screenshot(f"{directory}/consumer-lookup.png")
    errors += check_silence(page, name, process_id, directory)
    return errors + violations(page, pages.values())


def main():
    chromium, producer, consumer, name, process_id, *more = sys.argv[1:]
    with browser(chromium) as port:
        errors = check(StatusPage(port), {"producer": producer, "consumer": consumer}, name, int(process_id), *more)
    print("\n".join(errors) or "no errors")
    sys.exit(1 if errors else 0)


main()
