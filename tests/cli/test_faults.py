"""Faults and robust rules from the experiment file: rows, bad input, and the recipe that shows what rules bear."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from atoll import Experiment, make_runs, read_experiment, run_events
from tests.cli.conftest import Command
from tests.tiers import thinned

SERIAL = ("--set", "run.executor=serial", "--set", "method.fraction=1.0")


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def changed(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def test_rows_count_what_was_lost_and_why(atoll: Command, folder: Path) -> None:
    words = changed("faults.dropout=0.4", "faults.tolerate=true", "faults.attackers=0.5", "faults.attack=not-finite")
    atoll("run", "tiny.toml", "--out", "out", *SERIAL, *words, "--set", "rounds=6").succeeded()
    rows = rows_of(folder / "out")
    reasons = ("wrong_form", "not_finite", "too_large", "unusual")
    names = ["absent", "dropped", "late", *(f"refused_{reason}" for reason in reasons)]
    assert [rows[0][name] for name in names] == [0] * 7
    last = rows[-1]
    assert last["dropped"] > 0 < last["refused_not_finite"]
    assert last["absent"] == last["late"] == last["refused_wrong_form"] == last["refused_too_large"] == 0
    assert last["client_updates"] + last["dropped"] == 36
    assert last["bytes_down"] - last["bytes_up"] == last["dropped"] * last["bytes_down"] // 36
    for before, after in itertools.pairwise(rows):
        assert all(before[name] <= after[name] for name in names)


@pytest.mark.more
def test_if_all_updates_are_too_long_the_run_ends_with_a_sentence(atoll: Command, folder: Path) -> None:
    words = changed("faults.max_update_norm=1e-6", "method.name=fedavg")
    done = atoll("run", "tiny.toml", "--out", "out", *SERIAL, *words)
    assert done.code == 1
    assert re.search(r"all \d+ results are longer than faults.max_update_norm = 1e-06$", done.told[-1])
    assert [row["event"] for row in rows_of(folder / "out")] == [0]
    atoll("report", "out").succeeded()


def test_slow_clients_and_those_outside_their_slots_are_left_out(atoll: Command, folder: Path) -> None:
    (folder / "clients.csv").write_text("client,slots\n0,0 1\n1,0\n2,1\n3,0\n4,0 1\n5,1\n")
    words = changed(
        *("data.clients_file=clients.csv", "faults.slots_per_day=2", "method.name=fedavg", "rounds=3"),
        *("network.upload_seconds=20000", "network.seconds_per_sample=[0.1, 2000.0]", "faults.deadline_seconds=25000"),
    )
    atoll("run", "tiny.toml", "--out", "out", *SERIAL, *words).succeeded()
    rows = rows_of(folder / "out")
    assert [row["virtual_time"] for row in rows] == [0, 25_000, 50_000, 75_000]  # the noon slot begins at 43,200 s
    assert [row["absent"] for row in rows] == [0, 2, 4, 6]
    assert rows[-1]["late"] > 0
    assert rows[-1]["client_updates"] + rows[-1]["absent"] + rows[-1]["late"] == 18


def test_runs_without_faults_count_none(atoll: Command, folder: Path) -> None:
    atoll("run", "tiny.toml", "--out", "out", *SERIAL).succeeded()
    assert not {"absent", "dropped", "late", "refused_not_finite"} & rows_of(folder / "out")[-1].keys()


REFUSED = [
    (["faults.dropout=1"], ["faults.dropout = 1", "at least 0 and less than 1"]),
    (["faults.dropout=-0.1"], ["faults.dropout = -0.1", "at least 0"]),
    (["faults.attackers=1.0"], ["faults.attackers = 1", "less than 1"]),
    (["faults.attackers=0.05"], ["faults.attackers = 0.05", "none of 6 clients"]),
    (["faults.attack_strength=0"], ["faults.attack_strength = 0", "greater than 0"]),
    (["faults.attack=flip"], ["faults.attack = 'flip'", "'sign-flip' or 'noise' or 'label-flip'"]),
    (["faults.claimed_samples=0"], ["faults.claimed_samples = 0", "greater than 0"]),
    (["faults.claimed_loss=nan"], ["faults.claimed_loss = nan", "finite"]),
    (
        ["method.combine=bulyan", "method.byzantine=1", "method.name=fedavg", "method.fraction=1.0"],
        ["method.byzantine = 1", "bulyan needs 4 x 1 + 3 = 7", "the smallest has 6; use another rule"],
    ),
    (["method.combine=multi-krum"], ["method.byzantine is not set"]),
    (["method.combine=centred-clipping"], ["method.clip_norm is not set"]),
    (["faults.attackers=0.5", "faults.attack=not-finite"], ["faults.attack = 'not-finite'", "faults.tolerate = true"]),
    (["faults.deadline_seconds=0.5"], ["faults.deadline_seconds = 0.5", "the fastest needs 1.008 s"]),
    (["faults.deadline_seconds=0"], ["faults.deadline_seconds = 0", "greater than 0"]),
    (["faults.slots_per_day=4"], ["faults.slots_per_day = 4", "data.clients_file with a column slots"]),
    (["faults.slots_per_day=0"], ["faults.slots_per_day = 0", "at least 1"]),
    (["faults.dropout=0.9999999"], ["faults.dropout = 0.9999999", "leave no client in any event"]),
    (["faults.max_update_norm=0"], ["faults.max_update_norm = 0", "greater than 0"]),
    (["method.combine=trimed-mean"], ["method.combine = 'trimed-mean'", "did you mean 'trimmed-mean'?"]),
    (["method.combine=trimmed-mean"], ["method.trim is not set", "method.combine = 'trimmed-mean' needs it"]),
    (["method.combine=trimmed-mean", "method.trim=0.5"], ["method.trim = 0.5", "less than 0.5"]),
    (["method.combine=norm-clipping"], ["method.clip_norm is not set"]),
    (["method.combine=krum"], ["method.byzantine is not set"]),
    (["method.combine=multi-krum", "method.byzantine=1"], ["multi-krum needs 2 x 1 + 3 = 5 clients", "has 2"]),
    (["method.combine=krum", "method.byzantine=1"], ["method.byzantine = 1", "needs 2 x 1 + 3 = 5", "has 2", "rule"]),
    (
        ["method.combine=krum", "method.byzantine=2", "method.name=fedavg", "method.fraction=1.0"],
        ["method.byzantine = 2", "needs 2 x 2 + 3 = 7", "the smallest has 6; give at most 1"],
    ),
    (["method.name=centralized", "faults.dropout=0.1"], ["faults.dropout", "'centralized'"]),
    (["method.name=bcd", "method.combine=median"], ["method.combine = 'median'", "'bcd' combines otherwise"]),
    (["method.name=centralized", "faults.attackers=0.5"], ["faults.attackers", "'centralized'"]),
    (
        ["method.name=ifca", "method.option=gradients", "local.steps=1", "method.combine=median"],
        ["method.combine = 'median'", "method.option = 'gradients' combines otherwise"],
    ),
    (
        ["method.name=hierarchical", "rounds=20", "faults.deadline_seconds=1e-4"],
        ["faults.deadline_seconds = 0.0001", "the fastest needs 0.0"],
    ),
    (["faults.attackers=0.5", "run.executor=stacked"], ["run.executor = 'stacked'", "faults.attackers", "'serial'"]),
    (["faults.tolerate=true", "run.executor=weighted", "local.steps=1"], ["run.executor = 'weighted'", "tolerate"]),
    (["method.combine=median", "run.executor=weighted", "local.steps=1"], ["run.executor = 'weighted'", "mean of mod"]),
]


@pytest.mark.parametrize(("changes", "parts"), REFUSED)
def test_bad_settings_are_refused(changes: list[str], parts: list[str], atoll: Command, folder: Path) -> None:
    (folder / "own.py").write_text(
        "import atoll\ndef plain(population, rule, rounds):\n    return atoll.fedavg(population, rule, rounds)\n"
    )
    told = atoll("run", "tiny.toml", "--out", "out", *changed(*changes)).refused()
    for part in parts:
        assert part in told
    assert not (folder / "out").exists()


PATTERNS = ("censyn", "cenasy", "decsyn", "decasy")
METHODS = [
    *(("method.name=hierarchical", f"method.pattern={pattern}", "rounds=20") for pattern in PATTERNS),
    ("method.name=ifca", "method.clusters=2", "method.shared_layers=1", "rounds=6"),
    ("method.name=cfl-mgd", "method.clusters=2", "rounds=6", "method.restarts=2"),
    ("method.name=fedcluster", "local.optimizer=adam", "local.lr=0.01"),
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rule", thinned([["median"], ["norm-clipping", "method.clip_norm=1.0"]], 1))
def test_every_method_goes_on_where_most_clients_fail(
    method: tuple[str, ...], rule: list[str], atoll: Command, folder: Path
) -> None:
    combine, *more = rule
    words = changed(
        *(*method, *more, f"method.combine={combine}", "faults.dropout=0.6", "faults.tolerate=true"),
        *("faults.attackers=0.5", "faults.attack=not-finite"),
    )
    atoll("run", "tiny.toml", "--out", "out", "--set", "run.executor=serial", *words).succeeded()
    last = rows_of(folder / "out")[-1]
    assert last["dropped"] > 0 < last["refused_not_finite"] <= last["client_updates"]


def test_auto_trains_client_by_client_where_single_results_matter(atoll: Command, folder: Path) -> None:
    words = changed("local.steps=1", "method.name=fedavg")
    chosen = []
    for name, more in (("mean", []), ("median", ["method.combine=median"]), ("attack", ["faults.attackers=0.5"])):
        atoll("run", "tiny.toml", "--out", name, *words, *changed(*more)).succeeded()
        chosen.append(json.loads((folder / name / "summary.json").read_text())["executor"])
    assert ["one step of SGD" in each for each in chosen] == [True, False, False]
    assert all("client by client" in each for each in chosen[1:])


def test_a_combine_rule_of_the_users_own(atoll: Command, folder: Path) -> None:
    (folder / "mine.py").write_text(
        "from atoll.aggregation.mean import mean\n"
        "def heaviest(byzantine=0):\n"
        "    def combine(models, start, cohort_weight):\n"
        "        return mean([max(models, key=lambda pair: pair[0])])\n"
        "    return combine\n"
    )
    atoll("run", "tiny.toml", "--out", "own", *SERIAL, *changed("method.combine=mine:heaviest")).succeeded()
    atoll("run", "tiny.toml", "--out", "mean", *SERIAL).succeeded()
    assert rows_of(folder / "own")[-1]["train_loss"] != rows_of(folder / "mean")[-1]["train_loss"]


@pytest.mark.parametrize("executor", ["cores", "stacked"])
def test_robust_rules_need_single_results_which_other_executors_give_too(
    executor: str, atoll: Command, folder: Path
) -> None:
    words = changed("method.combine=median", "method.name=fedavg", "run.workers=2")
    atoll("run", "tiny.toml", "--out", "serial", *SERIAL, *words).succeeded()
    atoll("run", "tiny.toml", "--out", "other", *SERIAL, *words, "--set", f"run.executor={executor}").succeeded()
    one, other = (rows_of(folder / name)[-1] for name in ("serial", "other"))
    equal = one["train_loss"] == other["train_loss"]
    assert equal or (executor == "stacked" and one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-5))


@pytest.mark.more
def test_with_a_fifth_flipping_signs_the_mean_fails_and_robust_rules_hold(folder: Path) -> None:
    """A part of what docs/faults.md tells of five seeds."""
    final: dict[tuple[str, str], float] = {}
    for settings in make_runs(read_experiment("attackers"), "small", ["run.executor=serial"]):
        if settings.panel == "Sign flip" or (settings.panel, settings.label) == ("Nobody attacks", "Mean"):
            for progress in run_events(Experiment(settings), folder / settings.panel / settings.label):
                if progress.row:
                    final[settings.panel, settings.label] = progress.row["test_accuracy"]
    free = final["Nobody attacks", "Mean"]
    assert free > 0.9
    assert final["Sign flip", "Mean"] < 0.4
    held = [label for (panel, label), accuracy in final.items() if panel == "Sign flip" and accuracy > free - 0.03]
    assert {"Median", "Trimmed mean", "Geometric median", "Multi-Krum"} <= set(held)


def test_attackers_who_claim_more_samples_rule_what_is_weighed_by_them(atoll: Command, folder: Path) -> None:
    words = changed("faults.attackers=0.34", "method.name=fedavg", "method.combine=median")
    for times, learns in ((1, True), (1000, False)):
        claim = changed(f"faults.claimed_samples={times}")
        atoll("run", "tiny.toml", "--out", f"times-{times}", *SERIAL, *words, *claim).succeeded()
        first, *_, last = rows_of(folder / f"times-{times}")
        assert (last["train_loss"] < first["train_loss"]) == learns


def test_a_claimed_loss_is_in_the_rows_and_in_no_model(atoll: Command, folder: Path) -> None:
    words = changed("faults.attackers=0.34", "method.name=fedavg")
    rows: list[dict[str, Any]] = []
    for claim in ((), changed("faults.claimed_loss=1e300")):
        out = f"claim-{len(rows)}"
        atoll("run", "tiny.toml", "--out", out, *SERIAL, *words, *claim).succeeded()
        rows.append(rows_of(folder / out)[-1])
    assert rows[0]["train_loss"] == rows[1]["train_loss"]
    assert rows[0]["local_loss"] < 1e3 < 1e299 < rows[1]["local_loss"]


RULES = [
    ["geometric-median"],
    ["centred-clipping", "method.clip_norm=1.0"],
    ["multi-krum", "method.byzantine=1"],
    ["bulyan", "method.byzantine=0"],
]


@pytest.mark.parametrize("rule", thinned(RULES, 2))
@pytest.mark.parametrize("executor", ["cores", "stacked"])
def test_rules_that_compare_models_are_the_same_on_every_executor(
    rule: list[str], executor: str, atoll: Command, folder: Path
) -> None:
    combine, *more = rule
    words = changed(f"method.combine={combine}", *more, "method.name=fedavg", "run.workers=2")
    atoll("run", "tiny.toml", "--out", "serial", *SERIAL, *words).succeeded()
    atoll("run", "tiny.toml", "--out", "other", *SERIAL, *words, "--set", f"run.executor={executor}").succeeded()
    one, other = (rows_of(folder / name)[-1]["train_loss"] for name in ("serial", "other"))
    assert one == other or (executor == "stacked" and one == pytest.approx(other, rel=1e-5))
