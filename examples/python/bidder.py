"""What a bidder does for each ad request: which DSP knows this user under which name?

    python bidder.py USER mongodb://127.0.0.1:27017 17 42       (pip install pymongo)
    python bidder.py USER http://127.0.0.1:9091 17 42

The first asks the node's MongoDB, the second the consumer's own lookup, whichever store it has. The answer is one JSON object, the
buyer uid by DSP, of those DSPs that know the user: what goes into `user.buyeruid` of each DSP's bid request. A bid request has some
milliseconds: rather no buyer uid than a late one, so an answer that takes longer than `--patience` is an error.
"""

import argparse
import datetime
import http.client
import json
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

# The consumer's --ttl. A cookie that is older may still be there, since expired ones are deleted at night alone.
TTL = datetime.timedelta(days=14)


class Mongodb:
    """One document for each user in each DSP's database: `{_id: user id, b: buyer uid, t: when it was accepted}`."""

    def __init__(self, uri, patience):
        import pymongo

        # Bounds the whole of each call, with what the driver does to find and reach the server.
        self.client = pymongo.MongoClient(uri, timeoutMS=int(1000 * patience))
        self.threads = ThreadPoolExecutor(8)

    def buyer_uids(self, user_id, dsp_ids):
        oldest = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None) - TTL

        def find(dsp_id):
            # By `_id` alone, which is one step in its index; the time is compared here.
            found = self.client[str(dsp_id)].cookies.find_one({"_id": user_id})
            return found["b"] if found and found["t"] >= oldest else None

        found = zip(dsp_ids, self.threads.map(find, dsp_ids))
        return {dsp_id: buyer_uid for dsp_id, buyer_uid in found if buyer_uid is not None}


class Lookup:
    """The consumer's `GET /v1/users/<user id>`: all DSPs in one answer, without the expired."""

    def __init__(self, url, patience):
        # Kept open: one connection serves one request after the other.
        self.connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=patience)

    def buyer_uids(self, user_id, dsp_ids):
        self.connection.request("GET", "/v1/users/" + urllib.parse.quote(user_id, safe=""))
        answer = self.connection.getresponse()
        body = json.loads(answer.read())
        if answer.status == 404:
            return {}
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {body}")
        known = body["buyer_uids"]
        return {dsp_id: known[str(dsp_id)] for dsp_id in dsp_ids if str(dsp_id) in known}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("user_id", metavar="USER")
    parser.add_argument("store", metavar="STORE")
    parser.add_argument("dsp_ids", metavar="DSP", nargs="+", type=int)
    parser.add_argument("--patience", metavar="SECONDS", type=float, default=0.1)
    asked = parser.parse_args()
    kind = Lookup if asked.store.startswith("http://") else Mongodb
    print(json.dumps(kind(asked.store, asked.patience).buyer_uids(asked.user_id, asked.dsp_ids)))


main()
