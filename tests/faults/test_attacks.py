"""Attackers: what they send, worked out by hand; who they are; and that no executor changes a bit of it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from atoll import Experiment, InputError, LocalRule, Serial, Trainer, generator, make_population, read_model
from atoll.aggregation.mean import average_models
from atoll.aggregation.reductions import update_norm
from atoll.engine.cohorts import ClientTrainer, Cohort
from atoll.executors.cores.cores_executor import Cores
from atoll.faults.attacks import ATTACKS, COLLUSIONS, Attacker, Colluding, claim_samples, draw_attackers
from atoll.local.models import Model
from atoll.local.rule import momentum, sgd
from atoll.local.task import ClientTask, ClientUpdate
from atoll.runs.warnings import warnings_of
from tests.attackers import attacked_by
from tests.fleets import small
from tests.problems import as_vector, classification, linear_module, network, quadratics
from tests.tiers import thinned

POPULATION = classification(clients=6)
RULE = LocalRule(sgd, lr=0.2, steps=3, batch_size=4)
ATTACKERS = np.array([1, 4])


def trainer(rule: LocalRule = RULE) -> Trainer:
    return Trainer(network(), POPULATION, rule, seed=3)


def task(client: int, event: int = 2) -> ClientTask:
    return ClientTask(event, event, 0, 0, client, read_model(network(seed=1)))


def cohort() -> Cohort:
    return Cohort(2, 2, 0, 0, np.arange(6), POPULATION.sizes.astype(float), 6.0, read_model(network(seed=1)))


def same(one: Model, other: Model) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("attack", [name for name in ATTACKS if name != "none" and name not in COLLUSIONS])
def test_others_train_to_the_same_bits_as_without_attackers(attack: str) -> None:
    attacked = attacked_by(trainer(), ATTACKERS, attack)
    for client in (0, 1, 2, 4, 0):
        sent, honest = attacked.train(task(client)), trainer().train(task(client))
        assert same(sent.model, honest.model) == (client not in ATTACKERS)


def test_sign_flips_go_back_as_many_times_as_far() -> None:
    honest, sent = trainer().train(task(1)), attacked_by(trainer(), ATTACKERS, "sign-flip", 2.5).train(task(1))
    start = as_vector(task(1).start)
    np.testing.assert_allclose(as_vector(sent.model), start - 2.5 * (as_vector(honest.model) - start), rtol=1e-12)
    assert sent.loss == honest.loss


def test_sign_flips_turn_moments_too_and_leave_counters() -> None:
    start = {"w": torch.tensor([1.0]), "w@u": torch.tensor([2.0]), "count": torch.tensor(3)}
    trained = {
        "w": torch.tensor([2.0]),
        "w@u": torch.tensor([5.0]),
        "w@v": torch.tensor([4.0]),
        "count": torch.tensor(7),
    }
    sent = ATTACKS["sign-flip"](start, trained, np.random.default_rng(0), 2.0)
    assert {name: tensor.item() for name, tensor in sent.items()} == {"w": -1.0, "w@u": -4.0, "w@v": -8.0, "count": 7}


def test_noise_is_as_many_times_as_long_as_the_update_and_new_in_each_task() -> None:
    attacked, start = attacked_by(trainer(), ATTACKERS, "noise", 30.0), task(1).start
    first, again, later, other = (attacked.train(each).model for each in (task(1), task(1), task(1, 3), task(4)))
    assert same(first, again)
    assert update_norm(first, start) == pytest.approx(30 * update_norm(trainer().train(task(1)).model, start))
    replayed = attacked.train(replace(task(1, 3), drawn_as=2))
    assert same(first, replayed.model), "of a work that was begun as event 2"
    vectors = [as_vector(model) - as_vector(start) for model in (first, later, other)]
    for i, one in enumerate(vectors):
        for two in vectors[:i]:
            assert abs(one @ two) < 0.7 * np.linalg.norm(one) * np.linalg.norm(two)


def test_noise_leaves_moments_and_counters_as_trained() -> None:
    start = {"w": torch.zeros(50), "w@u": torch.zeros(50), "count": torch.tensor(3)}
    trained = {"w": torch.ones(50), "w@u": torch.full((50,), 9.0), "w@v": torch.ones(50), "count": torch.tensor(7)}
    sent = ATTACKS["noise"](start, trained, np.random.default_rng(0), 2.0)
    assert float(sent["w"].norm()) == pytest.approx(2 * math.sqrt(50)), "moments make it no longer"
    assert all(torch.equal(sent[name], trained[name]) for name in ("w@u", "w@v", "count"))


def test_flipped_labels_train_on_the_other_classes() -> None:
    data = replace(POPULATION.data, targets=2 - POPULATION.data.targets)
    parts = [POPULATION.samples(k) for k in range(len(POPULATION))]
    expected = Trainer(network(), make_population(data, parts), RULE, seed=3).train(task(4))
    attacked = attacked_by(trainer(), ATTACKERS, "label-flip")
    attacked.train(task(0))  # in the same module
    assert same(attacked.train(task(4)).model, expected.model)


def test_free_riders_send_back_what_they_were_sent() -> None:
    assert same(attacked_by(trainer(), ATTACKERS, "free-rider").train(task(1)).model, task(1).start)
    trained = {"w": torch.ones(1), "w@u": torch.ones(1), "count": torch.tensor(7)}
    sent = ATTACKS["free-rider"](
        {"w": torch.zeros(1), "count": torch.tensor(3)}, trained, np.random.default_rng(0), 1.0
    )
    assert {name: tensor.item() for name, tensor in sent.items()} == {"w": 0.0, "w@u": 0.0, "count": 3}


@pytest.mark.parametrize("attack", ["none", "sign-flip"])
def test_attackers_claim_a_loss_and_others_tell_theirs(attack: str) -> None:
    attacked, honest = attacked_by(trainer(), ATTACKERS, attack, claimed_loss=1e300), trainer()
    assert [attacked.train(task(k)).loss for k in (1, 4)] == [1e300, 1e300]
    assert attacked.train(task(0)).loss == honest.train(task(0)).loss
    assert same(attacked.train(task(1)).model, honest.train(task(1)).model) == (attack == "none")


def test_attackers_claim_samples_which_weigh_them_and_train_on_those_they_have() -> None:
    claimed = claim_samples(POPULATION, ATTACKERS, 1000.0)
    times = np.where(np.isin(np.arange(6), ATTACKERS), 1000, 1)
    assert claimed.sizes.tolist() == (POPULATION.sizes * times).tolist()
    assert all(np.array_equal(claimed.samples(k), POPULATION.samples(k)) for k in range(6))
    assert claim_samples(POPULATION, ATTACKERS, 1e-9).sizes[ATTACKERS].tolist() == [1, 1]
    assert claim_samples(POPULATION, ATTACKERS, 1e300).sizes[ATTACKERS].tolist() == [10**15, 10**15]


def test_flipped_labels_need_classes() -> None:
    plain = Trainer(linear_module(), quadratics(), RULE, seed=0)
    with pytest.raises(InputError, match=r"faults\.attack = 'label-flip': needs data with classes, one per sample$"):
        attacked_by(plain, ATTACKERS, "label-flip")


@pytest.mark.parametrize("rule", thinned([RULE, replace(RULE, optimizer=momentum, carry_moments=True)], 1))
@pytest.mark.parametrize("attack", thinned(["sign-flip", "noise", "label-flip"], 1))
def test_workers_give_the_bits_of_one_client_after_the_other(attack: str, rule: LocalRule) -> None:
    def attacked() -> ClientTrainer:
        return attacked_by(trainer(rule), ATTACKERS, attack)

    (expected,) = Serial(attacked()).train([cohort()], average_models)
    for workers in (1, 3):
        with Cores(attacked(), workers, model_bytes=4000) as executor:
            (found,) = executor.train([cohort()], average_models)
        assert same(found.model, expected.model)
        assert found.loss == expected.loss


def test_attackers_are_drawn_from_the_seed() -> None:
    drawn = draw_attackers(0.2, 100, seed=4)
    assert len(drawn) == len(set(drawn.tolist())) == 20
    assert drawn.tolist() == sorted(generator(4, "attackers").choice(100, 20, replace=False).tolist())
    assert drawn.tolist() != draw_attackers(0.2, 100, seed=5).tolist()
    assert len(draw_attackers(0.0, 100, seed=4)) == 0


@pytest.mark.parametrize(
    ("share", "message"),
    [(1.0, "less than 1"), (-0.1, "at least 0"), (float("nan"), "at least 0"), (0.04, "none of 10 clients; give 0.1")],
)
def test_shares_that_come_to_nothing_are_refused(share: float, message: str) -> None:
    with pytest.raises(InputError, match=f"faults.attackers = .*{message}"):
        draw_attackers(share, 10, seed=0)


@pytest.mark.parametrize("attack", ["sign-flip", "noise", "free-rider"])
def test_what_is_made_of_the_model_received_needs_that_a_client_sends_a_model(attack: str) -> None:
    """FedSoft's clients send their own model and importances instead."""
    wanted = {"attackers": 0.5, "attack": attack}
    made = small(method={"name": "fedsoft", "clusters": 2, "fraction": 1.0}, faults=wanted)
    told = rf"^faults\.attackers: cannot be used with method\.name = 'fedsoft': '{attack}' is made from"
    with pytest.raises(InputError, match=told):
        _ = made.method


@pytest.mark.parametrize("attack", ["sign-flip", "noise"])
def test_attackers_send_no_negative_variance(attack: str) -> None:
    """The mean would be of no use, and the run end, as of a mistake in the experiment."""
    start, own = {"1.running_var": torch.ones(50)}, {"1.running_var": torch.full((50,), 2.0)}
    made = Attacker(frozenset([0]), ATTACKS[attack], 9.0, None, seed=0)
    task = ClientTask(0, 0, 0, 0, 0, start)
    variances = made.send(task, ClientUpdate(own, 0.0)).model["1.running_var"]
    assert float(variances.min()) == 0.0
    assert float(ATTACKS[attack](start, own, np.random.default_rng(0), 9.0)["1.running_var"].min()) < 0.0


def test_colluding_attackers_send_no_negative_variance() -> None:
    honest = [{"1.running_var": torch.tensor([each])} for each in (0.0, 4.0)]
    made = Colluding(attackers=frozenset([2]), attack="little-is-enough", strength=9.0)
    sent = [*(ClientUpdate(each, 0.0) for each in honest), ClientUpdate(honest[0], 0.0)]
    found = list(made.sent(np.arange(3), {"1.running_var": torch.ones(1)}, iter(sent)))
    assert found[2].model["1.running_var"].tolist() == [0.0]


@pytest.mark.parametrize("attack", ["label-flip", "free-rider", "not-finite", "none", "noise"])
def test_the_strength_of_an_attack_that_has_none_is_told(attack: str) -> None:
    faults = {"attackers": 0.2, "attack": attack, "attack_strength": 3.0, "tolerate": True}
    told = f"faults.attack_strength = 3: faults.attack = '{attack}' has no strength"
    assert (told in warnings_of(Experiment(method={"name": "fedavg"}, faults=faults))) == (attack != "noise")
