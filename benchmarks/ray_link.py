"""Train on two Ray nodes with a limited link between them: bytes as the link counts them, and a link that dies.

Run:  python benchmarks/ray_link.py [--out DIR] [--clients 400] [--workers 2] [--mbit 100]

Needs Linux, root and iproute2. Each node is a set of processes in a network namespace of its own; a virtual cable joins
the two, and `tc` limits it in both directions. The run's process is with the head, which has one core; the other node
has the workers. It trains events of FedAvg on the MLP, with each client's model sent and with sums of them, and reads
what the cable counted. Then the cable is cut while an event trains, and the head's worker does the rest. All means must
have the bits of `serial`, or the exit code is 1. With --out it writes link.json.
"""

import argparse
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from wire import cohort_of, make_trainer, single

from atoll import Serial, Trainer
from atoll.aggregation.mean import Combine, average_models
from atoll.engine.cohorts import Cohort
from atoll.executors.ray import cluster
from atoll.executors.ray.ray_executor import Ray
from atoll.local.models import Model
from atoll.local.weights import read_model

HEAD, NODE = "10.77.0.1", "10.77.0.2"
PORT = 6385
CABLE = "atoll0", "atoll1"
CUT_AFTER = 0.3  # of an event's seconds


@dataclass(frozen=True)
class Event:
    """An event over the cable.

    Attributes:
        what: what workers send, or what happened.
        seconds: its duration.
        to_driver: bytes that arrived at the run's machine, all that Ray says included.
        from_driver: bytes that left it.
        same: whether the mean has the bits of `serial`.
    """

    what: str
    seconds: float
    to_driver: int
    from_driver: int
    same: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for link.json")
    parser.add_argument("--clients", type=int, default=400, help="clients of an event")
    parser.add_argument("--workers", type=int, default=2, help="workers on the node beyond the cable")
    parser.add_argument("--mbit", type=float, default=100.0, help="what the cable carries, Mbit/s")
    parser.add_argument("--drive", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.drive:
        print(json.dumps([asdict(event) for event in drive(given.clients, given.workers)]))
        return
    if os.geteuid() or not shutil.which("ip") or not shutil.which("tc"):
        sys.exit("needs root, ip and tc")
    with two_machines(given.mbit) as spaces, ray_nodes(spaces, given.workers):
        drives = ["--drive", "--clients", f"{given.clients}", "--workers", f"{given.workers}"]
        said = subprocess.run(inside(spaces[0], sys.executable, __file__, *drives), stdout=subprocess.PIPE, check=True)
    events = [Event(**each) for each in json.loads(said.stdout.splitlines()[-1])]
    print(f"{'':26}{'seconds':>9}{'MB to the run':>15}{'MB from it':>12}  bits of serial")
    for event in events:
        print(
            f"{event.what:26}{event.seconds:9.1f}{event.to_driver / 1e6:15.2f}{event.from_driver / 1e6:12.2f}"
            f"  {'yes' if event.same else 'NO'}"
        )
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "link.json").write_text(json.dumps([asdict(each) for each in events], indent=1), encoding="utf-8")
    if not all(event.same for event in events):
        sys.exit("a mean differs from that of serial")


def inside(space: str, *command: str) -> list[str]:
    """Return a command that runs in a network namespace."""
    return ["ip", "netns", "exec", space, *command]


def call(*command: str) -> None:
    subprocess.run(command, check=True)


@contextmanager
def two_machines(mbit: float) -> Iterator[tuple[str, str]]:
    """Give two network namespaces with a limited cable between them."""
    spaces = f"atoll-{os.getpid()}-head", f"atoll-{os.getpid()}-node"
    try:
        for space in spaces:
            call("ip", "netns", "add", space)
            call(*inside(space, "ip", "link", "set", "lo", "up"))
        ends = ["ip", "link", "add", CABLE[0], "netns", spaces[0], "type", "veth"]
        call(*ends, "peer", "name", CABLE[1], "netns", spaces[1])
        for space, end, address in zip(spaces, CABLE, (HEAD, NODE), strict=True):
            call(*inside(space, "ip", "addr", "add", f"{address}/24", "dev", end))
            call(*inside(space, "ip", "link", "set", end, "up"))
            limit = ["tbf", "rate", f"{mbit:g}mbit", "burst", "256kb", "latency", "200ms"]
            call(*inside(space, "tc", "qdisc", "add", "dev", end, "root", *limit))
        yield spaces
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


@contextmanager
def ray_nodes(spaces: tuple[str, str], workers: int) -> Iterator[None]:
    """Start the head with one core, and a node with one for each worker, in their namespaces."""
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    ray = [sys.executable, "-W", "ignore", "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
    ray.append(f"--object-store-memory={200 * 2**20}")
    folders = [tempfile.mkdtemp(prefix="atoll-", dir="/tmp") for _ in spaces]
    head = ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={folders[0]}", "--num-cpus=1"]
    node = [f"--address={HEAD}:{PORT}", f"--num-cpus={workers}"]
    processes = []
    try:
        for space, address, folder, how in zip(spaces, (HEAD, NODE), folders, (head, node), strict=True):
            said = Path(folder) / "said"
            with said.open("wb") as out:
                command = inside(space, *ray, *how, f"--node-ip-address={address}")
                processes.append(subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT))
            until = time.monotonic() + 120
            while b"Ray runtime started" not in said.read_bytes():
                if processes[-1].poll() is not None or time.monotonic() > until:
                    sys.exit(f"a node does not start: {said.read_text(encoding='utf-8')}")
                time.sleep(0.2)
        yield
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def drive(clients: int, workers: int) -> Iterator[Event]:
    """Train the events, in the head's namespace."""
    vars(cluster)["_HEALTH_SECONDS"] = 60.0  # this machine does the work of two
    idle = make_trainer(clients)
    trainer = Trainer(idle.module, idle.population, idle.rule, seed=0)
    start = read_model(trainer.module)
    cohort = cohort_of(clients, start)
    expected = {combine: trained(Serial(trainer), cohort, combine) for combine in (average_models, single)}
    with Ray(trainer, workers + 1, f"{HEAD}:{PORT}", patience=300.0) as executor:
        trained(executor, cohort, average_models)  # starts the workers, and sends them the data
        until = time.monotonic() + 120
        while len(ready(executor)) < workers + 1 and time.monotonic() < until:
            trained(executor, cohort, average_models)
        seconds = 0.0
        for what, combine in (("each client's model", single), ("sums", average_models)):
            event = measured(what, executor, cohort, combine, expected[combine])
            seconds = event.seconds
            yield event
        cut = threading.Timer(CUT_AFTER * seconds, call, ["ip", "link", "set", CABLE[0], "down"])
        cut.start()
        yield measured("sums, the cable is cut", executor, cohort, average_models, expected[average_models])
        cut.join()


def ready(executor: Ray) -> Sequence[object]:
    """Return the workers that have started."""
    workers = executor._workers
    return [] if workers is None else [each for each in workers._handles if not each.starting]


def trained(executor: Ray | Serial, cohort: Cohort, combine: Combine) -> Model:
    (update,) = executor.train([cohort], combine)
    return update.model


def measured(what: str, executor: Ray, cohort: Cohort, combine: Combine, expected: Model) -> Event:
    """Train an event, and read before and after it what the cable counted."""
    before, began = np.array(counted()), time.monotonic()
    model = trained(executor, cohort, combine)
    seconds = time.monotonic() - began
    to_driver, from_driver = (np.array(counted()) - before).tolist()
    same = all(torch.equal(tensor, expected[name]) for name, tensor in model.items())
    return Event(what, seconds, to_driver, from_driver, same)


def counted() -> list[int]:
    """Return the bytes that this end of the cable received and sent."""
    folder = Path("/sys/class/net") / CABLE[0] / "statistics"
    return [int((folder / name).read_text(encoding="ascii")) for name in ("rx_bytes", "tx_bytes")]


if __name__ == "__main__":
    main()
