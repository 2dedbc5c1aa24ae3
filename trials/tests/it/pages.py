"""Checks the status pages of all programs in a real Chromium, through its DevTools protocol.

usage: pages.py CHROMIUM JSON

JSON names the processes (their addresses, names and process ids), a match, and a directory for screenshots. Writes screenshots
of each page, at 400 and 1280 pixels, in the light and the dark scheme. Prints errors and exits
with 1 if a check fails. A page must not write to the console, send a request to another port, be wider than the screen, shift
its layout when it updates, or insert a name as HTML. It must look up a user, show the durable position of the consumer, and turn red
while the consumer is stopped. A page must also show losses, a store that hangs, a producer that is gone, many DSPs, plans, jobs that
have ended, and what was before it was opened.
Needs only the standard library.
"""

import base64
import json
import os
import re
import signal
import sys
import time
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
POSITIONS = """[...document.querySelectorAll('.headline, h2, th, td')].filter((node) => node.offsetParent).map((node) => {
  const box = node.getBoundingClientRect(); return [Math.round(box.left), Math.round(box.top + scrollY)].join(); }).join(' ')"""


# How pages display durations. Requests take far less than a millisecond.
TIMES = {0: "0 s", 0.000004: "4 µs", 0.0000123: "12 µs", 0.0009994: "999 µs", 0.0042: "4.2 ms", 0.0235: "24 ms", 1.24: "1.2 s"}


# The card with a title.
CARD = "[...document.querySelectorAll('.card')].find((card) => card.querySelector('h2').textContent === {title!r})"

# The cell of a column in the row that begins with a name.
CELL = """[...document.querySelectorAll('tr')].find((row) => row.cells[0].firstChild?.textContent === {name!r} && row.offsetParent)
  ?.querySelector('[data-label="{column}"]')"""


def check_durable(page, consumer):
    """The page follows the cursor of a consumer, and is never ahead of it."""

    def cursor():
        metrics = urllib.request.urlopen(f"http://{consumer['admin']}/metrics", timeout=TIMEOUT_SECONDS).read().decode()
        # The other producer has no cookies.
        return max(map(int, re.findall(r"^consumer_cursor_sequence\{.*\} (\d+)$", metrics, re.MULTILINE)))

    cell = CELL.format(name=consumer["name"], column="durable up to")
    durable = f"Number({cell}.textContent.replaceAll(',', ''))"
    page.wait(f"{durable} >= {cursor()}")
    shown, after = page.run(durable), cursor()
    return [f"producer: durable up to {shown}, but the consumer's cursor is {after}"] if shown > after else []


def seconds(text):
    """A text such as `2.5 s` or `1 min 3 s`; 0 for shorter times."""
    parts = re.findall(r"(\d+(?:\.\d+)?) (s|min)(?: |$)", text)
    return sum(float(number) * {"s": 1, "min": 60}[unit] for number, unit in parts)


def wait_for(page, what, expression, is_reached):
    """Waits until the text that an expression selects satisfies a condition."""
    end = time.monotonic() + TIMEOUT_SECONDS
    text = None
    while time.monotonic() < end:
        text = page.run(f"({expression})?.textContent ?? ''")
        if is_reached(text):
            return []
        time.sleep(0.2)
    return [f"{what}: {text}"]


def check_graphs(page, address):
    """Graphs show what was before the page was opened."""
    page.show(address, 1280, "light")
    drawn = page.run("document.querySelector('svg path:last-child').getAttribute('d').split('L').length")
    return [] if drawn > 10 else [f"a graph of a new page has {drawn} values"]


def check_many(page, address, http):
    """A table shows ten rows, all, or those that contain a text."""
    for dsp in range(9001, 9031):
        request = urllib.request.Request(f"http://{http}/?d={dsp}&b=x", headers={"Cookie": "uid=u"})
        urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS).close()
    page.show(address, 1280, "light")
    table = CARD.format(title="DSPs")
    rows = f"{table}.querySelectorAll('tbody tr').length"
    page.wait(f"{rows} === 10 && !{table}.querySelector('.tools').hidden")
    page.run(f"{table}.querySelector('button').click()")
    page.wait(f"{rows} >= 30")
    page.run(f"{{const input = {table}.querySelector('input'); input.value = '900'; input.dispatchEvent(new Event('input'))}}")
    page.wait(f"{rows} === 9")
    return []


def check_layout(page, where):
    """No text leaves its cell or card, no word of a tile is broken, and idle graphs draw nothing."""
    found = page.run("""[...document.querySelectorAll('.headline, h2, td span, .card p')].filter((node) => node.offsetParent
      && node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).display !== 'inline').map((node) => node.textContent)""")
    found += page.run("""[...document.querySelectorAll('td > span')].filter((node) => {
      const [text, cell] = [node, node.parentNode].map((it) => it.getBoundingClientRect());
      return node.offsetParent && (text.left < cell.left - 1 || text.right > cell.right + 1); }).map((node) => node.textContent)""")
    dots = page.run("""[...document.querySelectorAll('svg')].filter((node) => getComputedStyle(node).visibility !== 'hidden'
      && /maximum 0(?![.])/.test(node.getAttribute('aria-label'))).length""")
    return [f"{where}: {text} does not fit" for text in found] + [f"{where}: an idle graph is drawn"] * dots


def check_hanging_store(page, producer, node, directory):
    """A store that hangs is seen at the node and at the producer, although everything is delivered."""
    os.kill(node["mongod"], signal.SIGSTOP)
    try:
        page.show(node["admin"], 1280, "light")
        errors = []
        for title in ("Oldest waiting cookie", "Store latency"):
            headline = CARD.format(title=title) + ".querySelector('.headline')"
            errors += wait_for(page, title, headline, lambda text: seconds(text) >= 6)
        if "bad" not in page.run(CARD.format(title="Oldest waiting cookie") + ".className"):
            errors.append("the oldest waiting cookie is not red")
        page.screenshot(f"{directory}/consumer-hanging-store.png")
        if not page.run(LONG_STORE):
            errors.append("a long store does not leave its line to the other parts of the header")
        page.show(producer, 1280, "light")
        cell = CELL.format(name=node["name"], column="not durable")
        errors += wait_for(page, "not durable", cell, lambda text: re.fullmatch(r"[\d.,]+( [kM])?", text) and text != "0")
        errors += wait_for(page, "not durable for", CELL.format(name=node["name"], column="for"), lambda text: seconds(text) >= 6)
        errors += wait_for(page, "state", CELL.format(name=node["name"], column="state"), lambda text: text == "connected")
        note = CARD.format(title="Delivered") + ".querySelector('p.bad')"
        errors += wait_for(page, "tile", note, lambda text: text.startswith("not durable for ") and seconds(text) >= 6)
        page.screenshot(f"{directory}/producer-hanging-store.png")
        return errors
    finally:
        os.kill(node["mongod"], signal.SIGCONT)


# Whether the parts of the header are in one line, and the full store is in the title, while the store is long.
LONG_STORE = """(() => {
  const [store, ready, link] = ['store', 'ready', 'link'].map((id) => document.getElementById(id));
  const isOnLine = () => [store, link].every((it) => it.getBoundingClientRect().top < ready.getBoundingClientRect().bottom);
  const isTitled = store.textContent.startsWith('mongodb://') && store.title === store.textContent;
  const wasOnLine = isOnLine();
  store.textContent += '/?replicaSet=' + 'x'.repeat(300);
  return isTitled && wasOnLine && isOnLine() && store.scrollWidth > store.clientWidth; })()"""


def check_losses(page, producer, consumer, directory):
    """After losses, the first tile is red, and so is the subscriber at the producer, in its first rows."""
    errors = []
    for address in (producer, consumer["admin"]):
        page.show(address, 1280, "light")
        page.wait("document.querySelector('#cards .card').classList.contains('bad')")
        title = page.run("document.querySelector('#cards h2').textContent")
        if title != "Lost in the last hour":
            errors.append(f"the first tile is {title}")
        page.screenshot(f"{directory}/{'producer' if address == producer else 'consumer'}-lost.png")
    page.show(producer, 1280, "light")
    page.wait(f"{CELL.format(name=consumer['name'], column='lost')}?.firstChild.className.endsWith('bad')")
    first = page.run("document.querySelector('tr [data-label=lost] span').className")
    return errors + ([] if first.endswith("bad") else ["a subscriber without losses comes first"])


def check_disconnected(page, consumer, process_id):
    """A producer that is gone has no lag."""
    os.kill(process_id, signal.SIGTERM)
    page.show(consumer, 1280, "light")
    page.wait("[...document.querySelectorAll('[data-label=connected]')].some((cell) => cell.textContent === 'no')")
    rows = page.run("""[...document.querySelectorAll('tr')].map((row) => [...row.querySelectorAll('[data-label]')].map((cell) =>
      cell.textContent)).filter((cells) => cells.length > 2 && cells[0] === 'no')""")
    return [] if rows and all(cells[1] == "–" for cells in rows) else [f"rows of gone producers: {rows}"]


def check_plans(page, producer, directory):
    """A DSP to which a browser was sent twice, and from which it returned once."""
    headers = {"Cookie": "uid=u", "Content-Type": "text/plain"}
    for path, body in (("cookie_sync", b"{}"), ("cookie_sync", b"{}"), ("setuid?bidder=partner&uid=1&p=1", None)):
        request = urllib.request.Request(f"http://{producer['http']}/{path}", body, headers)
        urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS).close()
    page.show(producer["admin"], 1280, "light")
    cells = CARD.format(title="Sync plans") + ".querySelector('tbody tr')"
    errors = wait_for(page, "plans", cells, lambda text: text == "17" + "2" + "1" + "1" + "50.0 %")
    page.screenshot(f"{directory}/producer-plans.png")
    return errors


def check_jobs(page, revalidator):
    """The last ten ended jobs are shown with their results, and tiles without a value are those of times."""
    page.show(revalidator["admin"], 1280, "light")
    errors, [oldest, *last] = [], revalidator["jobs"]
    rows = CARD.format(title="Jobs") + ".querySelectorAll('tbody tr')"
    page.wait(f"{rows}.length === {len(last)}")
    if page.run(f"document.body.textContent.includes({oldest!r})"):
        errors.append(f"{oldest} is older than the last ten jobs")
    for job in last:
        found = [page.run(CELL.format(name=job, column=column) + ".textContent")
                 for column in ("state", "resumes", "checked", "transmitted", "progress")]
        if found != ["finished", "–", "3", "3", "100.0 %"]:
            errors.append(f"job {job}: {found}")
    # Rates need a second sample.
    page.wait(CARD.format(title="Checked") + ".querySelector('.headline').textContent !== '–'")
    tiles = page.run("""[...document.querySelectorAll('#cards .card')].filter((card) => /–/.test(card.textContent))
      .map((card) => card.querySelector('h2').textContent)""")
    return errors + [f"{title} has no value" for title in tiles if title != "Response time of origins"]


def check_limiter(page, limiter):
    """A call under two limits counts once."""
    page.show(limiter["admin"], 1280, "light")
    headline = CARD.format(title="Requests") + ".querySelector('.headline').textContent"
    page.run(f"globalThis.highest = 0; setInterval(() => globalThis.highest = Math.max(globalThis.highest, parseFloat({headline}) || 0), 50)")
    for _ in range(100):
        url = f"http://{limiter['http']}/v1/limits/partner/client-7/reserve"
        request = urllib.request.Request(url, data=b"{}", headers={"content-type": "application/json"})
        urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS).close()
    page.wait("globalThis.highest > 0")
    time.sleep(2.5)
    highest = page.run("globalThis.highest")
    return [] if highest <= 120 else [f"100 calls are shown as {highest}/s"]


def wait_lag(producer, name):
    """Waits until a stopped subscriber lags far more than the producer keeps for it. It first fills the buffers of its connection."""
    end = time.monotonic() + 50
    while time.monotonic() < end:
        time.sleep(1)
        status = json.load(urllib.request.urlopen(f"http://{producer}/v1/status", timeout=TIMEOUT_SECONDS))
        [node] = [node for node in status["nodes"] if node["node"] == name]
        if node["lag_cookies"] > 20000:
            return
    raise AssertionError(f"the lag of a stopped subscriber is small: {node}")


def check_silence(page, producer, consumer, directory):
    """A page whose process does not respond says so in red, and recovers."""
    if (title := page.run("document.title")) != f"{consumer['name']} · consumer · {consumer['admin']}":
        return [f"the title is {title}"]
    os.kill(consumer["pid"], signal.SIGSTOP)
    try:
        page.wait("document.getElementById('ready').textContent.startsWith('no response since ')")
        page.screenshot(f"{directory}/consumer-stopped.png")
        colors = page.run("['header', '#ready'].map((it) => getComputedStyle(document.querySelector(it)).color)")
        wait_lag(producer, consumer["name"])
    finally:
        os.kill(consumer["pid"], signal.SIGCONT)
    page.wait("!document.body.classList.contains('stale') && document.getElementById('ready').textContent === 'ready'")
    normal = page.run("getComputedStyle(document.querySelector('header')).color")
    return [] if colors[0] == colors[1] != normal else [f"the header is {colors[0]}, normally {normal}"]


def check(page, about):
    pages = {process: about[process]["admin"] for process in ("limiter", "revalidator", "producer", "consumer")}
    hostile, directory, [user, uid] = about["hostile"], about["directory"], about["match"]
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
                errors += check_layout(page, where)
                page.screenshot(f"{directory}/{process}-{width}-{scheme}.png")
        if process == "producer":
            errors += check_durable(page, about["consumer"])
        for seconds, shown in TIMES.items():
            if page.run(f"time({seconds})") != shown:
                errors.append(f"{process}: {seconds} s is shown as {page.run(f'time({seconds})')}")
    # The consumer's page was shown last.
    page.run(f"document.getElementById('user').value = {json.dumps(user)}; document.querySelector('form button').click()")
    page.wait(f"document.getElementById('uids').textContent.includes({json.dumps(uid)})")
    page.screenshot(f"{directory}/consumer-lookup.png")
    errors += check_graphs(page, pages["consumer"])
    errors += check_many(page, pages["producer"], about["producer"]["http"])
    errors += check_hanging_store(page, pages["producer"], about["on_mongod"], directory)
    errors += check_plans(page, about["other_producer"], directory)
    errors += check_jobs(page, about["revalidator"])
    errors += check_limiter(page, about["limiter"])
    page.show(pages["consumer"], 1280, "light")
    errors += check_silence(page, pages["producer"], about["consumer"], directory)
    errors += check_losses(page, pages["producer"], about["consumer"], directory)
    errors += check_disconnected(page, pages["consumer"], about["other_producer"]["pid"])
    addresses = [*pages.values(), about["on_mongod"]["admin"], about["other_producer"]["admin"]]
    return errors + violations(page, addresses)


def main():
    chromium, about = sys.argv[1:]
    with browser(chromium) as port:
        errors = check(StatusPage(port), json.loads(about))
    print("\n".join(errors) or "no errors")
    sys.exit(1 if errors else 0)


main()
