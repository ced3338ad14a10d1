"""Attackers who know the honest clients' results: what they send, by hand, and the same bits on all executors."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from atoll import Serial
from atoll.aggregation.mean import Combine, average_models
from atoll.aggregation.robust import median
from atoll.aggregation.screening import Screening
from atoll.engine.chain import Chain
from atoll.engine.cohorts import ClusterUpdate
from atoll.executors.cores.cores_executor import Cores
from atoll.faults.attacks import COLLUSIONS, Colluding
from atoll.local.models import Model
from atoll.support.arrays import Floats
from tests.attackers import attacked_by
from tests.faults.test_attacks import ATTACKERS, cohort, same, trainer
from tests.problems import as_vector
from tests.tiers import thinned


def colluding(attack: str, strength: float | None = None) -> Colluding:
    return Colluding(False, None, "off", 0.0, frozenset(ATTACKERS.tolist()), attack, strength)


def honest_vectors() -> Floats:
    """What the honest clients of the cohort train."""
    tasks = [task for task in cohort().tasks if task.client not in ATTACKERS]
    return np.stack([as_vector(trainer().train(task).model) for task in tasks])


def by_hand(attack: str, strength: float) -> Floats:
    honest, start = honest_vectors(), as_vector(cohort().start)
    if attack == "little-is-enough":
        return np.asarray(honest.mean(axis=0) - strength * honest.std(axis=0))
    return np.asarray(start - strength * (honest.mean(axis=0) - start))


@pytest.mark.parametrize(
    ("attack", "strength", "used"),
    [
        ("little-is-enough", None, 1.5),
        ("little-is-enough", 4.0, 4.0),
        ("inner-product", None, 0.5),
        ("inner-product", 10.0, 10.0),
    ],
)
def test_the_mean_has_in_it_what_attackers_send(attack: str, strength: float | None, used: float) -> None:
    (found,) = Serial(trainer()).train([cohort()], average_models, colluding(attack, strength))
    weights = cohort().weights
    evil = np.isin(np.arange(6), ATTACKERS)
    rows = np.empty((6, len(as_vector(found.model))))
    rows[~evil], rows[evil] = honest_vectors(), by_hand(attack, used)
    np.testing.assert_allclose(as_vector(found.model), weights @ rows / weights.sum(), rtol=0, atol=1e-12)
    assert found.refused == {}


@pytest.mark.parametrize("attack", COLLUSIONS)
def test_moments_are_attacked_and_counters_are_not(attack: str) -> None:
    start = {"w": torch.tensor([1.0]), "count": torch.tensor(3)}
    honest = [{"w": torch.tensor([w]), "w@u": torch.tensor([2 * w]), "count": torch.tensor(7)} for w in (2.0, 4.0)]
    sent = COLLUSIONS[attack](start, honest, 1.0)
    expected = {"little-is-enough": (2.0, 4.0, 7), "inner-product": (-1.0, -6.0, 7)}[attack]
    assert tuple(sent[name].item() for name in ("w", "w@u", "count")) == expected


@pytest.mark.parametrize("screening", [Screening(), Screening(max_update_norm=1e-9)])
def test_what_attackers_send_is_screened_as_all_is(screening: Screening) -> None:
    attack = replace(colluding("inner-product", 1e9), max_update_norm=screening.max_update_norm or 100.0)
    (found,) = Serial(trainer()).train([cohort()], average_models, attack)
    assert found.refused == {"too_large": 2 if screening.max_update_norm is None else 6}


@pytest.mark.parametrize("attackers", [[], range(6)])
def test_where_nobody_or_everybody_attacks_all_send_what_they_trained(attackers: list[int]) -> None:
    screening = replace(colluding("inner-product"), attackers=frozenset(attackers))
    (found,) = Serial(trainer()).train([cohort()], average_models, screening)
    (expected,) = Serial(trainer()).train([cohort()], average_models)
    assert same(found.model, expected.model)


@pytest.mark.parametrize("rule", thinned([average_models, median()], 1))
@pytest.mark.parametrize("attack", COLLUSIONS)
def test_workers_give_the_bits_of_one_client_after_the_other(attack: str, rule: Combine) -> None:
    cohorts = [cohort(), replace(cohort(), event=3, cluster=1)]

    def outcome(updates: list[ClusterUpdate]) -> list[tuple[Model, float]]:
        return [(update.model, update.loss) for update in updates]

    def attacked() -> Chain:
        return attacked_by(trainer(), ATTACKERS, attack)

    expected = outcome(Serial(attacked()).train(cohorts, rule, colluding(attack)))
    for workers in (1, 3):
        with Cores(attacked(), workers, model_bytes=4000) as executor:
            found = outcome(executor.train(cohorts, rule, colluding(attack)))
        for (one, one_loss), (other, other_loss) in zip(found, expected, strict=True):
            assert same(one, other)
            assert one_loss == other_loss
