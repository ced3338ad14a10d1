"""What settles a claim, against intervals by hand, targets that were never met, and chance."""

import math
from typing import Any

import numpy as np
import pytest

from atoll.reproduce.claims import PAPERS, Claim, read_paper
from atoll.reproduce.evidence import ClaimNeed, Value, Values, needs_of, settle, summarise
from atoll.support.seeds import generator
from tests.tiers import thinned

T2 = 4.302652729749  # of Student's t with 2 degrees of freedom, 97.5 %


def make_claim(**fields: Any) -> Claim:
    given = {"recipe": "r", "source": "Fig. 1", "says": "s", "runs": ("A", "B"), "measure": "last", "check": "first"}
    return Claim.model_validate(given | fields)


def seeds(*numbers: float | None, end: float = 100.0) -> Values:
    """Return a run's values by seed; None is a target that was not met by the end."""
    return {seed: Value(end, True) if n is None else Value(n) for seed, n in enumerate(numbers)}


def verdict(claim: Claim, *values: Values) -> str:
    return settle(needs_of(claim, values))


def test_the_lead_is_measured_in_each_seed() -> None:
    """Seeds differ by far more than the runs do: side by side A is ahead, apart nobody could tell."""
    a, b = seeds(0.5, 0.7, 0.9), seeds(0.48, 0.67, 0.88)
    (need,) = needs_of(make_claim(), [a, b])
    assert need.numbers == pytest.approx((0.02, 0.03, 0.02))
    found = need.interval()
    half = T2 * math.sqrt(1e-4 / 3) / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((0.07 / 3 - half, 0.07 / 3 + half))
    assert verdict(make_claim(), a, b) == "holds"
    assert verdict(make_claim(), b, a) == "fails"
    own = [summarise(each) for each in (a, b)]
    assert own[0].low is not None
    assert own[1].high is not None
    assert own[0].low < own[1].high


def test_a_target_is_not_met_before_the_start_but_a_lead_may_be_negative() -> None:
    late, early = (
        {seed: Value(at, spacing=50) for seed, at in enumerate(own)} for own in ((900, 500, 300), (100, 90, 95))
    )
    found = summarise(late)
    assert found.low == 0.0
    assert found.high is not None
    assert found.high > found.mean
    assert summarise(seeds(-0.1, 0.1, 0.0)).low == pytest.approx(-T2 * 0.1 / math.sqrt(3))  # R2 may be below 0
    (need,) = needs_of(make_claim(measure="reach", target=0.5), [early, late])
    assert need.interval().low is not None
    assert need.interval().low < 0  # type: ignore[operator]


def test_only_seeds_that_both_have_are_compared() -> None:
    a, b = seeds(0.9, 0.9, 0.9, 0.9), seeds(0.1, 0.1)
    (need,) = needs_of(make_claim(), [a, b])
    assert len(need.numbers) == 2
    assert verdict(make_claim(), a, b) == "undecided"
    assert needs_of(make_claim(), [a, {7: Value(0.1)}]) == []


def test_a_small_lead_is_settled_by_seeds() -> None:
    """Behind by 1 %, and surely so: not ahead. A tie in all seeds is neither, and a lead below the margin is none."""
    a, b = seeds(0.594, 0.595, 0.593), seeds(0.6, 0.601, 0.6)
    assert [verdict(make_claim(), *each) for each in ((a, b), (a, a), (b, a))] == ["fails", "undecided", "holds"]
    assert verdict(make_claim(margin=0.02), b, a) == "fails"


def test_claims_of_a_lead_have_no_tolerance() -> None:
    """None is between ahead and not ahead, where no number of seeds would settle it."""
    claims = [claim for paper in PAPERS for claim in read_paper(paper).claims]
    assert not [claim for claim in claims if claim.check in ("first", "order") and claim.tolerance]


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        (seeds(20, 30, 25), seeds(None, None, None), "holds"),
        (seeds(None, None, None), seeds(20, 30, 25), "fails"),
        (seeds(20, 30, 25), seeds(None, 90, 95), "holds"),
        (seeds(20, 30, None), seeds(None, None, None), "undecided"),
        (seeds(None, None, None), seeds(None, None, None), "undecided"),
        (seeds(120, 130, 110), seeds(None, None, None), "undecided"),  # the other's run ended before that
    ],
)
def test_a_target_never_met_is_later_than_the_end(a: Values, b: Values, wanted: str) -> None:
    claim = make_claim(measure="reach", target=0.6)
    assert verdict(claim, a, b) == wanted


def test_a_bound_leaves_the_interval_open() -> None:
    within = make_claim(runs=("A",), measure="reach", target=0.6, check="within", tolerance=0.25)
    stated = {"stated": (80.0,)}
    assert verdict(within.model_copy(update=stated), seeds(None, None, None)) == "undecided"
    assert verdict(within.model_copy(update={"stated": (50.0,)}), seeds(None, None, None)) == "fails"
    assert verdict(within.model_copy(update=stated), seeds(81, 79, 80)) == "holds"
    ratio = make_claim(measure="reach", target=0.6, check="ratio", stated=(3.0,), tolerance=0.2)
    (need,) = needs_of(ratio, [seeds(20, 20, 20), seeds(60, 60, None)])
    assert need.interval().high == math.inf
    assert need.numbers == pytest.approx((math.log(3), math.log(3), math.log(5)))
    assert verdict(ratio, seeds(20, 20, 20), seeds(60, 61, 59)) == "holds"
    assert verdict(ratio, seeds(2, 2, 2), seeds(None, None, None)) == "fails"  # more than 50
    assert needs_of(ratio, [seeds(0, 0, 0), seeds(60, 60, 60)]) == []  # no ratio to nothing


def test_probes_that_are_apart_widen_an_interval_to_the_side_where_a_value_may_be() -> None:
    """A target met at 20 after a probe at 15 was met in between; of another it was met between 54 and 60."""
    one, other = ({seed: Value(at, spacing=gap) for seed in range(3)} for at, gap in ((20.0, 5.0), (60.0, 6.0)))
    met = {"measure": "reach", "target": 0.6, "stated": (1.0,)}

    def ends(claim: Claim, *values: Values) -> tuple[float | None, float | None]:
        (need,) = needs_of(claim, values)
        return need.interval().low, need.interval().high

    assert ends(make_claim(**met), one, other) == (54 - 20, 60 - 15)
    ratio = make_claim(**met, check="ratio")
    assert ends(ratio, one, other) == pytest.approx((math.log(54 / 20), math.log(60 / 15)))
    first = {seed: Value(20.0, spacing=20.0) for seed in range(3)}  # met at any time from the start on
    assert ends(ratio, first, other) == pytest.approx((math.log(54 / 20), math.inf))
    for check in ("within", "close"):
        assert ends(make_claim(**met, runs=("A",), check=check), other) == (54, 60)


def test_every_condition_needs_three_seeds_and_has_to_hold() -> None:
    order = make_claim(runs=("A", "B", "C"), check="order")
    best, middle, worst = (seeds(*(level + step for step in (0.0, 0.01, 0.02))) for level in (0.9, 0.8, 0.7))
    assert verdict(order, best, middle, worst) == "holds"
    assert verdict(order, best, middle, seeds(0.7, 0.71)) == "undecided"
    assert verdict(order, best, middle, seeds(0.6, 0.9, 0.8)) == "undecided"
    assert needs_of(order, [best, middle, {7: Value(0.7)}]) == []


def test_margins_are_shares_of_the_run_behind_and_tolerances_of_the_largest() -> None:
    high, low = seeds(110.5, 110.5, 110.5), seeds(100, 100, 100)
    assert verdict(make_claim(margin=0.1), high, low) == "holds"  # 10.5 is more than 10, and less than 11.05
    assert [verdict(make_claim(margin=share), high, low) for share in (0.104, 0.106)] == ["holds", "fails"]
    for pair in ((high, low), (low, high)):  # 10.5 of 110.5 are 9.5 %
        assert [verdict(make_claim(check="alike", tolerance=share), *pair) for share in (0.094, 0.096)] == [
            "fails",
            "holds",
        ]


def test_a_ratios_tolerance_is_a_factor_to_both_sides() -> None:
    ratio = make_claim(check="ratio", stated=(1.0,), tolerance=1.0)
    for of, wanted in ((1.9, "holds"), (2.1, "fails"), (1 / 1.9, "holds"), (1 / 2.1, "fails")):
        assert verdict(ratio, seeds(1, 1, 1), seeds(of, of, of)) == wanted


def test_wide_intervals_settle_nothing() -> None:
    close = make_claim(runs=("A",), check="close", stated=(0.8,), tolerance=0.05)
    assert verdict(close, seeds(0.8, 0.79, 0.81)) == "holds"
    assert verdict(close, seeds(0.7, 0.8, 0.9)) == "undecided"
    assert verdict(close, seeds(0.5, 0.51, 0.52)) == "fails"
    least = make_claim(runs=("A",), check="at-least", bound=0.6)
    assert verdict(least, seeds(0.62, 0.7, 0.61)) == "undecided"


def test_failing_takes_more_where_a_claim_needs_more() -> None:
    """A lead whose 95 % interval just misses 0 fails a claim about two runs, not one about four: there are three."""
    half = T2 * 0.01 / math.sqrt(3)
    numbers = tuple(-1.01 * half + step for step in (-0.01, 0.0, 0.01))
    behind, level = (ClaimNeed("", each, (1e-9, math.inf)) for each in (numbers, (0.0, 0.0, 0.0)))
    assert settle([behind]) == "fails"
    assert settle([behind, level, level]) == "undecided"


@pytest.mark.more
@pytest.mark.parametrize("seeds_", [3, 5])
@pytest.mark.parametrize("rivals", [1, 2])
def test_chance_alone_settles_a_claim_in_one_of_twenty_cases(seeds_: int, rivals: int) -> None:
    """No run is better: each verdict comes up in at most 2.5 %, the two together in 5 %. The power is that of t."""
    claim = make_claim(runs=tuple("ABC"[: rivals + 1]))
    rng, found = generator(7, "evidence"), []
    for _ in range(3000):
        network = rng.normal(0.7, 0.1, seeds_)
        found.append(verdict(claim, *(seeds(*(network + rng.normal(0, 0.02, seeds_))) for _ in range(rivals + 1))))
    assert found.count("holds") / 3000 < 0.035
    assert found.count("fails") / 3000 < 0.035


@pytest.mark.parametrize(("lead", "least"), thinned([(1.0, 0.12), (2.0, 0.4), (4.0, 0.85)], 1))
def test_power_with_three_seeds(lead: float, least: float) -> None:
    """Leads of so many standard deviations of the difference are found at least so often with three seeds."""
    rng = generator(11, "evidence")
    found = [verdict(make_claim(), seeds(*(lead + rng.normal(0, 1, 3))), seeds(0, 0, 0)) for _ in range(1000)]
    assert found.count("holds") / 1000 > least
    assert found.count("fails") <= 3


@pytest.mark.more
def test_chance_alone_seldom_has_one_run_meet_a_target_in_all_seeds_and_another_in_none() -> None:
    """Each meets it in half of its runs: that is at most one case of 64 for each verdict with three seeds."""
    claim = make_claim(measure="reach", target=0.6)
    rng = generator(13, "evidence")

    def draw() -> Values:
        return seeds(*(50.0 if met else None for met in rng.random(3) < 0.5))

    found = [verdict(claim, draw(), draw()) for _ in range(4000)]
    assert 0 < found.count("holds") / 4000 < 0.025
    assert 0 < found.count("fails") / 4000 < 0.025


def test_values_are_numpys_in_real_runs() -> None:
    assert verdict(make_claim(), seeds(*np.full(3, 0.8)), seeds(*np.full(3, 0.7))) == "holds"
