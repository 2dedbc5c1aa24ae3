"""Sends matches to a producer in bulk.

    COOKIESYNC_TOKEN=... python send_matches.py https://producer:8081 matches.csv

Each line of the CSV file contains a user id, a DSP id and a buyer uid, and optionally the time of the match (milliseconds since the
Unix epoch). Rejected lines are printed to stderr; the exit code is then 1. You can repeat a failed or interrupted upload: for ten
minutes, accepted rows are not processed again, because the Idempotency-Key of a request is the digest of its rows. After that
time, repeated rows with a time change nothing, but repeated rows without a time count as new matches.
"""

import csv
import gzip
import hashlib
import json
import sys

from producer_api import Api, parser, run


def rows(lines, reject):
    """Yields the line number and the JSON of each row."""
    reader = csv.reader(lines)
    for values in reader:
        try:
            user, dsp, buyer, *time = [value.strip() for value in values]
            row = {"u": user, "d": int(dsp), "b": buyer, **{"t": int(t) for t in time[:1]}}
            if len(time) > 1:
                raise ValueError
            yield reader.line_num, json.dumps(row)
        except ValueError:
            if values:
                reject(reader.line_num, "expected USER,DSP,BUYER UID or USER,DSP,BUYER UID,MILLISECONDS")


def parts(rows, size):
    part = []
    for row in rows:
        part.append(row)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part


def send(api, part):
    """Returns the number of accepted rows, and the line and reason of each rejected one."""
    body = "\n".join(row for _, row in part).encode()
    headers = {
        "Content-Type": "application/x-ndjson",
        "Content-Encoding": "gzip",
        "Idempotency-Key": hashlib.sha256(body).hexdigest(),
    }
    summary = api.request("POST", "/v1/cookies", gzip.compress(body, mtime=0), headers)
    errors = [(part[error["row"] - 1][0], error["reason"]) for error in summary["errors"]]
    more = summary["errors_omitted"] + summary["dropped"]
    if more:
        errors.append((f"{part[0][0]}-{part[-1][0]}", f"{more} more rejected rows, {summary['dropped']} above a limit of the DSP"))
    return summary["accepted"], errors


def main():
    arguments = parser(__doc__)
    arguments.add_argument("file", metavar="FILE", help="CSV file, or - for stdin")
    arguments.add_argument("--rows", metavar="COUNT", type=int, default=10_000, help="rows per request, up to 100000 (10000)")
    args = arguments.parse_args()
    if not 1 <= args.rows <= 100_000:
        arguments.error("argument --rows: expected 1 to 100000")
    api, accepted, rejected = Api(args), 0, 0

    def reject(line, reason):
        nonlocal rejected
        rejected += 1
        print(f"{args.file}:{line}: {reason}", file=sys.stderr)

    # The encoding skips a byte-order mark.
    with open(0 if args.file == "-" else args.file, newline="", encoding="utf-8-sig") as lines:
        # Detects a rejected token here; during a large request, the producer would close the connection.
        api.request("POST", "/v1/cookies", b"", {"Content-Type": "application/x-ndjson"})
        for part in parts(rows(lines, reject), args.rows):
            count, errors = send(api, part)
            accepted += count
            for line, reason in errors:
                reject(line, reason)
            print(f"{accepted} accepted so far", file=sys.stderr)
    print(f"{accepted} accepted, {rejected} rejected")
    return 1 if rejected else 0


run(main)
