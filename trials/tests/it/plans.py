"""Tests sync plans in a real Chromium: the page /sync.html, and the requests of Prebid.js.

usage: plans.py CHROMIUM PART CERTIFICATE KEY EDGE PARTITIONED PRODUCER PARTITIONED-PRODUCER CONSUMER PARTNERS

PART is "cookies" or "page". EDGE is the origin of a producer that mints cookies, and PARTITIONED is that of a producer that mints
partitioned cookies; PRODUCER and PARTITIONED-PRODUCER are their admin addresses. CONSUMER is the admin address of a consumer
that reads from both. On the port PARTNERS, this script serves the pages of publishers and the partners in the contracts.
Needs only the standard library.
"""

import html
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

# A partner's page that returns in a frame of its own.
NESTED = '<!doctype html><iframe src="{url}"></iframe><form target="_top" action="https://thief.example/form"></form>'

# What a partner's page with the attention of the user could do to others.
THEFT = """(() => {
  const attempt = (act) => { try { return act(); } catch (error) { return error.name; } };
  attempt(() => document.querySelector('form').submit());
  return [attempt(() => { top.location = 'https://thief.example/top'; return 'navigated'; }),
    attempt(() => open('https://thief.example/open')), attempt(() => parent.document), attempt(() => top.document)];
})()"""

# As modules/prebidServerBidAdapter of Prebid.js: asks for a plan, and calls its partners one at a time.
PREBID = """
globalThis.plan = async (edge, more = {}, type = "text/plain") => {
  const body = { uuid: "00000000-0000-4000-8000-000000000000", gdpr: 0, gdpr_consent: "", account: "1", ...more };
  const response = await fetch(`${edge}/cookie_sync`, {
    method: "POST", credentials: "include", headers: { "content-type": type }, body: JSON.stringify(body) });
  return response.json();
};
globalThis.prebid = async (edge, more) => {
  const { status, bidder_status } = await plan(edge, more);
  if (!["ok", "no_cookie"].includes(status)) throw new Error(status);
  for (const { no_cookie, usersync: { type, url } } of bidder_status) {
    if (!no_cookie) continue;
    await new Promise((done) => {
      const isFrame = type === "iframe";
      if (!isFrame && !["image", "redirect"].includes(type)) throw new Error(type);
      const element = isFrame ? document.createElement("iframe") : new Image();
      element.onload = element.onerror = done;
      element.src = url;
      if (isFrame) document.body.append(element);
    });
  }
  return bidder_status.map((it) => it.bidder).sort();
};
"""


class Partners(http.server.BaseHTTPRequestHandler):
    """Pages of publishers, and partners: the first label of the host is the name, and the path says what the partner does."""

    protocol_version = "HTTP/1.1"
    # The name, and the times of the request and the response.
    calls = []
    lock = threading.Lock()

    def do_GET(self):
        host, url = self.headers["Host"], urlsplit(self.path)
        name = host.split(".")[0]
        back = parse_qs(url.query).get("r", [""])[0].replace("$UID", f"id-{name}")
        if not host.split(":")[0].endswith(".partner.example"):
            return self.answer(200, "<!doctype html><title>Publisher</title><body></body>")
        begun = time.monotonic()
        # Another call would overlap this one.
        time.sleep(0.1)
        hops = re.fullmatch(r"/hops/(\d)", url.path)
        hanging = url.path == "/hang"
        if not hanging and not (hops and hops[1] != "5"):
            with self.lock:
                self.calls.append((name, begun, time.monotonic()))
        if hanging:
            with self.lock:
                self.calls.append((name, begun, begun))
            time.sleep(60)
        elif hops and hops[1] != "0":
            self.answer(302, location=f"/hops/{int(hops[1]) - 1}?{url.query}")
        elif url.path == "/empty":
            self.answer(204)
        elif url.path == "/nested":
            self.answer(200, NESTED.format(url=html.escape(back)))
        else:
            self.answer(302, location=back)

    def answer(self, status, body="", location=None):
        self.send_response(status)
        self.send_header("Content-Type", "text/html")
        if location:
            self.send_header("Location", location)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


def called():
    """The names of the partners that were called since the last time."""
    with Partners.lock:
        names = [name for name, _, _ in Partners.calls]
        Partners.calls.clear()
    return names


class Walk(Visitor):
    def __init__(self, page, edge, producer, consumer, partners):
        super().__init__(page, edge, producer, consumer)
        self.partners = partners

    def open(self, publisher="publisher"):
        self.visit(f"https://{publisher}.example:{self.partners}/")
        self.page.run(PREBID)

    def plan(self, type="text/plain", **request):
        return self.page.run(f"plan({json.dumps(self.edge)}, {json.dumps(request)}, {json.dumps(type)})")

    def prebid(self, **request):
        return self.page.run(f"prebid({json.dumps(self.edge)}, {json.dumps(request)})")

    def preflights(self):
        """The number of preflights: they are requests for plans without an outcome of their own."""
        requests = self.counts("producer_edge_requests_total")['outcome="plan"']
        return requests - sum(self.counts("producer_plan_requests_total").values())

    def sent(self):
        """The names of the partners that the frame has called, and the seconds since the first call, as the browser knows them."""
        sent = [it["params"] for it in self.page.events if it["method"] == "Network.requestWillBeSent"]
        calls = {}
        for it in sent:
            host = urlsplit(it["request"]["url"]).hostname or ""
            if host.endswith((".partner.example", ".partner.invalid")):
                calls.setdefault(host.split(".")[0], it["timestamp"])
        first = min(calls.values())
        return [(name, begun - first) for name, begun in calls.items()]

    def run_page(self, query, sandbox="allow-scripts allow-same-origin"):
        """Runs /sync.html in a frame; returns the id of the context of its scripts, and the seconds that it took."""
        url = f"{self.edge}/sync.html?{query}"
        self.page.events.clear()
        self.page.run(f"""(() => {{ const frame = document.createElement('iframe'); frame.src = {json.dumps(url)};
          frame.setAttribute('sandbox', {json.dumps(sandbox)}); document.body.append(frame); }})()""")
        deadline = time.monotonic() + 2 * TIMEOUT_SECONDS
        while True:
            assert time.monotonic() < deadline, f"the page never ends: {Partners.calls}"
            time.sleep(0.05)
            context = self.context(url)
            ended = context and self.run_in(context, "document.documentElement.dataset.done && performance.now()")
            if ended:
                return context, ended / 1000

    def context(self, url):
        """The context of the scripts in a frame whose URL begins with this one; `None` if there is none yet."""
        def frames(tree):
            for child in tree.get("childFrames", []):
                yield child["frame"]
                yield from frames(child)

        tree = self.page.call("Page.getFrameTree")["frameTree"]
        found = [frame["id"] for frame in frames(tree) if frame["url"].startswith(url)]
        created = [it["params"]["context"] for it in self.page.events if it["method"] == "Runtime.executionContextCreated"]
        contexts = [it["id"] for it in created if it["auxData"].get("frameId") in found and it["auxData"]["isDefault"]]
        return contexts[-1] if contexts else None

    def run_in(self, context, script):
        """Runs a script in a frame, as if the user had clicked there."""
        result = self.page.call("Runtime.evaluate", expression=script, contextId=context, returnByValue=True, awaitPromise=True,
                                userGesture=True)
        assert "exceptionDetails" not in result, (script, result)
        return result["result"].get("value")


def reasons(plan):
    return {entry["error"] for entry in plan["debug"]}


GOOD = {"1": "id-pixel", "2": "id-nested", "6": "id-hops", "8": "id-direct"}
NAMES = ["direct", "hops", "nested", "pixel"]
ASKED = {"bidders": NAMES, "coopSync": False}


def check_walk(walk):
    """The first plan sets the user id, the second calls the partners, and the third is empty."""
    assert walk.cookies("uid") == []
    first = walk.plan(**ASKED)
    assert first == {"status": "no_cookie", "bidder_status": []}, first
    user = walk.uid()
    assert called() == []
    assert walk.prebid(**ASKED) == NAMES
    assert walk.preflights() == 0
    assert sorted(called()) == NAMES
    walk.wait_stored(user, GOOD)
    third = walk.plan(**ASKED, debug=True)
    assert (third["status"], third["bidder_status"]) == ("ok", []), third
    assert reasons(third) == {"Already in sync"}, third
    assert walk.uid() == user
    for cookie in walk.cookies("sy"):
        assert cookie["secure"] and cookie["httpOnly"] and cookie["sameSite"] == "None", cookie
    return user


def unlisted_origin(walk):
    """A page that is not listed reads nothing, sets no cookie, and uses up no offers."""
    walk.open("unlisted")
    for _ in range(3):
        script = f"plan({json.dumps(walk.edge)}).then(JSON.stringify, (error) => error.name)"
        assert walk.page.run(script) == "TypeError"
    assert walk.counts("producer_plan_requests_total") == {'outcome="forbidden_origin"': 3}
    assert walk.cookies("uid") == []


def with_cookies(walk):
    walk.open()
    check_walk(walk)
    returned = walk.counts("producer_plan_returns_total")
    assert returned == {f'dsp="{dsp}",outcome="accepted"': 1 for dsp in GOOD}, returned
    # A type that needs a preflight also works for listed origins.
    assert walk.plan(type="application/json", **ASKED)["status"] == "ok"
    assert walk.preflights() == 1
    # Chrome shares its cookies between websites if it may.
    walk.open("www.paper")
    assert walk.plan(**ASKED)["status"] == "ok"


def without_cookies(walk):
    walk.without_third_party_cookies()
    walk.open()
    called()
    for _ in range(3):
        assert walk.prebid(**ASKED) == []
    walk.run_page("bidders=pixel,direct")
    assert (called(), walk.cookies("uid"), walk.cookies("sy")) == ([], [], [])
    assert walk.counts("producer_plan_requests_total")['outcome="uid_minted"'] >= 5


def partitioned(walk):
    """Each website has its own user id and its own hints."""
    walk.open()
    user = check_walk(walk)
    assert all(cookie.get("partitionKey") for cookie in walk.cookies("uid") + walk.cookies("sy"))
    # The page in a frame is in the same partition.
    walk.run_page("bidders=pixel,direct&coopSync=0")
    assert called() == []
    walk.open("www.paper")
    _, seconds = walk.run_page("bidders=pixel,direct&coopSync=0")
    assert sorted(called()) == ["direct", "pixel"], seconds
    users = {cookie["value"] for cookie in walk.cookies("uid")}
    assert len(users) == 2 and user in users, users
    (other,) = users - {user}
    walk.wait_stored(other, {dsp: GOOD[dsp] for dsp in ("1", "8")})
    assert walk.plan(**ASKED)["status"] == "ok"


def whole_page(walk):
    """Partners that fail delay the page by two seconds each, and no two partners are called at a time."""
    walk.open()
    top = walk.page.run("globalThis.isSame = true; location.href")
    context, seconds = walk.run_page("limit=9&gdpr=0")
    sent = walk.sent()
    order = ["pixel", "nested", "empty", "slowpixel", "slowframe", "hops", "nowhere", "direct", "last"]
    assert [name for name, _ in sent] == order, sent
    for (name, begun), (_, following) in zip(sent, sent[1:]):
        fails = name in ("empty", "slowpixel", "slowframe")
        assert following - begun >= (1.9 if fails else 0), sent
    # No partner is called before the previous one has responded.
    with Partners.lock:
        calls = list(Partners.calls)
    assert [name for name, _, _ in calls] == [name for name in order if name != "nowhere"], calls
    assert all(following >= ended for (_, _, ended), (_, following, _) in zip(calls, calls[1:])), calls
    assert 6 <= seconds < 18, seconds
    walk.wait_stored(walk.uid(), {**GOOD, "9": "id-last"})
    returned = walk.counts("producer_plan_returns_total")
    assert returned == {f'dsp="{dsp}",outcome="accepted"': 1 for dsp in (*GOOD, "9")}, returned
    # The frame of a partner reaches neither the top window nor another one.
    frame = walk.context("https://nested.partner.example")
    assert walk.run_in(frame, THEFT) == ["SecurityError", None, "SecurityError", "SecurityError"]
    assert walk.page.run("isSame && location.href") == top
    # The policy of the page refuses all scripts but its own.
    walk.run_in(context, """new Promise((resolve) => { addEventListener('securitypolicyviolation', resolve);
      const script = document.createElement('script'); script.textContent = 'globalThis.injected = true';
      document.documentElement.append(script); })""")
    assert walk.run_in(context, "globalThis.injected") is None
    called()


def sandboxed_page(walk):
    """A sandbox without allow-same-origin hides the origin of the page, which gets no plan."""
    walk.open()
    walk.run_page("", "allow-scripts")
    assert called() == []
    assert walk.counts("producer_plan_requests_total")['outcome="forbidden_origin"'] == 1


def slow_page(walk):
    """The page calls nobody for whom less than two of its 15 seconds remain."""
    walk.open()
    names = ",".join(f"slow-{number}" for number in range(10))
    _, seconds = walk.run_page(f"bidders={names}&coopSync=false&limit=20")
    begun = [begun for _, begun in walk.sent()]
    assert all(second - first >= 1.9 for first, second in zip(begun, begun[1:])), begun
    # All ten would take 20 seconds. A busy machine notices the end late.
    assert 12 <= seconds < 18 and 5 <= len(begun) <= 7, (seconds, begun)


def main():
    chromium, part, certificate, key, edge, separate, producer, separate_producer, consumer, partners = sys.argv[1:]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(partners)), Partners)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # In one process, all frames belong to one DevTools session.
    flags = ["--host-resolver-rules=MAP *.example 127.0.0.1, MAP *.invalid ~NOTFOUND", "--ignore-certificate-errors",
             "--disable-site-isolation-trials", "--disable-features=IsolateOrigins,site-per-process"]
    with browser(chromium, *flags) as port:
        walk = Walk(Page(port), edge, producer, consumer, partners)
        if part == "page":
            whole_page(walk)
            sandboxed_page(walk)
            slow_page(walk)
        else:
            unlisted_origin(walk)
            with_cookies(walk)
            without_cookies(walk)
            partitioned(Walk(walk.page, separate, separate_producer, consumer, partners))


main()
