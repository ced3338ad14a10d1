"""FMCL (Ali and Brattain 2026): prototypes and clusters against loops by hand, then FedAvg in each; frozen models."""

from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from atoll import Experiment, InputError, fedavg, fmcl, make_runs
from atoll.methods.parts.features import prototypes
from atoll.methods.parts.learned import PairwiseLinkage
from atoll.support.arrays import Floats
from tests.by_hand import FIRST, POPULATION, agglomerated, groups_of, rounds_by_hand, run, starts
from tests.methods.twins import RULE
from tests.problems import classification, linear_module, network

PLANTED = classification(clients=7, samples=5, width=4)


class Doubled(nn.Module):
    """A frozen model without parameters."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat([inputs, inputs**2], dim=1)


def by_hand(embed: object) -> Floats:
    found = []
    for k in range(len(PLANTED)):
        rows = PLANTED.samples(k)
        each, labels = embed(PLANTED.data.inputs[rows]), PLANTED.data.targets[rows]  # type: ignore[operator]
        found.append([each[labels == c].mean(axis=0) if (labels == c).any() else 0 * each[0] for c in range(3)])
    return np.array(found)


def test_prototypes_are_means_of_what_the_last_layer_is_given_or_of_a_frozen_model() -> None:
    module = network()
    weight, bias = (module.state_dict()[f"0.{name}"].numpy() for name in ("weight", "bias"))
    own = by_hand(lambda x: np.tanh(x @ weight.T + bias))
    assert not own.any(axis=2).all(), "some client lacks a class"
    np.testing.assert_allclose(prototypes(PLANTED, module, None), own, rtol=0, atol=1e-12)
    doubled = by_hand(lambda x: np.hstack([x, x**2]))
    np.testing.assert_allclose(prototypes(PLANTED, module, Doubled()), doubled, rtol=0, atol=1e-12)


@pytest.mark.parametrize("encoder", [None, Doubled()])
@pytest.mark.parametrize(("linkage", "threshold"), [("average", None), ("single", 0.5), ("complete", 1e9)])
def test_clusters_are_merged_as_by_hand(
    encoder: nn.Module | None, linkage: PairwiseLinkage, threshold: float | None
) -> None:
    module, distances = network(), np.zeros((7, 7))
    found = prototypes(PLANTED, module, encoder)
    for i, j in combinations(range(7), 2):
        cosines = [
            a @ b / np.linalg.norm(a) / np.linalg.norm(b)
            for a, b in zip(found[i], found[j], strict=True)
            if a.any() and b.any()
        ]
        held = [np.sqrt(each.any(axis=1).sum()) for each in (found[i], found[j])]
        distances[i, j] = distances[j, i] = 1 - sum(cosines) / (held[0] * held[1])
    method = fmcl(PLANTED, RULE, 2, module, encoder, 3, linkage, threshold)
    assert method.labels is not None
    assert groups_of(method.labels) == agglomerated(distances, 3, linkage, -1.0 if threshold is None else threshold)
    numbers = int(found.any(axis=2).sum()) * found.shape[2]
    size = sum(each.nbytes for each in module.state_dict().values())
    first, second = method.schedule.events
    assert first.models_up == second.models_up - (-4 * numbers // size)
    small = fmcl(PLANTED, RULE, 2, module, encoder, 3, linkage, threshold, model_bytes=4).schedule.events
    assert small[0].models_up - small[1].models_up == numbers < found.size


def test_each_cluster_is_fedavg_by_hand() -> None:
    method = fmcl(POPULATION, RULE, 6, linear_module(), clusters=3, fraction=0.6)
    assert method.labels is not None
    models = [FIRST] * len(groups_of(method.labels))
    for state, each in zip(run(method), rounds_by_hand(method.schedule.events, method.labels, models), strict=True):
        np.testing.assert_allclose(starts(state), each, rtol=0, atol=1e-10)


def test_one_cluster_is_fedavg_to_the_bit() -> None:
    ours = run(fmcl(POPULATION, RULE, 4, linear_module(), clusters=1, fraction=0.5, seed=1))
    for one, other in zip(ours, run(fedavg(POPULATION, RULE, 4, 0.5, seed=1)), strict=True):
        assert other.server is not None
        assert all(one.starts[0][name].equal(tensor) for name, tensor in other.server.items())


def test_a_client_alone_is_a_cluster() -> None:
    method = fmcl(POPULATION.pooled(), RULE, 2, linear_module(), clusters=1)
    assert method.labels is not None
    assert method.labels.tolist() == [0]


def halves(shape: tuple[int, ...]) -> nn.Module:
    """A frozen model that sees the upper half of the digits."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32, bias=False), nn.ReLU())


def too_narrow() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(63, 3))


def endless() -> nn.Module:
    made = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    next(made.parameters()).data.fill_(float("nan"))
    return made


class Ragged(nn.Linear):
    """Gives as many numbers as a batch has inputs, as a model of texts does by the longest of them."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.flatten(1))[:, : len(inputs)]


def ragged() -> nn.Module:
    return Ragged(64, 1000)


def no_model() -> str:
    return "resnet"


def experiment(*changes: str) -> Experiment:
    base = {
        "rounds": 2,
        "data": {"clients": 12, "samples": 60, "rotations": 2},
        "model": {"name": "mlp"},
        "method": {"name": "fmcl", "clusters": 2},
    }
    return Experiment(make_runs(base, changes=list(changes))[0])


def test_settings_name_the_frozen_model() -> None:
    labels = experiment("method.encoder=tests.methods.test_fmcl:halves").method.labels
    assert labels is not None
    assert len(set(labels.tolist())) == 2
    again = experiment("method.encoder=tests.methods.test_fmcl:halves").method.labels
    assert np.array_equal(labels, again)  # type: ignore[arg-type]  # whose weights come from the run's seed


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("encoder=tests.methods.test_fmcl:too_narrow", r"encoder: for samples of shape \[1, 8, 8\] the model fails"),
        ("encoder=tests.methods.test_fmcl:endless", "the model must give each a row of finite numbers"),
        ("encoder=tests.methods.test_fmcl:ragged", "a row of finite numbers, as many for each"),
        ("encoder=tests.methods.test_fmcl:no_model", "must return a PyTorch module, not 'str'"),
        ("encoder=resnet", r"method\.encoder = 'resnet'"),
        ("clusters=13", r"method\.clusters = 13: must be at most data\.clients = 12"),
        ("name=fedavg", None),
    ],
)
def test_frozen_models_that_do_not_fit_are_refused(change: str, told: str | None) -> None:
    changes = [f"method.{change}", "data.samples=", "data.partition=dirichlet", "data.alpha=0.3"]
    if told is None:
        changes += ["method.clusters=", "method.encoder=tests.methods.test_fmcl:halves"]
        told = r"method\.encoder = 'tests\.methods\.test_fmcl:halves': method\.name = 'fedavg' embeds nothing"
    with pytest.raises(InputError, match=told):
        experiment(*changes).check()
