"""Measure what a fleet on Flower costs: a superlink and nodes as processes on this machine, over TLS.

Run:  python benchmarks/fleet.py [--nodes N] [--turns N] [--out DIR]

Prints, as medians over the turns:
- seconds of an exchange (a payload to every node at once, and as many other bytes back from each) by payload;
- bytes per exchange that Flower counts, beside those of the payloads;
- seconds until the superlink answers and until the nodes are online;
- memory of the server, the superlink and a node.
With --out it writes fleet.json. Nodes compute nothing, so all of it is the transport's cost.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from atoll.fleet.flower.calls import control_client
from atoll.fleet.flower.flower_fleet import FlowerFleet
from atoll.fleet.flower.superlink import end_child, free_port, start_child
from atoll.fleet.flower.wire import environment
from atoll.fleet.folder.configuration import FleetConfiguration, read_node
from atoll.fleet.folder.init import FleetPlan, init_fleet

PAYLOADS = (1_000, 100_000, 1_000_000, 10_000_000)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--node", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.node:
        be_node(given.node)
        return
    measured = measure(given.nodes, given.turns)
    print(json.dumps(measured, indent=2))
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "fleet.json").write_text(json.dumps(measured, indent=2) + "\n")


def be_node(folder: Path) -> None:
    """Run a node that sends back as many bytes as it receives."""
    from atoll.fleet.flower.flower_node import serve

    serve(read_node(folder), lambda task, payload: os.urandom(len(payload)), lambda sentence: None)


def measure(nodes: int, turns: int) -> dict[str, object]:
    """Return the costs of a fleet with this many nodes."""
    with tempfile.TemporaryDirectory() as place:
        plan = FleetPlan(nodes, "127.0.0.1", listen="127.0.0.1", port=free_port())
        configuration, children = init_fleet(Path(place) / "fleet", plan), []
        began = time.monotonic()
        with FlowerFleet(configuration) as fleet:
            up = time.monotonic() - began
            try:
                for node in configuration.nodes:
                    words = [__file__, "--node", str(configuration.folder / "nodes" / node.name)]
                    children.append(start_child(words, subprocess.DEVNULL, environment(configuration.state)))
                while len(fleet.nodes()) < nodes:
                    time.sleep(0.2)
                there = time.monotonic() - began - up
                rows = [exchange(fleet, size, turns) for size in PAYLOADS]
                memory = {
                    "server_mb": memory_of(os.getpid()),
                    "superlink_mb": memory_of(fleet.superlink.pid),
                    "node_mb": max(memory_of(child.pid) for child in children),
                }
            finally:
                for child in children:
                    child.terminate()
                    end_child(child)
    return {"nodes": nodes, "superlink_up_s": up, "nodes_there_s": there, "exchanges": rows, "memory": memory}


def exchange(fleet: FlowerFleet, size: int, turns: int) -> dict[str, float]:
    """Return the median seconds and the bytes of an exchange with all nodes."""
    names, seconds = list(fleet.nodes()), list[float]()
    before = counted(fleet.configuration)
    for _ in range(turns):
        payload, began = os.urandom(size), time.monotonic()
        replies = dict(fleet.call(dict.fromkeys(names, b""), "echo", payload, 300))
        seconds.append(time.monotonic() - began)
        assert all(isinstance(reply, bytes) and len(reply) == size for reply in replies.values()), names
    return {
        "payload_bytes": size,
        "median_s": round(statistics.median(seconds), 3),
        "least_s": round(min(seconds), 3),
        "most_s": round(max(seconds), 3),
        "bytes_of_payloads": 2 * len(names) * size,
        "bytes_counted": round((counted(fleet.configuration) - before) / turns),
    }


def counted(configuration: FleetConfiguration) -> int:
    """Return the bytes that Flower has counted to and from nodes."""
    from flwr.proto.control_pb2 import ListRunsRequest

    with control_client(configuration) as control:
        runs = control.ListRuns(ListRunsRequest()).run_dict.values()
    return sum(run.bytes_sent + run.bytes_recv for run in runs)


def memory_of(process: int) -> int:
    """Return the most memory that a process ever had, MB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return round(int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024 / 1e6)


if __name__ == "__main__":
    main()
