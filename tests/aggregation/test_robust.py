"""Robust combine rules against slow twins in plain Python, which count a client as often as its weight says."""

import itertools
import statistics
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll import InputError
from atoll.aggregation.mean import Combine, mean
from atoll.aggregation.reductions import update_norm
from atoll.aggregation.robust import (
    ROBUST,
    bulyan,
    centred_clipping,
    geometric_median,
    krum,
    median,
    multi_krum,
    norm_clipping,
    trimmed_mean,
)
from atoll.engine.combining import weighted_median
from atoll.local.models import Model

Values = list[float]
Weights = list[int]

SEVERAL = st.lists(st.tuples(st.floats(-1e3, 1e3), st.integers(1, 5)), min_size=1, max_size=9)
RULES: dict[str, Combine] = {
    "mean": ROBUST["mean"](),
    "median": median(),
    "trimmed-mean": trimmed_mean(0.2),
    "norm-clipping": norm_clipping(1.0),
    "krum": krum(1),
    "multi-krum": multi_krum(1),
    "bulyan": bulyan(1),
    "geometric-median": geometric_median(),
    "centred-clipping": centred_clipping(1.0),
}


def draw_models(clients: int, seed: int = 0, spread: float = 1.0) -> list[Model]:
    """Models with a matrix, a bias, a moment and a counter."""
    rng = np.random.default_rng(seed)

    def model() -> Model:
        shapes = {"a.weight": (2, 3), "a.bias": (3,), "a.weight@momentum_buffer": (2, 3)}
        drawn = {name: torch.tensor(spread * rng.normal(size=shape)).float() for name, shape in shapes.items()}
        return drawn | {"count": torch.tensor(int(rng.integers(100)))}

    return [model() for _ in range(clients)]


def combine_values(rule: Combine, values: Values, weights: Weights | Values) -> float:
    pairs = [(float(w), {"w": torch.tensor([v], dtype=torch.float64)}) for v, w in zip(values, weights, strict=True)]
    return rule(pairs, {"w": torch.zeros(1, dtype=torch.float64)}, float(sum(weights)))["w"].item()


@given(SEVERAL)
def test_the_median_is_that_of_values_repeated_as_often_as_they_weigh(pairs: list[tuple[float, int]]) -> None:
    values, weights = map(list, zip(*pairs, strict=True))
    repeated = [v for v, w in pairs for _ in range(w)]
    assert combine_values(median(), values, weights) == pytest.approx(statistics.median(repeated), abs=1e-9)


@pytest.mark.parametrize("weight", [1.0, 0.1, 1 / 3, 0.7, 600.0])
@pytest.mark.parametrize("clients", [*range(1, 13), 60])
def test_with_equal_weights_it_is_the_ordinary_median(clients: int, weight: float) -> None:
    values, weights = [float(each) for each in range(clients)][::-1], [weight] * clients
    assert combine_values(median(), values, weights) == weighted_median(values, weights) == (clients - 1) / 2


@given(SEVERAL, st.integers(0, 99))
def test_the_trimmed_mean_leaves_out_as_much_weight_at_both_ends(pairs: list[tuple[float, int]], cut: int) -> None:
    values, weights = map(list, zip(*pairs, strict=True))
    repeated = sorted(v for v, w in pairs for _ in range(w * 200))  # so that every share is a whole number of values
    off = cut * len(repeated) // 200
    expected = statistics.fmean(repeated[off : len(repeated) - off])
    assert combine_values(trimmed_mean(cut / 200), values, weights) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_equal_weights_trim_whole_clients() -> None:
    assert combine_values(trimmed_mean(0.2), [5.0, -900.0, 1.0, 3.0, 700.0], [1] * 5) == pytest.approx(3.0)


@pytest.mark.parametrize("weight", [1.0, 0.1, 1 / 3, 0.7])
def test_trimmed_clients_need_not_be_finite_whatever_their_weight(weight: float) -> None:
    """Sums of weights are rounded, so that a hair of a trimmed client's weight may seem to be left."""
    for clients in range(3, 13):
        for off in range(1, (clients + 1) // 2):
            values = [1.0] * (clients - off) + [float("inf")] * off
            assert combine_values(trimmed_mean(off / clients), values, [weight] * clients) == pytest.approx(1.0)


def test_a_client_of_little_weight_counts_beside_a_heavy_one() -> None:
    assert combine_values(trimmed_mean(1e-5), [1e6, 0.0], [1.0, 9999.0]) == pytest.approx(1e6 * 0.9 / 9999.8)


def test_the_norm_of_an_update_takes_moments_as_often_as_told_and_from_zero_if_none_were_sent() -> None:
    start = {"w": torch.tensor([1.0]), "w@u": torch.tensor([10.0]), "count": torch.tensor(1)}
    model = {
        "w": torch.tensor([3.0]),
        "w@u": torch.tensor([11.0]),
        "w@v": torch.tensor([4.0]),
        "count": torch.tensor(9),
    }
    assert update_norm(model, start) == 2.0
    assert update_norm(model, start, 3.0) == pytest.approx((2.0**2 + (3 * 1.0) ** 2 + (3 * 4.0) ** 2) ** 0.5)


def clip_by_hand(models: list[Model], weights: Values, start: Model, most: float) -> dict[str, np.ndarray]:
    total = {name: np.zeros(tensor.shape) for name, tensor in start.items() if tensor.is_floating_point()}
    for model, weight in zip(models, weights, strict=True):
        moved = {name: model[name].double().numpy() - start[name].double().numpy() for name in total}
        length = sum(float((each**2).sum()) for name, each in moved.items() if "@" not in name) ** 0.5
        for name, each in moved.items():
            total[name] += weight * each * min(1.0, most / length)
    return {name: start[name].double().numpy() + each / sum(weights) for name, each in total.items()}


def test_norm_clipping_scales_long_updates_down() -> None:
    start, *models = draw_models(5)
    models[0] = {name: 50 * tensor for name, tensor in models[0].items()}
    weights, most = [3.0, 1.0, 2.0, 2.0], 3.5
    lengths = [update_norm(model, start) for model in models]
    assert min(lengths) < most < max(lengths)
    found = norm_clipping(most)(zip(weights, models, strict=True), start, sum(weights))
    for name, expected in clip_by_hand(models, weights, start, most).items():
        np.testing.assert_allclose(found[name].numpy(), expected, rtol=1e-5, atol=1e-5)


def test_moments_that_were_not_sent_are_clipped_from_zero() -> None:
    start, model = {"w": torch.zeros(1)}, {"w": torch.tensor([4.0]), "w@step": torch.tensor([8.0])}
    found = norm_clipping(1.0)([(1.0, model)], start, 1.0)
    assert {name: tensor.item() for name, tensor in found.items()} == {"w": 1.0, "w@step": 2.0}


def krum_by_hand(models: list[Model], byzantine: int) -> int:
    vectors = [
        np.concatenate([t.double().numpy().ravel() for t in m.values() if t.is_floating_point()]) for m in models
    ]
    scores = []
    for i, one in enumerate(vectors):
        others = sorted(float(((one - other) ** 2).sum()) for j, other in enumerate(vectors) if j != i)
        scores.append(sum(others[: len(models) - byzantine - 2]))
    return int(np.argmin(scores))


@pytest.mark.parametrize(("clients", "byzantine"), [(5, 1), (9, 3), (9, 0), (12, 4)])
@pytest.mark.parametrize("seed", range(5))
def test_krum_takes_the_model_with_the_least_score(clients: int, byzantine: int, seed: int) -> None:
    models = draw_models(clients, seed)
    found = krum(byzantine)([(1.0, model) for model in models], models[0], float(clients))
    assert found is models[krum_by_hand(models, byzantine)]


@pytest.mark.parametrize("clients", [1, 2, 3, 4])
def test_krum_takes_one_of_fewer_results_than_it_needs(clients: int) -> None:
    models = draw_models(clients)
    for order in itertools.permutations(models):
        chosen = krum(2)([(1.0, model) for model in order], draw_models(1, seed=9)[0], 1.0)
        assert chosen is krum(2)([(1.0, model) for model in models], draw_models(1, seed=9)[0], 1.0)


@pytest.mark.parametrize("name", RULES)
def test_the_order_of_clients_changes_nothing(name: str) -> None:
    start, *models = draw_models(8, seed=3)
    counter = {"count": torch.tensor(1)}  # taken from the first, whoever that is
    pairs = [(float(weight), model | counter) for weight, model in zip((3, 1, 2, 2, 5, 1, 4), models, strict=True)]
    expected = RULES[name](pairs, start, 18.0)
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(pairs))
        found = RULES[name]([pairs[i] for i in order], start, 18.0)
        for key, tensor in expected.items():
            torch.testing.assert_close(found[key], tensor, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", RULES)
def test_a_single_result_is_taken_as_it_is(name: str) -> None:
    start, model = draw_models(2, spread=0.1)
    assert update_norm(model, start) < 1
    found = RULES[name]([(7.0, model)], start, 7.0)
    assert list(found) == list(model)
    for key, tensor in model.items():
        assert found[key].dtype == tensor.dtype
        torch.testing.assert_close(found[key], tensor, rtol=1e-6, atol=0)


@pytest.mark.parametrize("rule", [trimmed_mean(0), norm_clipping(1e9)])
def test_rules_that_bound_nothing_are_the_mean_to_the_bit(rule: Combine) -> None:
    start, *models = draw_models(6)
    pairs = list(zip((1.0, 2.0, 3.0, 2.0, 1.0), models, strict=True))
    found, expected = rule(pairs, start, 9.0), mean(pairs)
    assert {k: t.numpy().tobytes() for k, t in found.items()} == {k: t.numpy().tobytes() for k, t in expected.items()}


@pytest.mark.parametrize("name", [name for name in RULES if name != "mean"])
@pytest.mark.parametrize("sent", [1e6, -1e30])
def test_one_client_cannot_move_the_result_far(name: str, sent: float) -> None:
    start, *models = draw_models(7, seed=1, spread=0.2)
    models[2] = {k: torch.full_like(t, sent) if t.is_floating_point() else t for k, t in models[2].items()}
    found = RULES[name]([(1.0, model) for model in models], start, 6.0)
    honest = mean([(1.0, model) for model in models[:2] + models[3:]])
    assert update_norm(found, honest) < 1
    assert update_norm(RULES["mean"]([(1.0, model) for model in models], start, 6.0), honest) > 1e4


@pytest.mark.parametrize("rule", [median(), trimmed_mean(0.3), krum(1), multi_krum(1), geometric_median()])
@pytest.mark.parametrize("sent", [float("inf"), float("-inf"), float("nan")])
def test_values_that_are_cut_off_need_not_be_finite(rule: Combine, sent: float) -> None:
    values = [1.0, 2.0, 3.0, 4.0, sent]
    assert 1 < combine_values(rule, values, [1] * 5) < 4
    assert 1 < combine_values(rule, values[::-1], [1] * 5) < 4


def test_large_tensors_are_sorted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    models = [(1.0, {"w": torch.randn(7, 11, generator=torch.Generator().manual_seed(k))}) for k in range(5)]
    whole = median()(models, {}, 5.0)["w"]
    monkeypatch.setattr("atoll.aggregation.reductions.CUT", 10)
    assert torch.equal(median()(models, {}, 5.0)["w"], whole)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: trimmed_mean(0.5), r"method\.trim = 0\.5: must be a finite number of at least 0 and less than 0\.5"),
        (lambda: trimmed_mean(-0.1), r"method\.trim = -0\.1"),
        (lambda: trimmed_mean(float("nan")), r"method\.trim = nan"),
        (lambda: norm_clipping(0), r"method\.clip_norm = 0: must be a finite number greater than 0"),
        (lambda: krum(-1), r"method\.byzantine = -1: must be a whole number of at least 0"),
        (lambda: multi_krum(-1), r"method\.byzantine = -1: must be a whole number of at least 0"),
        (lambda: multi_krum(1, keep=0), r"method\.keep = 0: must be a whole number of at least 1"),
        (lambda: bulyan(-1), r"method\.byzantine = -1: must be a whole number of at least 0"),
        (lambda: geometric_median(iterations=0), r"method\.iterations = 0: must be a whole number of at least 1"),
        (lambda: geometric_median(smoothing=0), r"method\.smoothing = 0: must be a finite number greater than 0"),
        (lambda: centred_clipping(float("nan")), r"method\.clip_norm = nan: must be a finite number greater than 0"),
        (lambda: centred_clipping(1.0, iterations=0), r"method\.iterations = 0: must be a whole number of at least 1"),
    ],
)
def test_bad_numbers_are_refused(make: Callable[[], Combine], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
