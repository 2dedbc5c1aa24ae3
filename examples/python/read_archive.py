"""Reads the archive of all producers (docs/archive.md), as JSON lines, and checks that nothing is missing.

    pip install nats-py grpcio-tools
    python read_archive.py nats://USER:PASSWORD@127.0.0.1:4222/COOKIES --hours 1

It follows the stream until it is interrupted; with `--once`, it ends with the newest message. A missing range is printed to standard
error. A message that was stored twice, or an invalid one, is skipped. The output contains deletions, which have no `buyer_uid`.
"""

import argparse
import asyncio
import json
import pathlib
import struct
import sys
import tempfile
from datetime import datetime, timedelta, timezone
from urllib.parse import unquote

import nats
from google.protobuf.message import DecodeError
from grpc_tools import protoc

# Directory of cookiesync/v1/cookiesync.proto, from which the code is generated at startup.
PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto"


def generated():
    with tempfile.TemporaryDirectory() as out:
        if protoc.main(["protoc", f"-I{PROTO}", f"--python_out={out}", "cookiesync/v1/cookiesync.proto"]):
            sys.exit("protoc failed")
        sys.path.insert(0, out)
        from cookiesync.v1 import cookiesync_pb2

        return cookiesync_pb2


pb = generated()


def events(payload):
    """The events of a message: each follows a zero byte and its length. Raises ValueError or DecodeError if they are invalid."""
    while payload:
        if len(payload) < 5 or payload[0]:
            raise ValueError("invalid prefix")
        (length,) = struct.unpack(">I", payload[1:5])
        if length > len(payload) - 5:
            raise ValueError("truncated")
        yield pb.Event.FromString(payload[5 : 5 + length])
        payload = payload[5 + length :]


class Reader:
    """Prints the cookies of each epoch once, in order."""

    def __init__(self):
        # The next sequence number, by producer and epoch.
        self.next = {}

    def range(self, epoch, first, last, reason):
        """Reports what is missing before `first`; returns the first new sequence number."""
        expected = self.next.get(epoch, first)
        if first > expected:
            print(f"{epoch}: {expected} to {first - 1} are missing in the archive", file=sys.stderr)
        if reason and last >= expected:
            print(f"{epoch}: {max(first, expected)} to {last} were not archived: {reason}", file=sys.stderr)
        self.next[epoch] = max(expected, last + 1)
        return max(first, expected)

    def message(self, subject, payload):
        _, producer, epoch = subject.split(".")
        epoch = (unquote(producer), int(epoch))
        for event in list(events(payload)):
            if event.HasField("gap"):
                self.range(epoch, event.gap.first_sequence, event.gap.last_sequence, "evicted")
            if not event.HasField("chunk") or event.chunk.epoch != epoch[1]:
                continue
            chunk = event.chunk
            first = self.range(epoch, chunk.first_sequence, chunk.first_sequence + chunk.count - 1, None)
            for cookie in chunk.cookies[first - chunk.first_sequence :]:
                accepted = (chunk.accepted_unix_micros - cookie.age_micros) / 1e6
                row = {"user_id": cookie.user_id, "dsp_id": cookie.dsp_id, "accepted": accepted}
                print(json.dumps(row if cookie.deleted else {**row, "buyer_uid": cookie.buyer_uid}), flush=True)


async def read(args):
    servers, stream = args.archive.rsplit("/", 1)
    client = await nats.connect(servers.split(","))
    since = datetime.now(timezone.utc) - timedelta(hours=args.hours)
    config = nats.js.api.ConsumerConfig(
        deliver_policy=nats.js.api.DeliverPolicy.BY_START_TIME, opt_start_time=since.isoformat()
    )
    # An ordered consumer needs no acknowledgements; the library creates it again after an interruption.
    messages = await client.jetstream().subscribe("cookies.>", stream=stream, ordered_consumer=True, config=config)
    reader = Reader()
    while True:
        try:
            message = await messages.next_msg(timeout=args.idle)
        except nats.errors.TimeoutError:
            if args.once:
                break
            continue
        try:
            reader.message(message.subject, message.data)
        except (ValueError, DecodeError) as error:
            print(f"invalid message {message.metadata.sequence.stream}: {error}", file=sys.stderr)
        if args.once and message.metadata.num_pending == 0:
            break
    await client.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", metavar="URL/STREAM")
    parser.add_argument("--hours", type=float, default=25, help="how far back to begin")
    parser.add_argument("--once", action="store_true", help="end with the newest message")
    parser.add_argument("--idle", type=float, default=5, help="seconds without a message after which --once ends")
    try:
        asyncio.run(read(parser.parse_args()))
    except KeyboardInterrupt:
        pass


main()
