"""`atoll benchmark`: many methods on suites of natural and synthetic groups."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoll.cli.common import app, err, out, print_json, refuse_below_file
from atoll.cli.options import JsonOption, QuietOption, refuse_about_runs
from atoll.support.errors import InputError, RunError
from atoll.support.files import make_folder, write_atomically
from atoll.support.lock import claimed

if TYPE_CHECKING:
    from atoll.benchmark.carrying_out import Campaign

PUBLISHED = Path("evidence/benchmark")


@app.command()
def benchmark(
    suites: Annotated[list[str] | None, typer.Argument(metavar="[SUITE]...", help="By default all.")] = None,
    methods: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Such as fedavg,ifca,mine:method; by default all built-in ones.")
    ] = None,
    budget: Annotated[str, typer.Option(help="What is equal in the tables: updates, seconds or bytes.")] = "updates",
    updates: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Client updates of a run; by default the suite's.")
    ] = None,
    trials: Annotated[int | None, typer.Option(min=1, metavar="N", help="Of each method; by default 3.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, metavar="N", help="Of each run; by default 5.")] = None,
    scale: Annotated[str | None, typer.Option(help="tiny: seconds a suite.")] = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder for results and page.")] = Path("runs/benchmark"),
    results: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Results that count as done; by default evidence/benchmark, if there."),
    ] = None,
    run: Annotated[bool, typer.Option("--run/--no-run", help="Run, or only make tables and page.")] = True,
    jobs: Annotated[int | None, typer.Option(min=1, metavar="N", help="Runs at a time; by default 1.")] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Tune and run methods on the benchmark's suites, and write tables and a page; resumes by itself.

    Example: atoll benchmark chem97 --methods local,fedavg,ifca --scale tiny
    """
    from atoll.benchmark.carrying_out import Campaign
    from atoll.benchmark.contestants import find_contestants
    from atoll.benchmark.standings import COST_OF
    from atoll.benchmark.suites import Suite, require_suites
    from atoll.settings.plugins import import_from
    from atoll.support.wording import unknown

    import_from(Path())
    if budget not in COST_OF:
        raise InputError(f"--budget {budget}: {unknown(budget, COST_OF)}")
    if scale not in (None, "tiny"):
        raise InputError(f"--scale {scale}: must be tiny; leave it out for the published size")
    if not run:
        refuse_about_runs(("--methods", methods), ("--trials", trials), ("--seeds", seeds), ("--jobs", jobs))
    places = _places_of(folder, results)
    chosen = [Suite(name, scale, updates) for name in require_suites(suites or [])]
    contestants = find_contestants(() if methods is None else [name.strip() for name in methods.split(",")])
    say = (lambda _: None) if quiet or as_json else (lambda text: err.print(text))
    campaign = Campaign(chosen, contestants, trials or 3, seeds or 5, places, jobs or 1, say)
    if run:
        with claimed(folder):
            campaign.carry_out()
    _show(campaign, budget, folder, as_json)
    if campaign.failed:
        raise typer.Exit(1)


def _places_of(folder: Path, results: list[Path] | None) -> tuple[Path, ...]:
    """Return the folders of results that count as done; new ones go into the first."""
    from atoll.benchmark.suites import suite_names
    from atoll.runs.run_files import entries_of, is_taken

    others = results if results is not None else [PUBLISHED] if PUBLISHED.is_dir() else []
    if strange := [each for each in others if not each.is_dir()]:
        raise InputError(f"--results {strange[0]}: is not a folder")
    refuse_below_file(folder)
    with_results = {name.partition("-")[0] for name in entries_of(folder)}.intersection(suite_names())
    if not with_results and is_taken(folder, ("work", "table.md", "index.html")):
        raise InputError(f"--out {folder}: is not empty and holds no results; give the path of a new folder")
    return (folder, *others)


def _show(campaign: "Campaign", budget: str, folder: Path, as_json: bool) -> None:
    """Write tables and page of all results there are, and print the tables."""
    from atoll.benchmark import benchmark_page as page
    from atoll.benchmark.standings import stand

    files = {suite.key: list(campaign.results(suite).values()) for suite in campaign.suites}
    if campaign.failed and not any(one.counted for own in files.values() for one in own):
        raise RunError(campaign.failed[0])
    if not any(files.values()):
        raise InputError(f"--out {folder}: holds no results; leave out --no-run to make them")
    found = {key: stand(own, budget) for key, own in files.items() if own}
    missing = [f"{one.title} on {key}: {why}" for key, own in files.items() for one in own if (why := one.why_missing)]
    text = page.as_markdown(found, budget)
    make_folder(folder)
    write_atomically(folder / "table.md", text.encode())
    write_atomically(folder / "index.html", page.render(found, budget, missing).encode())
    if as_json:
        rows = {key: page.as_dicts(own) for key, own in found.items()}
        print_json({"budget": budget, "suites": rows, "missing": missing, "failed": campaign.failed})
        return
    out.print(text)
    for told in (*(f"in no table: {each}" for each in missing), *(f"failed: {each}" for each in campaign.failed)):
        out.print(told)
    out.print(f"Page: {folder / 'index.html'}")
