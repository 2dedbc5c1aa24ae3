"""A headless Chromium, controlled through its DevTools protocol. Needs only the standard library."""

import base64
import contextlib
import json
import os
import shutil
import socket
import struct
import subprocess
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
            time.sleep(0.02)


@contextlib.contextmanager
def browser(chromium, *flags):
    """Starts a browser with a new profile; yields its DevTools port."""
    profile = tempfile.mkdtemp()
    os.mkdir(os.path.join(profile, "Default"))
    with open(os.path.join(profile, "Default", "Preferences"), "w", encoding="utf-8") as file:
        # Permits third-party cookies, which Debian's Chromium blocks.
        json.dump({"profile": {"cookie_controls_mode": 0}}, file)
    process = subprocess.Popen(
        [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         "--disable-background-networking", "--hide-scrollbars", "--remote-debugging-port=0", f"--user-data-dir={profile}",
         *flags, "about:blank"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    try:
        port_file, deadline = os.path.join(profile, "DevToolsActivePort"), time.monotonic() + TIMEOUT_SECONDS
        while not (os.path.exists(port_file) and open(port_file, encoding="utf-8").read().strip()):
            assert process.poll() is None and time.monotonic() < deadline, "the browser did not start"
            time.sleep(0.05)
        yield open(port_file, encoding="utf-8").read().split()[0]
    finally:
        process.terminate()
        process.wait(TIMEOUT_SECONDS)
        shutil.rmtree(profile, ignore_errors=True)
