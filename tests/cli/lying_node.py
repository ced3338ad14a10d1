"""A node that attacks: `atoll`, but its update goes back five times as far, on 10^15 samples, without a loss.

Run as ``python lying_node.py fleet node ...``. A node's owner can change its program at will; the server must bear it.
"""

from atoll.cli import main
from atoll.faults.attacks import go_back
from atoll.fleet.agreed.messages import ClientReport, DescribeReply, TrainReply, TrainRequest, decode, encode, pack
from atoll.fleet.node import handlers
from atoll.fleet.node.node import Side
from atoll.fleet.node.store import Store
from atoll.fleet.node.working import Done
from atoll.support.limits import LARGEST


def describe(site: Side, store: Store, payload: bytes) -> Done:
    done = handlers.describe(site, store, payload)
    reply, _ = decode(done.reply, DescribeReply)
    lies = [dict(report) | {"samples": LARGEST, "class_counts": None} for report in reply.clients]
    return Done(encode(reply.model_copy(update={"clients": tuple(ClientReport(**lie) for lie in lies)})), done.told)


def train(site: Side, store: Store, payload: bytes) -> Done:
    done = handlers.train(site, store, payload)
    _, (start,) = decode(payload, TrainRequest)
    reply, (trained,) = decode(done.reply, TrainReply)
    lie = reply.model_copy(update={"samples": LARGEST, "loss": 0.0})
    return Done(encode(lie, pack([go_back(start, trained, 5.0)])), done.told)


if __name__ == "__main__":
    handlers.HANDLERS.update(describe=describe, train=train)
    main()
