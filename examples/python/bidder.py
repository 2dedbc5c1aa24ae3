"""Looks up the buyer uids of a user, as a bidder does for each ad request.

    python bidder.py USER mongodb://127.0.0.1:27017 17 42       (pip install pymongo)
    python bidder.py USER http://127.0.0.1:9091 17 42

The first command reads the node's MongoDB. The second command uses the consumer's lookup API, which works with every store. The
output is a JSON object that maps each DSP to the buyer uid for `user.buyeruid` in its bid requests. A response slower than
`--timeout` is an error, because a bidder can wait only some milliseconds.
"""

import argparse
import datetime
import http.client
import json
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

# The consumer's --ttl. Older cookies may still be stored, because they are deleted in the expiry window only.
TTL = datetime.timedelta(days=14)


class Mongodb:
    """One document per user in each DSP's database: `{_id: user id, b: buyer uid, t: time of acceptance}`."""

    def __init__(self, uri, timeout):
        import pymongo

        # The timeout includes server selection and connecting.
        self.client = pymongo.MongoClient(uri, timeoutMS=int(1000 * timeout))
        self.threads = ThreadPoolExecutor(8)

    def buyer_uids(self, user_id, dsp_ids):
        oldest = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None) - TTL

        def find(dsp_id):
            # Uses only the index on `_id`; the time is compared here.
            found = self.client[str(dsp_id)].cookies.find_one({"_id": user_id})
            return found["b"] if found and found["t"] >= oldest else None

        found = zip(dsp_ids, self.threads.map(find, dsp_ids))
        return {dsp_id: buyer_uid for dsp_id, buyer_uid in found if buyer_uid is not None}


class Lookup:
    """The consumer's `GET /v1/users/<user id>`: all DSPs in one response, without expired cookies."""

    def __init__(self, url, timeout):
        # Keep-alive: one connection serves all requests.
        self.connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=timeout)

    def buyer_uids(self, user_id, dsp_ids):
        self.connection.request("GET", "/v1/users/" + urllib.parse.quote(user_id, safe=""))
        response = self.connection.getresponse()
        body = json.loads(response.read())
        if response.status == 404:
            return {}
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {body}")
        known = body["buyer_uids"]
        return {dsp_id: known[str(dsp_id)] for dsp_id in dsp_ids if str(dsp_id) in known}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("user_id", metavar="USER")
    parser.add_argument("store", metavar="STORE")
    parser.add_argument("dsp_ids", metavar="DSP", nargs="+", type=int)
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=0.1)
    args = parser.parse_args()
    kind = Lookup if args.store.startswith("http://") else Mongodb
    print(json.dumps(kind(args.store, args.timeout).buyer_uids(args.user_id, args.dsp_ids)))


main()
