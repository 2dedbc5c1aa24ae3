#!/usr/bin/env python3
"""Creates a job for revalidators through NATS. Needs only Python 3.

    maker.py 127.0.0.1:4222 APP < assets.ndjson
    maker.py 127.0.0.1:4222 --cancel JOB

Each line is an asset: {"url": "https://…"}, optionally with key, eTag, hash and lastModified. Prints the id of the job to stderr, and
each result as a line of JSON. It ends when the job ends, even if an operator or a revalidator cancels the job.
"""

import base64
import json
import secrets
import socket
import sys
import time

JOBS, WORK, RESULTS = "$KV.revalidator_jobs.", "revalidator.work.", "revalidator.results."
BATCH = 100


class Nats:
    """A connection that sends a message and waits for its response."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.file = socket.create_connection((host, int(port)), timeout=30).makefile("rwb")
        self.file.readline()  # INFO
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
        # Unique to this process, because every subscriber of a subject receives its messages.
        self.inbox = f"_INBOX.{secrets.token_hex(8)}"
        self.write(f"CONNECT {json.dumps(options)}\r\nSUB {self.inbox} 1\r\n".encode())

    def write(self, data):
        self.file.write(data)
        self.file.flush()

    def request(self, subject, payload, **headers):
        fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"NATS/1.0\r\n{fields}\r\n".encode()
        sizes = f"{len(head)} {len(head) + len(payload)}"
        self.write(f"HPUB {subject} {self.inbox} {sizes}\r\n".encode() + head + payload + b"\r\n")
        while True:
            words = self.file.readline().decode().split()
            if words[0] == "PING":
                self.write(b"PONG\r\n")
            elif words[0] in ("MSG", "HMSG"):
                body = self.file.read(int(words[-1]) + 2)[:-2]
                if words[0] == "HMSG":
                    sys.exit(f"{subject}: no stream; is a revalidator running?")
                return json.loads(body)
            elif words[0] == "-ERR":
                sys.exit(" ".join(words))

    def publish(self, subject, value, **headers):
        """Writes a message into a stream; returns its sequence number, or None if the expected sequence number is outdated."""
        response = self.request(subject, json.dumps(value).encode(), **headers)
        if "error" in response:
            if response["error"].get("err_code") == 10071:
                return None
            sys.exit(f"{subject}: {response['error']}")
        return response["seq"]

    def message(self, stream, **query):
        """Reads a message of a stream; returns its sequence number and its JSON, or None if there is no such message."""
        response = self.request(f"$JS.API.STREAM.MSG.GET.{stream}", json.dumps(query).encode())
        if "error" in response:
            return None
        message = response["message"]
        return message["seq"], json.loads(base64.b64decode(message["data"]))


def change(nats, job, **fields):
    """Changes an open job with compare-and-set. Without fields, only checks that the job is open."""
    while True:
        revision, status = nats.message("KV_revalidator_jobs", last_by_subj=JOBS + job) or sys.exit(f"unknown job {job}")
        state = status["serverState"], status["revalidatorState"]
        if "Cancelled" in state or "Finished" in state:
            sys.exit(f"job ended: {status.get('reason')}")
        status.update(fields)
        if not fields or nats.publish(JOBS + job, status, Nats_Expected_Last_Subject_Sequence=revision):
            return


def send(nats, job, batch, attempt, assets):
    message = {"jobId": job, "batch": batch, "attempt": attempt, "assets": assets}
    nats.publish(WORK + job, message, Nats_Msg_Id=f"{job}/{batch}{'r' if attempt > 1 else ''}")


def cancel(nats, job):
    ended = int(time.time() * 1000)
    change(nats, job, serverState="Cancelled", revalidatorState="Cancelled", reason="cancelled by its maker", endedAt=ended)


def make(nats, app):
    now = int(time.time() * 1000)
    job = f"{app}-{now}-python"
    status = {
        "allowDelete": "none", "appName": app, "assetCount": 0, "batchCount": 0, "forceUpdate": False, "jobId": job,
        "revalidatorsNeeded": 1, "revalidatorState": "Waiting", "serverState": "Transmitting", "createdAt": now, "foreign": True,
    }
    nats.publish(JOBS + job, status, Nats_Expected_Last_Subject_Sequence=0)
    print(job, file=sys.stderr, flush=True)
    sys.stdin.reconfigure(encoding="utf-8-sig")
    assets = [json.loads(line) for line in sys.stdin if line.strip()]
    batches = [assets[start : start + BATCH] for start in range(0, len(assets), BATCH)]
    for number, batch in enumerate(batches):
        send(nats, job, number, 1, batch)
    change(nats, job, assetCount=len(assets), batchCount=len(batches), serverState="Wait-For-Results")
    expected, seen, failed, position = len(batches), set(), [], 1
    while len(seen) < expected:
        found = nats.message("REVALIDATOR_RESULTS", seq=position, next_by_subj=RESULTS + job)
        if not found:
            change(nats, job)
            time.sleep(0.1)
            continue
        position, result = found[0] + 1, found[1]
        if (result["batch"], result["attempt"]) in seen:
            continue
        seen.add((result["batch"], result["attempt"]))
        for one in result["results"]:
            if one["outcome"] == "failed" and result["attempt"] == 1:
                failed.append(one["asset"])
            else:
                print(json.dumps(one))
        # The failed assets are retried once, after all other assets.
        if len(seen) == len(batches):
            retries = [failed[start : start + BATCH] for start in range(0, len(failed), BATCH)]
            for number, batch in enumerate(retries):
                send(nats, job, number, 2, batch)
            expected += len(retries)
    ended = int(time.time() * 1000)
    change(nats, job, serverState="Finished", revalidatorState="Finished", endedAt=ended)


if sys.argv[2] == "--cancel":
    cancel(Nats(sys.argv[1]), sys.argv[3])
else:
    make(Nats(sys.argv[1]), sys.argv[2])
