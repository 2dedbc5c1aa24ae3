"""Deletes the cookies of users through the API of a producer, and archives a receipt of each deletion.

    COOKIESYNC_TOKEN=... python delete_users.py https://producer-1:8081 users.txt receipts --nodes 64

Each line of the file is a user id. `receipts/USER.json` contains the receipt. Its `done` is true once all nodes have removed the
cookies. Run the same command again after an interruption, or if the exit code is 1 because some deletions are not done. It skips
completed deletions and continues the others. Use a new directory for each list; otherwise a later deletion of the same user is
skipped. The URL must lead to a single producer, because only the producer that issued a receipt can confirm it.
"""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

from producer_api import Api, parser, run

# Number of concurrent deletions. Each request waits until enough nodes have stored the deletion.
THREADS = 8
POLL_SECONDS = 0.5


class Archive:
    """One file per user, replaced atomically."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)

    def path(self, user):
        return self.directory / f"{quote(user, safe='')}.json"

    def read(self, user):
        try:
            return json.loads(self.path(user).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None

    def write(self, user, record):
        new = self.path(user).with_suffix(".new")
        with open(new, "w", encoding="utf-8") as file:
            json.dump({"user": user, **record}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path(user))
        return record


def delete(api, archive, user):
    accepted = api.request("DELETE", f"/v1/users/{quote(user, safe='')}")
    return archive.write(user, {"receipt": accepted["receipt"], "accepted_at": accepted["accepted_at"], "done": False})


def process(api, archive, user, nodes, deadline):
    """Deletes a user unless an earlier run did, and waits for the nodes. Returns the newest state."""
    record = archive.read(user) or delete(api, archive, user)
    has_repeated = False
    while not record["done"]:
        state = api.request("GET", f"/v1/receipts/{quote(record['receipt'], safe='')}")
        if state.get("action") and not has_repeated:
            # Some nodes may have missed the deletion, for example because the producer has restarted.
            record, has_repeated = delete(api, archive, user), True
            continue
        # A producer knows only the nodes that have connected since its start.
        state["done"] &= state["nodes"]["confirmed"] >= nodes
        record = {**record, **state, "checked_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        if record["done"] or time.monotonic() > deadline:
            archive.write(user, record)
            break
        time.sleep(POLL_SECONDS)
    return record


def main():
    arguments = parser(__doc__)
    arguments.add_argument("file", metavar="FILE", help="user ids, one per line")
    arguments.add_argument("receipts", metavar="DIRECTORY", help="directory for the receipts")
    arguments.add_argument("--nodes", metavar="COUNT", type=int, required=True, help="number of nodes, all of which must confirm")
    arguments.add_argument("--wait", metavar="SECONDS", type=float, default=60, help="maximum time to wait for nodes (60)")
    args = arguments.parse_args()
    users = list(dict.fromkeys(Path(args.file).read_text(encoding="utf-8-sig").split()))
    api, archive, deadline = Api(args), Archive(args.receipts), time.monotonic() + args.wait
    threads = ThreadPoolExecutor(THREADS)
    try:
        records = list(threads.map(lambda user: process(api, archive, user, args.nodes, deadline), users))
    finally:
        threads.shutdown(cancel_futures=True)
    for user, record in zip(users, records):
        if not record["done"]:
            nodes = record["nodes"]
            print(f"{user}: {nodes['confirmed']} of {args.nodes} nodes confirmed, pending {nodes['pending']}, unknown {nodes['unknown']}")
    done = sum(record["done"] for record in records)
    print(f"{done} of {len(users)} deletions are done, receipts in {args.receipts}")
    return 0 if done == len(users) else 1


run(main)
