"""Secure sums in simulation: the quantised sum, on every executor; and what they cannot be used with."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from atoll import InputError
from atoll.aggregation.fixed_point import FixedPoint, OutOfRange
from atoll.methods.named_methods import METHODS
from atoll.secure.fixed import SumOfIntegers, flat, masked_form, unflat
from tests.cli.pages import ROOT
from tests.secure.fleet import SUMS, carry_out, last_model, last_row, same_bits, summed

EIGHT = FixedPoint(range=8.0, fraction_bits=24, threshold=2 / 3, least_nodes=2, by_samples=True)
numbers = st.floats(-8, 8, width=32)


@given(st.lists(st.tuples(st.integers(1, 1000), numbers), min_size=1, max_size=20), numbers)
def test_the_sum_is_that_of_rounded_updates_times_samples(clients: list[tuple[int, float]], start: float) -> None:
    """Computed by Python's exact fractions and its round-half-even."""
    near = [(samples, start + update / 4) for samples, update in clients]
    start_model = {"w": torch.tensor([start])}
    models = [(float(samples), {"w": torch.tensor([value], dtype=torch.float32)}) for samples, value in near]
    expected = 0
    for samples, model in models:
        change = float(model["w"]) - float(start_model["w"])
        expected += int(samples) * round(change * 2**24)
    total = SumOfIntegers(EIGHT)(models, start_model, 1.0)
    assert total["w"].tolist() == [expected]
    assert SumOfIntegers(EIGHT)(models[::-1], start_model, 1.0)["w"].tolist() == [expected], "in any order"
    weight = sum(samples for samples, _ in near)
    (moved,) = EIGHT.moved(start_model, total, weight)["w"].tolist()
    assert moved == torch.tensor(float(start_model["w"]) + expected / 2**24 / weight, dtype=torch.float32).item()


@pytest.mark.parametrize("value", [8.0 + 2**-20, -8.1, math.inf, -math.inf, math.nan])
def test_what_the_range_does_not_hold_is_an_error(value: float) -> None:
    start = {"w": torch.zeros(2)}
    with pytest.raises(OutOfRange, match=r"^secure\.range = 8: an update has a number of size "):
        EIGHT.encode({"w": torch.tensor([0.0, value])}, start)
    assert EIGHT.encode({"w": torch.tensor([8.0, -8.0])}, start)["w"].tolist() == [2**27, -(2**27)]


@pytest.mark.parametrize("sign", [1, -1])
def test_the_range_holds_its_bound_and_no_step_beyond_it(sign: int) -> None:
    """Sums are known not to overflow since no number is larger than the range times 2 to the fraction bits."""
    fixed, start = FixedPoint(8.0, 2, 2 / 3, 2, True), {"w": torch.zeros(1)}
    assert fixed.encode({"w": torch.tensor([sign * 8.0])}, start)["w"].tolist() == [sign * 32]
    with pytest.raises(OutOfRange):
        fixed.encode({"w": torch.tensor([sign * 8.25])}, start)


def test_numbers_are_put_in_a_row_and_back() -> None:
    total = {"b": torch.tensor([[1, -2], [3, 4]]), "a": torch.tensor([-(2**62)])}
    form = {name: (tensor.shape, torch.float32) for name, tensor in total.items()}
    back = unflat(flat(total, form), form)
    assert list(back) == ["b", "a"]
    assert all(torch.equal(back[name], total[name]) for name in total)
    assert masked_form(form) == {"masked": (torch.Size([5]), torch.int64)}


@pytest.mark.parametrize("executor", ["cores", pytest.param("ray", marks=pytest.mark.slow), "stacked"])
def test_executors_agree(executor: str, tmp_path: Path) -> None:
    """To the bit where clients' models have the same bits; `stacked`, whose do not, by less than a rounding each."""
    for name in ("serial", executor):
        carry_out(summed(run={"executor": name, "checkpoint_every": 1}), tmp_path / name, None)
    if executor != "stacked":
        assert same_bits(tmp_path / "serial", tmp_path / executor)
    ours, theirs = last_model(tmp_path / "serial"), last_model(tmp_path / executor)
    assert all(float((ours[name] - theirs[name]).abs().max()) < 1e-6 for name in ours)


def test_it_learns_as_the_plain_mean_does(tmp_path: Path) -> None:
    """Numbers differ by less than a rounding of the fixed point an event; no losses of clients are told."""
    for name, wanted in (("plain", {"sums": False}), ("summed", SUMS)):
        carry_out(summed(secure=wanted), tmp_path / name, None)
    ours, theirs = last_model(tmp_path / "plain"), last_model(tmp_path / "summed")
    assert all(float((ours[name] - theirs[name]).abs().max()) < 4 * 2**-24 for name in ours)
    rows = {name: last_row(tmp_path / name) for name in ("plain", "summed")}
    assert (rows["plain"]["local_loss"] is None, rows["summed"]["local_loss"]) == (False, None)
    assert rows["summed"]["bytes_up"] == 2 * rows["plain"]["bytes_up"]
    assert rows["summed"]["bytes_down"] == rows["plain"]["bytes_down"]


def test_uploads_take_as_long_as_their_bytes() -> None:
    plain, hidden = (summed(secure=wanted) for wanted in ({"sums": False}, SUMS))
    assert hidden.plan.clock.upload_seconds.tolist() == (2 * plain.plan.clock.upload_seconds).tolist()
    assert hidden.method.schedule.events[-1].seconds > plain.method.schedule.events[-1].seconds


def half_frozen(shape: tuple[int, ...], classes: int) -> nn.Module:
    made = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
    made[1].kept = nn.Parameter(torch.zeros(5000, dtype=torch.bfloat16), requires_grad=False)
    return made


def test_uploads_of_a_part_take_as_long_as_its_bytes() -> None:
    """What stays, frozen in half precision as of a pretrained model, would be masked in four times its bytes."""
    model = {"name": f"{__name__}:half_frozen", "travels": "trainable"}
    made = summed(model=model, method={"name": "fedavg", "fraction": 1.0})
    assert made.traffic.update_bytes == 2 * made.traffic.message_bytes
    assert made.initial.upload_share == 2.0


def test_dropouts_and_attackers_of_a_simulation_go_with_it(tmp_path: Path) -> None:
    faults = {"dropout": 0.3, "attackers": 0.2, "attack": "sign-flip"}
    carry_out(summed(faults=faults, rounds=3, data={"clients": 20, "samples": 40}), tmp_path / "run", None)
    assert last_row(tmp_path / "run")["dropped"] > 0


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "robust rules": ({"method": {"combine": "median"}}, "method.combine = 'median': this rule must see each client's"),
    "a codec": ({"travel": {"codec": "int8"}}, "travel.codec = 'int8': masked numbers look random"),
    "privacy": (
        {"privacy": {"trust": "server", "clip": 1.0, "noise": 1.0}},
        "privacy.trust = 'server': cannot be used with secure.sums = true: a server that clips must see single updates",
    ),
    "privacy of clients": ({"privacy": {"trust": "client", "clip": 1.0, "noise": 1.0}}, "noise has no range"),
    "ifca": ({"method": {"name": "ifca"}}, "'ifca': who trains, or in which cluster, depends on losses"),
    "cfl-mgd": ({"method": {"name": "cfl-mgd"}}, "'cfl-mgd': who trains, or in which cluster, depends on losses"),
    "scaffold": ({"method": {"name": "scaffold"}}, "'scaffold': this rule must see each client's model"),
    "feddyn": ({"method": {"name": "feddyn"}}, "'feddyn': "),
    "fednova": ({"method": {"name": "fednova"}, "local": {"epochs": 1.0}}, "'fednova': "),
    "fedasync": ({"method": {"name": "fedasync", "concurrency": 4}}, "'fedasync', whose events are one client's"),
    "fedbuff": ({"method": {"name": "fedbuff", "concurrency": 4, "buffer": 2}}, "'fedbuff': "),
    "centralized": ({"method": {"name": "centralized"}}, "'centralized', whose one client holds all data"),
    "fesem": ({"method": {"name": "fesem"}}, "'fesem', "),
    "pacfl": ({"method": {"name": "pacfl"}}, "'pacfl': clusters would be learned from single clients' updates"),
    "stocfl": ({"method": {"name": "stocfl"}}, "'stocfl', "),
    "ditto": ({"method": {"name": "ditto"}}, "'ditto': "),
    "local": ({"method": {"name": "local"}}, "'local': "),
    "fedem": ({"method": {"name": "fedem"}}, "'fedem': "),
    "fedsoft": ({"method": {"name": "fedsoft"}}, "'fedsoft': "),
    "moon": ({"method": {"name": "moon"}}, "'moon': "),
    "fedamp": ({"method": {"name": "fedamp"}}, "'fedamp', "),
    "power of choice": (
        {"method": {"name": "fedavg", "select": "power-of-choice", "candidates": 6}},
        "depends on losses",
    ),
    "faults.tolerate": ({"faults": {"tolerate": True}}, "results would be left out one by one"),
    "a longest update": ({"faults": {"max_update_norm": 1.0}}, "results would be left out one by one"),
    "normalised batches": (
        {"model": {"name": "tests.secure.test_secure_sums:normalised"}},
        "'1.num_batches_tracked' holds integers, which have no mean",
    ),
    "small cohorts": (
        {"method": {"name": "fedcluster", "fraction": 0.3}},
        "secure.least_nodes = 2: a cohort of event 0",
    ),
    "large sums": (
        {"secure": SUMS | {"fraction_bits": 52, "range": 64.0}},
        "may overflow 63 bits; lower secure.range = 64 or secure.fraction_bits = 52",
    ),
    "the weighted executor": ({"run": {"executor": "weighted"}}, "run.executor = 'weighted': "),
    "no range": ({"secure": SUMS | {"range": 0.0}}, "secure.range = 0.0: "),
    "a low threshold": ({"secure": SUMS | {"threshold": 0.3}}, "secure.threshold = 0.3: "),
    "one node": ({"secure": SUMS | {"least_nodes": 1}}, "secure.least_nodes = 1: "),
    "no fraction": ({"secure": SUMS | {"fraction_bits": 0}}, "secure.fraction_bits = 0: "),
}


def normalised(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, classes))


@pytest.mark.parametrize("what", REFUSED)
def test_what_needs_more_than_a_sum_is_refused(what: str) -> None:
    changes, told = REFUSED[what]
    with pytest.raises(InputError) as caught:
        summed(**changes).check()
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


TAKEN = {"fedavg", "fedcluster", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "fedat", "hierarchical", "hierfavg"}


def test_docs_tell_of_all_methods() -> None:
    """Each is named as one that goes with secure sums, or as one that does not."""
    text = (ROOT / "docs" / "privacy.md").read_text()
    section = text[text.index("## Secure aggregation") :].split("\n## ")[0]
    taken = section[section.index("**They work with**") :].split("\n\n")[0]
    refused = section[section.index("**They do not work with**") :].split("\n\n")[0]
    assert {name for name in METHODS if f"`{name}`" in taken} == TAKEN
    assert {name for name in METHODS if f"`{name}`" in refused} == METHODS.keys() - TAKEN


def test_a_weight_whose_sums_could_overflow_is_told() -> None:
    fixed = FixedPoint(1.0, 0, 2 / 3, 2, False)
    assert fixed.why_overflow(2.0**63)
    assert not fixed.why_overflow(2.0**62)
