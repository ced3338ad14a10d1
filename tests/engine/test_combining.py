"""From clients' results to their cluster's: by hand, and from models whose memory is used again."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pytest
import torch

from atoll.aggregation.mean import Combine, average_models, says
from atoll.aggregation.robust import median
from atoll.aggregation.screening import Screening
from atoll.aggregation.usual_norms import ENOUGH, Norms
from atoll.engine.cohorts import Cohort
from atoll.engine.combining import combine_updates
from atoll.local.task import ClientUpdate

WEIGHTS = np.array([1.0, 2.0, 5.0])


def cohort(cluster: int, usual: Norms = ()) -> Cohort:
    clients = np.arange(3) + 3 * cluster
    start = {"w": torch.zeros(1, dtype=torch.float64)}
    return Cohort(0, 0, 0, cluster, clients, WEIGHTS, 16.0, start, usual=usual)


def overwriting(values: Sequence[float]) -> Iterator[ClientUpdate]:
    """Yield models that are valid only until the next one is asked for."""
    memory = torch.empty(1, dtype=torch.float64)
    for value in values:
        yield ClientUpdate({"w": memory.fill_(value)}, -value)
    memory.fill_(1e9)


@pytest.mark.parametrize(
    "screening",
    [None, Screening(), Screening(usual_norms="note"), Screening(usual_norms="refuse")],
    ids=["none", "each", "note", "refuse"],
)
def test_models_need_not_outlive_the_next_one(screening: Screening | None) -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    found = combine_updates([cohort(0), cohort(1)], average_models, overwriting(values), screening)
    assert [each.model["w"].item() for each in found] == [20 / 8, 44 / 8]
    assert [each.loss for each in found] == [-20 / 8, -44 / 8]


@pytest.mark.parametrize(("combine", "value"), [(average_models, 16 / 6), (median(), 3.0)])
def test_what_is_refused_counts_nowhere(combine: Combine, value: float) -> None:
    kept = [{"own": torch.tensor(client)} for client in range(3)]
    models = [torch.tensor([each], dtype=torch.float64) for each in (1.0, float("nan"), 3.0)]
    updates = [ClientUpdate({"w": model}, model.item(), state) for model, state in zip(models, kept, strict=True)]
    (found,) = combine_updates([cohort(0)], combine, updates, Screening())
    assert found.model["w"].item() == pytest.approx(value)
    assert found.loss == pytest.approx(16 / 6)
    assert (found.arrived, found.refused) == (6 / 8, {"not_finite": 1})
    assert found.states == {0: kept[0], 2: kept[2]}


def test_while_one_cluster_knows_too_few_norms_those_of_the_event_count() -> None:
    known = tuple((1.0, client) for client in range(ENOUGH))
    updates = [ClientUpdate({"w": torch.tensor([each], dtype=torch.float64)}, 0.0) for each in (1, 1, 9e9, 1, 1, 1)]
    found = combine_updates([cohort(0), cohort(1, known)], average_models, updates, Screening(usual_norms="refuse"))
    assert [each.refused for each in found] == [{"unusual": 1}, {}]
    assert [each.model["w"].item() for each in found] == [1.0, 1.0]


def test_what_is_of_another_form_has_no_norm() -> None:
    updates = [ClientUpdate({name: torch.ones(1, dtype=torch.float64)}, 0.0) for name in ("w", "other", "w")]
    (found,) = combine_updates([cohort(0)], average_models, updates, Screening(usual_norms="refuse"))
    assert found.refused == {"wrong_form": 1}
    assert found.norms == ((1.0, 0), (1.0, 2))


def test_the_loss_told_of_a_rule_that_withstands_attackers_is_the_median() -> None:
    updates = [ClientUpdate({"w": torch.ones(1, dtype=torch.float64)}, loss) for loss in (1e9, 2.0, 1.0)]
    (found,) = combine_updates([cohort(0)], says("median_of_losses")(partial(median())), updates)
    assert found.loss == 1.0
