"""PACFL (Vahidian et al. 2023): angles against SciPy's, clusters against merging by hand, then FedAvg in each."""

import numpy as np
import pytest
from scipy.linalg import subspace_angles
from scipy.spatial.distance import squareform

from atoll import InputError, fedavg, make_population, pacfl
from atoll.methods.papers.pacfl import Angle, distances_between, signatures
from atoll.methods.parts.learned import PairwiseLinkage
from atoll.support.arrays import Floats
from tests.by_hand import FIRST, POPULATION, agglomerated, groups_of, rounds_by_hand, run, starts
from tests.methods.twins import RULE
from tests.problems import classification, linear_module, network
from tests.tiers import thinned

PLANTED = classification(clients=7, samples=9, width=6)


def vectors_of(client: int, label: int, count: int) -> Floats:
    rows = PLANTED.samples(client)
    inputs = PLANTED.data.inputs[rows[PLANTED.data.targets[rows] == label]]
    values, vectors = np.linalg.eigh(inputs.T @ inputs)
    kept = np.argsort(values)[::-1][: min(count, np.linalg.matrix_rank(inputs) if len(inputs) else 0)]
    return np.asarray(vectors[:, kept])


def angle_by_hand(angle: Angle, one: list[Floats], other: list[Floats], count: int) -> float:
    if angle == "smallest":
        return float(np.degrees(subspace_angles(np.hstack(one), np.hstack(other)).min()))
    total = 0.0
    for a, b in zip(one, other, strict=True):
        shared = min(a.shape[1], b.shape[1])
        total += 90 * (max(a.shape[1], b.shape[1]) - shared)
        total += np.degrees(subspace_angles(a, b)).sum() if shared else 0.0
    return float(total)


@pytest.mark.parametrize("angle", ["sum", "smallest"])
@pytest.mark.parametrize("count", [1, 2])
def test_angles_are_those_of_scipy(angle: Angle, count: int) -> None:
    found = squareform(distances_between(signatures(PLANTED, network(6), count), angle))
    each = [[vectors_of(k, label, count) for label in range(3)] for k in range(len(PLANTED))]
    for i, one in enumerate(each):
        for j, other in enumerate(each[:i]):
            assert found[i, j] == pytest.approx(angle_by_hand(angle, one, other, count), abs=2e-5)


@pytest.mark.parametrize("linkage", thinned(["complete", "average", "single"], 1))
@pytest.mark.parametrize("threshold", [None, 60.0, 1e9])
def test_it_is_the_loop_by_hand(linkage: PairwiseLinkage, threshold: float | None) -> None:
    module = linear_module()
    method = pacfl(POPULATION, RULE, 6, module, 3, 1, "sum", linkage, threshold, fraction=0.6)
    distances = squareform(distances_between(signatures(POPULATION, module, 1), "sum"))
    expected = agglomerated(distances, 3, linkage, -1.0 if threshold is None else threshold)
    labels = method.labels
    assert labels is not None
    assert groups_of(labels) == expected
    models = [FIRST] * len(expected)
    for state, each in zip(run(method), rounds_by_hand(method.schedule.events, labels, models), strict=True):
        np.testing.assert_allclose(starts(state), each, rtol=0, atol=1e-10)


def test_one_cluster_is_fedavg_to_the_bit() -> None:
    ours = run(pacfl(POPULATION, RULE, 4, linear_module(), 1, fraction=0.5, seed=1))
    for one, other in zip(ours, run(fedavg(POPULATION, RULE, 4, 0.5, seed=1)), strict=True):
        assert other.server is not None
        assert all(one.starts[0][name].equal(tensor) for name, tensor in other.server.items())


def test_what_is_sent_before_training_is_counted_in_models() -> None:
    module = linear_module()  # three numbers of eight bytes
    events = pacfl(POPULATION, RULE, 3, module, 2, 2, fraction=0.5).schedule.events
    assert events[0].models_up == 4 + 8 * 2 * 3 * 4 // 24
    assert [event.models_up for event in events[1:]] == [4, 4]


def test_of_classes_that_a_client_lacks_it_sends_nothing_before_training() -> None:
    data = classification(clients=7).data
    one_class = make_population(data, [np.flatnonzero(data.targets == client % 3)[:6] for client in range(7)])
    bases = signatures(one_class, network(), 3)
    first, second = pacfl(one_class, RULE, 2, network(), 2, 3, model_bytes=4).schedule.events
    assert first.models_up - second.models_up == int(bases.any(axis=2).sum()) * bases.shape[2] < bases.size


def test_a_client_alone_is_a_cluster() -> None:
    method = pacfl(POPULATION.pooled(), RULE, 2, linear_module(), 1)
    assert method.labels is not None
    assert method.labels.tolist() == [0]


def test_more_clusters_than_clients_are_refused() -> None:
    with pytest.raises(InputError, match=r"method\.clusters = 9: must be at most data\.clients = 8"):
        pacfl(POPULATION, RULE, 2, linear_module(), 9)
