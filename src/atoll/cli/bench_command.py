"""`atoll bench`: how fast this machine trains."""

import platform
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli.common import app, err, out, print_json
from atoll.cli.options import JsonOption
from atoll.support.errors import InputError
from atoll.support.files import make_folder, to_json, write_atomically

if TYPE_CHECKING:
    from atoll.bench import Case


@app.command()
def bench(
    quick: Annotated[
        bool, typer.Option("--quick", help="A first look, about a minute on two cores: fewer local steps and rounds.")
    ] = False,
    only: Annotated[str | None, typer.Option(metavar="TEXT", help="Only the cases with TEXT in their name.")] = None,
    bfloat16: Annotated[
        bool, typer.Option("--bfloat16", help="Also measure 'cores' with run.precision = 'bfloat16'.")
    ] = False,
    save: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also save the JSON in FOLDER, by machine and commit.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure how fast this machine trains: every executor against the plain PyTorch loop, on random data.

    Example: atoll bench --quick --only mlp
    """
    from atoll import bench as benchmark
    from atoll.support.environment import describe_environment

    if bfloat16:
        _warn_of_bfloat16()
    cases = _choose(only, quick)
    kept = save and save / (platform.node() or "machine")
    if kept:
        make_folder(kept)  # before the work
    rounds = benchmark.QUICK_ROUNDS if quick else benchmark.ROUNDS
    results = []
    for case in cases:
        steps = f", {case.steps} local steps" if case.steps > 1 else ""
        title = f"{case.name}, batch {case.batch_size}{steps}; medians of {rounds} rounds"
        err.print(f"measuring {title}", markup=False)
        raced = benchmark.race(case, benchmark.own_contenders(case, bfloat16), rounds)
        results += raced
        if not as_json:
            out.print(benchmark.as_rich(title, raced))
    environment = describe_environment(seed=0)
    content = {"environment": environment, "results": [asdict(result) for result in results]}
    if kept:
        write_atomically(file := kept / _name(environment), to_json(content))
        err.print(f"saved as {file}", markup=False)
    if as_json:
        print_json(content)


def _warn_of_bfloat16() -> None:
    from atoll.local.precision import lacks_bfloat16, slowness_of_bfloat16

    if lacks_bfloat16():
        slowness = f"a matrix product takes {slowness_of_bfloat16():.2g} times as long as in float32"
        err.print(f"--bfloat16: this processor has no bfloat16 products; {slowness}", markup=False)


def _choose(only: str | None, is_quick: bool) -> "list[Case]":
    from atoll import bench as benchmark

    cases = [case for case in benchmark.CASES if only is None or (only and only in case.name)]
    if not cases:
        names = "; ".join(case.name for case in benchmark.CASES)
        raise InputError(f"--only {only}: no case has this in its name; the cases are {names}")
    return [benchmark.quick(case) for case in cases] if is_quick else cases


def _name(environment: Mapping[str, Any]) -> str:
    """Return the name of a commit's file, such as ``06e4193.json``; a release's name is its version."""
    return f"{environment.get('git') or environment['packages']['atoll']}.json"
