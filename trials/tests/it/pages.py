"""Checks the status pages of a producer and a consumer in a real Chromium, through its DevTools protocol.

usage: pages.py CHROMIUM PRODUCER CONSUMER HOSTILE-NAME KNOWN-USER BUYER-UID DIR

Writes screenshots of both pages to DIR, at 400 and 1280 pixels, in the light and the dark scheme. Prints errors and exits
with 1 if a page writes to the console, sends a request to another port, is wider than the screen, shifts its layout when it
updates, inserts a name as HTML, fails to look up a user, or shows another durable position than the consumer's. Needs only
the standard library.
"""

import base64
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 30


class WebSocket:
    """The part of RFC 6455 that DevTools needs: text messages, sent in one frame and received in one or more."""

    def __init__(self, url):
        parts = urlsplit(url)
        self.stream = socket.create_connection((parts.hostname, parts.port), TIMEOUT_SECONDS)
        key = base64.b64encode(os.urandom(16)).decode()
        self.stream.sendall(
            f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self.received = b""
        while b"\r\n\r\n" not in self.received:
            self.received += self.stream.recv(65536)
        head, self.received = self.received.split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 101"), head

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        size = len(data)
        head = struct.pack("!BB", 0x81, 0x80 | size) if size < 126 else struct.pack("!BBH", 0x81, 0xFE, size)
        if size >= 1 << 16:
            head = struct.pack("!BBQ", 0x81, 0xFF, size)
        self.stream.sendall(head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(data)))

    def read(self, count):
        while len(self.received) < count:
            more = self.stream.recv(1 << 20)
            if not more:
                raise EOFError("the browser closed the connection")
            self.received += more
        data, self.received = self.received[:count], self.received[count:]
        return data

    def receive(self):
        text = b""
        while True:
            first, size = self.read(2)
            size &= 0x7F
            if size == 126:
                (size,) = struct.unpack("!H", self.read(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", self.read(8))
            data = self.read(size)
            if first & 0x0F in (0, 1):
                text += data
                if first & 0x80:
                    return text.decode()


class Page:
    """A browser tab and its events."""

    def __init__(self, port):
        request = urllib.request.Request(f"http://127.0.0.1:{port}/json/new?about:blank", method="PUT")
        target = json.load(urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS))
        self.socket, self.calls, self.events = WebSocket(target["webSocketDebuggerUrl"]), 0, []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **arguments):
        self.calls += 1
        self.socket.send(json.dumps({"id": self.calls, "method": method, "params": arguments}))
        while True:
            message = json.loads(self.socket.receive())
            if message.get("id") == self.calls:
                assert "error" not in message, (method, message)
                return message["result"]
            self.events.append(message)

    def run(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, (script, result)
        return result["result"].get("value")

    def wait(self, script):
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not self.run(script):
            assert time.monotonic() < deadline, f"{script} never became true"
            time.sleep(0.1)

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


def check(page, pages, hostile, user, uid, directory):
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
    return errors + violations(page, pages.values())


def main():
    chromium, producer, consumer, hostile, user, uid, directory = sys.argv[1:]
    profile = tempfile.mkdtemp()
    browser = subprocess.Popen(
        [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         "--disable-background-networking", "--hide-scrollbars", "--remote-debugging-port=0", f"--user-data-dir={profile}",
         "about:blank"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    try:
        port_file, deadline = os.path.join(profile, "DevToolsActivePort"), time.monotonic() + TIMEOUT_SECONDS
        while not (os.path.exists(port_file) and open(port_file, encoding="utf-8").read().strip()):
            assert browser.poll() is None and time.monotonic() < deadline, "the browser did not start"
            time.sleep(0.05)
        port = open(port_file, encoding="utf-8").read().split()[0]
        errors = check(Page(port), {"producer": producer, "consumer": consumer}, hostile, user, uid, directory)
    finally:
        browser.terminate()
        browser.wait(TIMEOUT_SECONDS)
        shutil.rmtree(profile, ignore_errors=True)
    print("\n".join(errors) or "no errors")
    sys.exit(1 if errors else 0)


main()
