"""`atoll bench`: how fast this machine trains."""

from dataclasses import asdict
from typing import Annotated

import typer

from atoll.cli.common import JsonOption, app, err, out, print_json
from atoll.support.errors import InputError


@app.command()
def bench(
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Under two minutes on two cores: fewer local steps and rounds, for a first look."),
    ] = False,
    only: Annotated[str | None, typer.Option(metavar="TEXT", help="Only the cases with TEXT in their name.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure this machine: every executor against the plain PyTorch loop, on random data.

    Example: atoll bench --quick --only mlp
    """
    from atoll import bench as benchmark
    from atoll.support.environment import describe_environment

    cases = [case for case in benchmark.CASES if only is None or only in case.name]
    if not cases:
        names = "; ".join(case.name for case in benchmark.CASES)
        raise InputError(f"--only {only}: no case has this in its name; they are {names}")
    rounds = benchmark.QUICK_ROUNDS if quick else benchmark.ROUNDS
    results = []
    for case in [benchmark.quick(case) if quick else case for case in cases]:
        steps = f", {case.steps} local steps" if case.steps > 1 else ""
        title = f"{case.name}, batch {case.batch_size}{steps}; medians of {rounds} rounds"
        err.print(f"measuring {title}", markup=False)
        raced = benchmark.race(case, benchmark.own_contenders(case), rounds)
        results += raced
        if not as_json:
            out.print(benchmark.as_rich(title, raced))
    if as_json:
        rows = [asdict(result) for result in results]
        print_json({"environment": describe_environment(seed=0), "results": rows})
