"""Which results count: each reason to leave one out, at its limit and beyond."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from atoll.aggregation.screening import Reason, Screening
from atoll.local.models import Model
from atoll.local.task import ClientUpdate
from atoll.local.weights import load_model, read_model

W, U = torch.zeros(2), torch.ones(2)
NAN = torch.tensor([1.0, float("nan")])
START: Model = {"w": W, "none": torch.empty(0, 3)}


def refused(changes: Model, screening: Screening, start: Model = START, loss: float = 1.0) -> Reason | None:
    return screening.why_refused(ClientUpdate(START | changes, loss), start)


@pytest.mark.parametrize(
    ("changes", "loss", "reason"),
    [
        ({"w": W + 1e12}, -1e15, None),
        ({"w": W - 1.1e12}, 1.0, "too_large"),
        ({"w@u": U * 1.1e12}, 1.0, "too_large"),
        ({}, 1.1e15, "too_large"),
        ({}, float("inf"), "not_finite"),
        ({"w@u": NAN}, 1.0, "not_finite"),
        ({"w": NAN}, 1.0, "not_finite"),
        ({"w": W.double()}, 1.0, "wrong_form"),
    ],
)
def test_numbers_that_would_ruin_a_mean_are_left_out(changes: Model, loss: float, reason: Reason | None) -> None:
    assert refused(changes, Screening(), loss=loss) == reason
    assert refused(changes, Screening(tolerate=False), loss=loss) is None, "what makes it ends the run"


def test_a_state_that_is_not_finite_is_not_kept() -> None:
    for state, reason in (({"w": NAN}, "not_finite"), ({"w": U}, None)):
        assert Screening().why_refused(ClientUpdate(START, 1.0, state), START) == reason


@pytest.mark.parametrize(
    ("batches", "reason"), [(0, None), (10**12, None), (-1, "too_large"), (2**63 - 1, "too_large")]
)
def test_a_batch_norms_count_is_no_number_by_which_others_fail(batches: int, reason: Reason | None) -> None:
    """With a cumulative average they divide by the next count, and after the largest one counts are negative."""
    norm = nn.BatchNorm1d(2, momentum=None)
    start = read_model(norm)
    sent = start | {"num_batches_tracked": torch.tensor(batches)}
    assert Screening().why_refused(ClientUpdate(sent, 1.0), start) == reason
    load_model(norm, sent)
    with pytest.raises(ZeroDivisionError) if batches == -1 else nullcontext():
        norm(torch.randn(4, 2))
    assert reason == "too_large" or norm.num_batches_tracked == batches + 1


def test_moments_are_of_any_form_unless_some_were_sent() -> None:
    carried = START | {"w@u": U}
    assert refused({"w@u": U, "w@v": U}, Screening()) is None
    assert refused({"w@u": U}, Screening(), carried) is None
    assert refused({}, Screening(), carried) == refused({"w@v": U}, Screening(), carried) == "wrong_form"


@pytest.mark.parametrize("tolerate", [True, False])
def test_an_update_may_be_as_long_as_the_largest_norm_and_a_norm_must_be_a_number(tolerate: bool) -> None:
    most = Screening(tolerate, max_update_norm=5.0)
    assert refused({"w": torch.tensor([3.0, 4.0])}, most) is None
    assert refused({"w": torch.tensor([3.0, 4.1])}, most) == "too_large"
    assert refused({"w": NAN}, most) == ("not_finite" if tolerate else "too_large")
