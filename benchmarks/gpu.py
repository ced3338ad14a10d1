"""Measure how fast Atoll trains on a GPU, in one command that takes a few minutes, and write one JSON file.

Run:  python benchmarks/gpu.py --out gpu.json [--minutes 8] [--device cuda] [--quick]

Per case (models, 10, 100 and 1,000 clients of 20 steps, and a FedAvg round over 60,000 samples), precision and executor
(stacked, also with CUDA graphs and four streams, and one by one): the seconds of a round, its operations a second,
their share of what the GPU's own matrix product reaches in that precision, and the memory that it took. The file is
written anew after every case; given again, the command goes on with what is not in it yet, on a GPU of the same name.
Cases that do not fit into the minutes are told and left for then. `--device cpu` tries it out without a GPU.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench.contenders import make_executor_round, make_module, make_trainer
from bench.flops import count_flops
from bench.work import Case

from atoll import Serial, Stacked, Trainer
from atoll.engine.cohorts import Executor
from atoll.local.precision import Precision, products_in
from atoll.local.weights import read_model
from atoll.support.environment import describe_environment
from atoll.support.files import write_atomically

EXECUTORS: dict[str, Callable[[Trainer], Executor]] = {
    "stacked": partial(Stacked, cuda_graphs=False),
    "stacked, graphs": partial(Stacked, cuda_graphs=True),
    "stacked, graphs, four streams": partial(Stacked, cuda_graphs=True, others=3 * ["cuda"]),
    "serial": Serial,
}
PRECISIONS: tuple[Precision, ...] = ("float32", "tf32", "bfloat16")
CASES = (
    Case("alexnet", 100),  # 100 clients of 600 samples: one pass over 60,000
    *(Case(model, clients) for model in ("mlp", "cnn", "alexnet") for clients in (10, 100, 1000)),
    Case("lr", 100, steps=1, batch_size=64),
)
ROUNDS, PRODUCTS, SIDE = 5, 10, 8192


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write, anew after every case")
    parser.add_argument("--minutes", type=float, default=8.0, help="start no further case after this many")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu tries it out")
    parser.add_argument("--quick", action="store_true", help="one small case, for tests")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch finds no GPU here; --device cpu tries the command out")
    cases = [Case("mlp", 4, steps=2)] if given.quick else list(dict.fromkeys(CASES))
    until = time.monotonic() + 60 * given.minutes
    precisions = [each for each in PRECISIONS if given.device == "cuda" or each != "tf32"]
    side = 256 if given.quick else SIDE
    name = device_name(given.device) + ", quick" * given.quick
    given.out.parent.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = json.loads(given.out.read_text(encoding="utf-8")) if given.out.is_file() else {}
    if content.get("device", name) != name:
        parser.error(f"--out {given.out}: has figures of {content['device']}, not of {name}; name another file")
    if not content:
        peaks = {each: products_rate(given.device, each, side) for each in precisions}
        content = {"environment": describe_environment(seed=0), "device": name, "matrix_product_gflops": peaks}
    # What failed is measured again: after one error of a GPU all else in the same process may have failed too.
    results = content["results"] = [each for each in content.get("results", []) if "failure" not in each]
    there = {(each["case"], each["executor"], each["precision"]) for each in results}
    for executor, case, precision in plan(cases, precisions):
        if (case.name, executor, precision) in there:
            continue
        if time.monotonic() > until:
            print(f"{case.name}, {executor}, {precision}: no time was left", flush=True)
            continue
        peak = content["matrix_product_gflops"][precision]
        results.append(measure(executor, case, precision, given.device, peak, until))
        print(line(results[-1]), flush=True)
        write_atomically(given.out, (json.dumps(content, indent=1) + "\n").encode())


def plan(cases: list[Case], precisions: list[Precision]) -> Iterator[tuple[str, Case, Precision]]:
    """Yield the cases, most informative first: stacked clients, then the other precisions, then one by one."""
    for precision in precisions:
        for case in cases:
            yield "stacked", case, precision
            if "tf32" in precisions and (
                precision == "float32" or case.clients == 100
            ):  # there are graphs on GPUs only
                yield "stacked, graphs", case, precision
                yield "stacked, graphs, four streams", case, precision
    yield from (("serial", case, "float32") for case in cases if case.clients <= 100)


def measure(
    name: str, case: Case, precision: Precision, device: str, peak_gflops: float, until: float
) -> dict[str, Any]:
    """Return the figures of a case, or why there are none; no round begins after `until`, but for the first."""
    found: dict[str, Any] = {"case": case.name, "executor": name, "precision": precision}
    try:
        seconds = time_rounds(name, case, precision, device, until)
    except Exception as error:  # such as a GPU with too little memory: the other cases go on
        return found | {"failure": f"{type(error).__name__}: {error}"}
    gflops = count_flops(case) / statistics.median(seconds) / 1e9
    memory = torch.cuda.max_memory_allocated() if device == "cuda" else None
    return found | {"seconds": seconds, "gflops": gflops, "share": gflops / peak_gflops, "memory_bytes": memory}


def time_rounds(name: str, case: Case, precision: Precision, device: str, until: float) -> list[float]:
    """Return the seconds of each timed round, after one that warms up."""
    module = make_module(case)
    model = read_model(module)
    executor = EXECUTORS[name](make_trainer(case, module, device=device, precision=precision))
    train = make_executor_round(case, executor)
    if device == "cuda":
        gc.collect()  # the case before, with its graphs
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    model = train({key: tensor.to(device) for key, tensor in model.items()})
    seconds: list[float] = []
    while len(seconds) < ROUNDS and not (seconds and time.monotonic() > until):
        wait_for(device)
        began = time.perf_counter()
        model = train(model)
        wait_for(device)
        seconds.append(time.perf_counter() - began)
    executor.close()
    return seconds


def device_name(device: str) -> str:
    """Return the GPU's name, or ``cpu``."""
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"


def products_rate(device: str, precision: Precision, side: int) -> float:
    """Return the operations a second, in 1e9, of the product of two matrices [side, side]."""
    one, other = torch.rand(2, side, side, device=device)
    with products_in(precision):
        for product in range(PRODUCTS + 1):
            if product == 1:  # the first warms up
                wait_for(device)
                began = time.perf_counter()
            torch.mm(one, other)
    wait_for(device)
    return 2 * side**3 * PRODUCTS / (time.perf_counter() - began) / 1e9


def wait_for(device: str) -> None:
    """Wait until the GPU has finished its work."""
    if device == "cuda":
        torch.cuda.synchronize()


def line(result: dict[str, Any]) -> str:
    """Return a result as a line for the terminal."""
    title = f"{result['case']}, {result['executor']}, {result['precision']}"
    if "failure" in result:
        return f"{title}: {result['failure']}"
    seconds = statistics.median(result["seconds"])
    return f"{title}: {seconds:.3g} s a round, {result['gflops']:,.0f} GFLOP/s, {result['share']:.0%}"


if __name__ == "__main__":
    main()
