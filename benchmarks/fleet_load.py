"""Load one superlink with many nodes that compute nothing, over TLS on this machine, and see what fails first.

Run:  python benchmarks/fleet_load.py [--nodes N ...] [--turns N] [--bytes N ...] [--seconds S] [--kills N] [--out DIR]

All nodes are threads of one process, each with its own key and connection, and make the same calls as a real node.
Prints a row for each number of nodes and length of payload:
- seconds until all nodes were online, or how many were after --seconds, which also limits an exchange;
- median and longest seconds of an exchange (a payload to every node at once, as many other bytes back from each);
- missing answers, and calls that the superlink refused, by status;
- the most memory that server, superlink and the nodes' process had, MB, and the superlink's seconds of CPU.
With --kills the superlink is killed in that many more exchanges, at any moment: their median, 95th percentile and
longest seconds, and the answers that are missing.
With --out it writes fleet_load.json.
"""

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from atoll.fleet.agreed.transport import Failure
from atoll.fleet.flower import superlink
from atoll.fleet.flower.flower_fleet import FlowerFleet
from atoll.fleet.flower.superlink import end_child, free_port, start_child
from atoll.fleet.flower.wire import environment
from atoll.fleet.folder.configuration import read_node
from atoll.fleet.folder.init import FleetPlan, init_fleet


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[50, 100, 200])
    parser.add_argument("--bytes", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=300, help="that nodes, and answers, may take to be there")
    parser.add_argument("--kills", type=int, default=0, help="of the superlink, one in an exchange")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--be", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.be:
        be_nodes(given.be)
        return
    rows = [
        row for nodes in given.nodes for row in measure(nodes, given.bytes, given.turns, given.kills, given.seconds)
    ]
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "fleet_load.json").write_text(json.dumps(rows, indent=2) + "\n")


def be_nodes(folder: Path) -> None:
    """Run all nodes of a fleet; each sends back as many bytes as it receives."""
    from atoll.fleet.flower.flower_node import serve

    def be(place: Path) -> None:
        try:
            serve(read_node(place), lambda task, payload: os.urandom(len(payload)), lambda sentence: None)
        except Exception as error:
            print(f"{place.name} ended: {error}", flush=True)

    for place in sorted((folder / "nodes").iterdir()):
        threading.Thread(target=be, args=[place], daemon=True).start()
    sys.stdin.read()  # until whoever started this ends


def measure(nodes: int, sizes: list[int], turns: int, kills: int, most: float) -> list[dict[str, Any]]:
    """Return a row for each length of payload, with so many nodes."""
    refused = Counter[str]()
    superlink._RESTARTS += kills  # one that dies more often than nine times in a minute is given up
    with tempfile.TemporaryDirectory() as place, open(Path(place) / "nodes.log", "wb") as log:
        plan = FleetPlan(nodes, "127.0.0.1", listen="127.0.0.1", port=free_port())
        configuration, rows = init_fleet(Path(place) / "fleet", plan), list[dict[str, Any]]()
        with FlowerFleet(configuration, lambda sentence: count_refused(sentence, refused)) as fleet:
            words = [__file__, "--be", str(configuration.folder)]
            child = start_child(words, log, environment(configuration.state))
            try:
                there = wait_for(fleet, nodes, most)
                for size in sizes:
                    rows.append({"nodes": nodes} | there | exchange(fleet, size, turns, most))
                    rows[-1] |= {"refused": dict(refused), "ended": Path(log.name).read_text().count("ended:")}
                    rows[-1] |= memory(fleet, child)
                    rows[-1] |= survive(fleet, size, kills, rows[-1]["median_s"], most) if kills else {}
                    refused.clear()
                    print(json.dumps(rows[-1]), flush=True)
            finally:
                child.kill()
                end_child(child)
    return rows


def wait_for(fleet: FlowerFleet, nodes: int, most: float) -> dict[str, float]:
    """Return how many nodes were online, and after how many seconds, at most this many."""
    began = time.monotonic()
    while (there := len(fleet.nodes())) < nodes and time.monotonic() - began < most:
        time.sleep(0.5)
    return {"there": there, "there_s": round(time.monotonic() - began, 1)}


def exchange(fleet: FlowerFleet, size: int, turns: int, most: float) -> dict[str, Any]:
    """Return the seconds of exchanges with all nodes, and why answers did not come."""
    names, seconds, failed = list(fleet.nodes()), list[float](), Counter[str]()
    for _ in range(turns):
        seconds.append(exchange_once(fleet, names, size, most, failed))
    return {
        "bytes": size,
        "median_s": statistics.median(seconds),
        "most_s": max(seconds),
        "answers": turns * len(names) - failed.total(),
        "failed": dict(failed),
    }


def exchange_once(fleet: FlowerFleet, names: list[str], size: int, most: float, failed: Counter[str]) -> float:
    """Return the seconds of an exchange with these nodes; count why answers did not come."""
    payload, began = os.urandom(size), time.monotonic()
    for _, reply in fleet.call(dict.fromkeys(names, b""), "echo", payload, most):
        if isinstance(reply, Failure):
            failed[reply.reason] += 1
    return round(time.monotonic() - began, 2)


def survive(fleet: FlowerFleet, size: int, kills: int, usual: float, most: float) -> dict[str, Any]:
    """Return the seconds of exchanges in which the superlink is killed, each at any moment of a `usual` one."""
    names, seconds, failed, draw = list(fleet.nodes()), list[float](), Counter[str](), random.Random(0)
    for _ in range(kills):
        killing = threading.Timer(draw.uniform(0, usual), lambda: os.kill(fleet.superlink.pid, signal.SIGKILL))
        killing.start()
        seconds.append(exchange_once(fleet, names, size, most, failed))
        killing.join()
    median, high = np.quantile(seconds, [0.5, 0.95]).round(2).tolist()
    return {
        "kills": kills, "killed_median_s": median, "killed_95th_s": high, "killed_most_s": max(seconds),
        "killed_lost": dict(failed),
    }  # fmt: skip


def count_refused(sentence: str, into: Counter[str]) -> None:
    """Count what the superlink says that it has refused."""
    for calls, status in re.findall(r"(\d+) calls \((\d+)", sentence):
        into[status] += int(calls)


def memory(fleet: FlowerFleet, nodes: "subprocess.Popen[bytes]") -> dict[str, int]:
    """Return the most memory of each process, MB, and the superlink's seconds of CPU."""
    found = {"server_mb": os.getpid(), "superlink_mb": fleet.superlink.pid, "nodes_mb": nodes.pid}
    ticks = Path(f"/proc/{fleet.superlink.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    cpu = sum(map(int, ticks)) // os.sysconf("SC_CLK_TCK")
    return {name: most_memory(process) for name, process in found.items()} | {"superlink_cpu_s": cpu}


def most_memory(process: int) -> int:
    """Return the most memory that a process ever had, MB."""
    (line,) = re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return round(int(line) * 1024 / 1e6)


if __name__ == "__main__":
    main()
