"""Rules that compare whole models, against slow twins in plain Python and NumPy, to 1e-10; and where they hold."""

import statistics
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from atoll.aggregation.mean import Combine
from atoll.aggregation.robust import bulyan, centred_clipping, geometric_median, krum, multi_krum, norm_clipping
from atoll.local.models import Model
from atoll.support.arrays import Floats


def as_model(vector: Floats) -> Model:
    """A matrix and a bias, in double precision."""
    return {"w": torch.tensor(vector[:4]).reshape(2, 2), "b": torch.tensor(vector[4:])}


def as_vector(model: Model) -> Floats:
    return np.concatenate([model["w"].reshape(-1).numpy(), model["b"].numpy()])


def drawn(clients: int, seed: int, attackers: int = 0) -> Floats:
    """Clients' models, [clients, 7]; the attackers' far off."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(clients, 7))
    vectors[rng.permutation(clients)[:attackers]] += 40 * rng.normal(size=(attackers, 7))
    return vectors


def combined(rule: Combine, vectors: Floats, weights: Sequence[float] | None = None) -> Floats:
    given = [1.0] * len(vectors) if weights is None else list(weights)
    pairs = [(weight, as_model(vector)) for weight, vector in zip(given, vectors, strict=True)]
    return as_vector(rule(pairs, as_model(np.zeros(7)), sum(given)))


def best_by_hand(vectors: Sequence[Floats], byzantine: int) -> list[int]:
    """Krum's order; of two models that have each other as only neighbour, the one nearer to all is first."""
    scores = []
    for i, one in enumerate(vectors):
        others = sorted(float(((one - other) ** 2).sum()) for j, other in enumerate(vectors) if j != i)
        scores.append((sum(others[: max(1, len(vectors) - byzantine - 2)]), sum(others), i))
    return [i for _, _, i in sorted(scores)]


def multi_krum_by_hand(vectors: Floats, byzantine: int, keep: int) -> Floats:
    best = best_by_hand(list(vectors), byzantine)[:keep]
    return np.mean([vectors[i] for i in best], axis=0)


def bulyan_by_hand(vectors: Floats, byzantine: int) -> Floats:
    left = list(vectors)
    chosen: list[Floats] = []
    while len(chosen) < len(vectors) - 2 * byzantine:
        chosen.append(left.pop(best_by_hand(left, byzantine)[0]))
    result = []
    for values in zip(*chosen, strict=True):
        middle = statistics.median(values)
        nearest = sorted(sorted(values), key=lambda value: abs(value - middle))
        result.append(statistics.fmean(nearest[: len(chosen) - 2 * byzantine]))
    return np.array(result)


def geometric_median_by_hand(vectors: Floats, weights: Sequence[float]) -> Floats:
    """Gradient descent with a line search on the weighted sum of distances: no Weiszfeld steps."""

    def cost(point: Floats) -> float:
        return sum(w * float(np.linalg.norm(point - vector)) for w, vector in zip(weights, vectors, strict=True))

    point, step = vectors.mean(axis=0), 1.0
    while step > 1e-14:
        slope = sum(
            w * (point - vector) / np.linalg.norm(point - vector) for w, vector in zip(weights, vectors, strict=True)
        )
        if cost(point - step * slope) < cost(point):
            point, step = point - step * slope, 2 * step
        else:
            step /= 2
    return point


def weiszfeld_by_hand(vectors: Floats, weights: Sequence[float], steps: int, smoothing: float) -> Floats:
    repeated = np.repeat(vectors, np.array(weights, int), axis=0)
    point = np.median(repeated, axis=0)
    for _ in range(steps):
        pulls = [w / max(smoothing, float(np.linalg.norm(v - point))) for w, v in zip(weights, vectors, strict=True)]
        point = sum(pull * vector for pull, vector in zip(pulls, vectors, strict=True)) / sum(pulls)
    return point


def centred_by_hand(vectors: Floats, weights: Sequence[float], most: float, steps: int) -> Floats:
    centre = np.zeros(vectors.shape[1])
    for _ in range(steps):
        moves = [(v - centre) * min(1.0, most / float(np.linalg.norm(v - centre))) for v in vectors]
        centre = centre + sum(w * move for w, move in zip(weights, moves, strict=True)) / sum(weights)
    return centre


@pytest.mark.parametrize(("clients", "byzantine", "keep"), [(5, 1, 2), (9, 3, 4), (12, 4, 12), (7, 0, 5)])
@pytest.mark.parametrize("seed", range(4))
def test_multi_krum_averages_the_models_with_the_least_scores(
    clients: int, byzantine: int, keep: int, seed: int
) -> None:
    vectors = drawn(clients, seed, byzantine)
    expected = multi_krum_by_hand(vectors, byzantine, keep)
    weights = np.arange(1.0, clients + 1).tolist()  # have no say
    np.testing.assert_allclose(combined(multi_krum(byzantine, keep), vectors, weights), expected, rtol=0, atol=1e-10)


def test_multi_krum_keeps_n_f_2_models_unless_told_and_one_is_krum() -> None:
    vectors = drawn(9, 3, 2)
    np.testing.assert_array_equal(combined(multi_krum(2), vectors), combined(multi_krum(2, 5), vectors))
    np.testing.assert_array_equal(combined(multi_krum(2, 1), vectors), combined(krum(2), vectors))


@pytest.mark.parametrize(("clients", "byzantine"), [(7, 1), (11, 2), (12, 2), (16, 3), (5, 0)])
@pytest.mark.parametrize("seed", range(4))
def test_bulyan_averages_what_is_nearest_to_the_median_of_models_that_krum_chose(
    clients: int, byzantine: int, seed: int
) -> None:
    vectors = drawn(clients, seed, byzantine)
    expected = bulyan_by_hand(vectors, byzantine)
    weights = np.arange(1.0, clients + 1).tolist()
    np.testing.assert_allclose(combined(bulyan(byzantine), vectors, weights), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("seed", range(4))
def test_one_coordinate_of_many_cannot_pass_bulyan(seed: int) -> None:
    """El Mhamdi et al.'s attack: honest but for one coordinate, so that the distance hides it."""
    vectors = np.random.default_rng(seed).normal(size=(15, 100))
    vectors[:3] = vectors[3:].mean(axis=0)
    vectors[:3, 2] += 4.0
    pairs = [(1.0, {"w": torch.tensor(vector)}) for vector in vectors]
    by_krum, by_bulyan = (
        abs(float(rule(pairs, {"w": torch.zeros(100)}, 15.0)["w"][2]) - vectors[3:, 2].mean())
        for rule in (krum(3), bulyan(3))
    )
    assert by_krum > 3.9
    assert by_bulyan < 1.0


@pytest.mark.parametrize("clients", [1, 2, 3, 4])
@pytest.mark.parametrize("rule", [multi_krum(2), bulyan(2)])
def test_fewer_results_than_they_need_give_a_model_among_them(rule: Combine, clients: int) -> None:
    vectors = drawn(clients, clients)
    found = combined(rule, vectors)
    assert (found >= vectors.min(axis=0) - 1e-12).all()
    assert (found <= vectors.max(axis=0) + 1e-12).all()


@pytest.mark.parametrize("weights", [[1.0] * 8, [3, 1, 4, 1, 5, 9, 2, 6]])
@pytest.mark.parametrize("seed", range(4))
def test_weiszfeld_steps_are_those_of_the_paper(weights: list[float], seed: int) -> None:
    vectors = drawn(8, seed, 2)
    for steps in (1, 3, 20):
        found = combined(geometric_median(steps, 1e-12), vectors, weights)
        np.testing.assert_allclose(found, weiszfeld_by_hand(vectors, weights, steps, 1e-12), rtol=0, atol=1e-10)


@pytest.mark.parametrize("weights", [[1.0] * 8, [3, 1, 4, 1, 5, 2, 2, 3]])
def test_the_geometric_median_has_the_least_sum_of_distances(weights: list[float]) -> None:
    vectors = drawn(8, 5, 2)
    found = combined(geometric_median(2000, 1e-12), vectors, weights)
    np.testing.assert_allclose(found, geometric_median_by_hand(vectors, weights), rtol=0, atol=1e-6)


def test_clients_that_send_the_start_back_do_not_hold_the_geometric_median_there() -> None:
    vectors = drawn(10, 1) * 0.1 + 5
    vectors[:4] = 0.0
    assert np.linalg.norm(combined(geometric_median(), vectors) - 5) < 0.5


def test_the_geometric_median_bears_numbers_that_single_precision_hardly_holds() -> None:
    vectors = drawn(7, 2)
    vectors[3] = 3e38
    pairs = [(1.0, {name: tensor.float() for name, tensor in as_model(vector).items()}) for vector in vectors]
    found = geometric_median()(pairs, as_model(np.zeros(7)), 7.0)
    assert all(tensor.dtype == torch.float32 for tensor in found.values())
    assert np.abs(as_vector(found)).max() < 3


def test_moments_are_averaged_with_the_shares_of_the_models() -> None:
    at = [(0.0, 1.0, 4.0), (0.0, -1.0, 8.0), (900.0, 0.0, 1e6)]
    pairs = [(1.0, {"w": torch.tensor([x, y]).double(), "w@u": torch.tensor([u]).double()}) for x, y, u in at]
    found = geometric_median()(pairs, {}, 3.0)
    by_position = 900 / found["w"][0].item()  # the inverse of the far model's share
    assert found["w@u"].item() == pytest.approx((1 - 1 / by_position) * 6 + 1e6 / by_position)


@pytest.mark.parametrize(("most", "steps"), [(0.5, 1), (2.0, 3), (1e9, 2)])
@pytest.mark.parametrize("seed", range(3))
def test_centred_clipping_clips_around_a_centre_that_moves(most: float, steps: int, seed: int) -> None:
    vectors, weights = drawn(8, seed, 2), [3.0, 1, 4, 1, 5, 9, 2, 6]
    found = combined(centred_clipping(most, steps), vectors, weights)
    np.testing.assert_allclose(found, centred_by_hand(vectors, weights, most, steps), rtol=0, atol=1e-10)


def test_one_step_of_centred_clipping_is_norm_clipping_to_the_bit() -> None:
    vectors = drawn(8, 0, 2)
    np.testing.assert_array_equal(combined(centred_clipping(1.5, 1), vectors), combined(norm_clipping(1.5), vectors))
