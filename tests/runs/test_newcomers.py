"""What docs/extending.md has a newcomer write does what it says: k-means on label shares, FedAT, a personal metric."""

import importlib
import sys
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch

from atoll import Clock, Experiment, LocalRule, Method, Serial, Trainer, init, load_model, read_model, train
from atoll.evaluation.scores import adjusted_rand_index
from atoll.local.batches import Batches
from atoll.local.models import Model
from atoll.local.rule import sgd
from atoll.runs.probes import check_probes
from atoll.settings.validation import validate
from tests.cli.pages import ROOT, write_files
from tests.problems import as_vector, linear_module, quadratics

POPULATION, TIERS = quadratics(clients=12), 3
RULE = LocalRule(sgd, lr=0.05, steps=3, batch_size=2)
CLOCK = Clock(np.random.default_rng(0).uniform(1, 9, 12), np.ones(12))


@pytest.fixture(scope="module", autouse=True)
def _page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("page")
    write_files(ROOT / "docs/extending.md", folder)
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


def experiment(**changes: Any) -> Experiment:
    return Experiment(validate({"rounds": 2, "data": {"clients": 20}, **changes}))


def test_k_means_finds_the_clients_of_each_label() -> None:
    made = experiment(
        data={"clients": 20, "partition": "one-label"},
        clustering={"method": "own_kmeans:label_shares", "clusters": 10, "restarts": 3},
    )
    labels = made.population.class_counts().argmax(axis=1)
    assert adjusted_rand_index(labels, made.clustering.labels) == 1.0


def fedat(rounds: int = 40) -> Method:
    made: Method = importlib.import_module("fedat").fedat(POPULATION, RULE, CLOCK, rounds, TIERS, 0.5, seed=1)
    return made


def test_fedats_tiers_keep_their_own_pace() -> None:
    events, last = fedat().schedule.events, dict.fromkeys(range(TIERS), 0.0)
    slowest = np.sort(CLOCK.seconds_of(np.arange(12)))[3::4]
    rank = np.argsort(np.argsort(CLOCK.seconds_of(np.arange(12))))
    for event in events:
        (tier,), (began,) = event.active, event.began
        assert set(rank[event.cohort] // 4) == {tier}, "the fastest four, the next, the slowest"
        assert began == last[tier]
        assert event.seconds - began == pytest.approx(CLOCK.event_seconds(event.cohort))
        assert event.seconds - began <= slowest[tier] + 1e-9
        last[tier] = event.seconds
    assert [event.seconds for event in events] == sorted(event.seconds for event in events)
    counts = np.bincount([event.active[0] for event in events])
    assert counts[0] > counts[1] > counts[2]


def test_fedats_server_is_the_loop_by_hand() -> None:
    """Every tier trains from the server's model of when it began, which is the one `staleness` updates ago."""
    method, first = fedat(), read_model(linear_module())
    executor = Serial(Trainer(linear_module(), POPULATION, RULE, 3))
    servers, tiers, updates = [as_vector(first)], [as_vector(first)] * TIERS, [0] * TIERS
    starts: list[np.ndarray] = [as_vector(first)] * TIERS
    for step in train(method, executor, init(method, first)):
        (tier,), (staleness,) = step.event.active, step.event.staleness
        np.testing.assert_array_equal(starts[tier], servers[step.event.index - staleness])
        tiers[tier] = as_vector(step.state.published[tier])
        updates[tier] += 1
        wanted = sum(updates[TIERS - 1 - m] * tiers[m] for m in range(TIERS)) / sum(updates)
        assert step.state.server is not None
        servers.append(as_vector(step.state.server))
        np.testing.assert_allclose(servers[-1], wanted, rtol=0, atol=1e-12)
        starts[tier] = servers[-1]
    assert np.abs(servers[-1] - servers[0]).max() > 0.1


def test_the_personal_metric_is_that_of_each_client_on_its_own() -> None:
    data = {"clients": 20, "samples": 40, "partition": "dirichlet", "alpha": 0.5}
    made = experiment(data=data, run={"probes": ["own_probe:personal"]})
    found = check_probes(made)
    (start,) = made.training.initial_models()
    accuracies = [personal_accuracy(made, start, client) for client in range(len(made.clients.test))]
    wanted = [np.mean(accuracies), np.percentile(accuracies, 10), min(accuracies)]
    assert list(found.values()) == pytest.approx(wanted)


def personal_accuracy(made: Experiment, start: Model, client: int) -> float:
    """Take the step with PyTorch's own optimiser."""
    module, rows = deepcopy(made.module), made.clients.test.samples(client)
    load_model(module, start)
    batches = Batches(made.clients.test.data, module)
    inputs, targets = batches.gather(rows[::2])
    torch.autograd.backward(torch.nn.functional.cross_entropy(module(inputs), targets))
    torch.optim.SGD(module.parameters(), lr=0.05).step()
    inputs, targets = batches.gather(rows[1::2])
    return float((module(inputs).argmax(dim=1) == targets).double().mean())
