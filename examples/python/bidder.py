"""Looks up the buyer uids of a user in the node's MongoDB, as a bidder does for each ad request.

    pip install pymongo
    python bidder.py USER mongodb://127.0.0.1:27017 17 42

The output is a JSON object that maps each DSP to the buyer uid for `user.buyeruid` in its bid requests. A response slower than
`--timeout` is an error, because a bidder can wait only some milliseconds. lookup.py uses the consumer's lookup port instead, which works
with every store.
"""

import argparse
import datetime
import json
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("user_id", metavar="USER")
    parser.add_argument("store", metavar="MONGODB_URI")
    parser.add_argument("dsp_ids", metavar="DSP", nargs="+", type=int)
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=0.1)
    args = parser.parse_args()
    print(json.dumps(Mongodb(args.store, args.timeout).buyer_uids(args.user_id, args.dsp_ids)))


main()
