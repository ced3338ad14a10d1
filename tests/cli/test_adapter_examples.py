"""The examples of clusters of adapters, FedLEASE and HiLoRA, against loops by hand."""

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import atoll
from atoll import Experiment, InputError, State, read_result, run_events
from atoll.settings.validation import validate
from tests.cli.pages import ROOT
from tests.texts import changed, make_all, work_beside

pytestmark = [
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("peft", "transformers"))), reason="the extra text is not installed"
    ),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # transformers' of its own names
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.more,
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_all(tmp_path_factory.mktemp("texts"))


@pytest.fixture(autouse=True)
def place(made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return work_beside(made, tmp_path, monkeypatch)


@pytest.fixture
def fedlease(place: Path) -> ModuleType:
    return importlib.import_module("fedlease")


@pytest.fixture
def hilora(place: Path) -> ModuleType:
    return importlib.import_module("hilora")


def experiment(**sections: Any) -> Experiment:
    return Experiment(validate(changed(**sections)))


def end_of(mine: Experiment, folder: str = "run") -> tuple[list[dict[str, Any]], State]:
    rows = [step.row for step in run_events(mine, Path(folder)) if step.row is not None]
    state = read_result(Path(folder)).state
    assert state is not None
    return rows, state


def by_client(mine: Experiment, start: dict[str, torch.Tensor], rounds: int) -> list[dict[str, torch.Tensor]]:
    """Return each client's model after it has trained alone, all batches being full: plain gradient descent by hand."""
    module, found = mine.initial.copy(), []
    data = mine.clients.dealt.data
    for client in range(4):
        atoll.load_model(module, start)
        rows = mine.population.samples(client)
        inputs, targets = torch.from_numpy(data.inputs[rows]), torch.from_numpy(data.labels[rows])
        trained = {name: each for name, each in module.named_parameters() if each.requires_grad}
        for _ in range(rounds * 3):
            loss = losses(module, inputs, targets)
            for parameter, gradient in zip(
                trained.values(), torch.autograd.grad(loss, list(trained.values())), strict=True
            ):
                parameter.data.sub_(0.1 * gradient)
        found.append({name: each.detach().clone() for name, each in trained.items()})
    return found


def losses(module: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean over texts of the mean loss of the next token, each text by itself, without padding."""
    each = []
    for row in inputs:
        ids = row[row >= 0][None].long()
        logits = module.transformer(input_ids=ids).logits[0, :-1]
        each.append(torch.nn.functional.cross_entropy(logits, ids[0, 1:]))
    return torch.stack(each).mean()


def test_fedlease_is_a_loop_by_hand(fedlease: ModuleType) -> None:
    method = {"name": "fedlease:fedlease", "clusters": 3, "warmup": 2, "fraction": 1.0}
    mine = experiment(method=method, rounds=3)
    (start,) = mine.training.initial_models()
    alone = by_client(mine, start, rounds=2)
    names = sorted(name for name in start if "lora_B" in name)
    apart = np.zeros((4, 4))
    for i in range(4):
        for j in range(4):
            cosines = [
                float(torch.nn.functional.cosine_similarity(alone[i][n].ravel(), alone[j][n].ravel(), dim=0))
                for n in names
            ]
            apart[i, j] = 1 - np.mean(cosines)
    np.testing.assert_allclose(fedlease.distances(alone), apart, atol=1e-5)
    rows, state = end_of(mine)
    assert state.labels is not None
    groups = mine.population.groups()
    assert rows[-1]["ari"] == 1, "the two languages, of up to three clusters"
    for cluster in range(2):
        members = np.flatnonzero(state.labels == cluster)
        assert len(set(groups[members])) == 1
        begun = {name: torch.stack([alone[k][name] for k in members]).mean(dim=0) for name in start}
        trained = by_client(mine, begun, rounds=1)
        for name in start:
            mean = torch.stack([trained[k][name] for k in members]).mean(dim=0)
            torch.testing.assert_close(state.starts[cluster][name], mean, rtol=0, atol=1e-6)
    events = mine.method.schedule.events
    assert [(each.models_down, each.models_up) for each in events] == [(4, 0), (0, 4), (4, 4)]


def test_fedlease_takes_the_number_of_clusters_with_the_best_silhouette(fedlease: ModuleType) -> None:
    rng = np.random.default_rng(0)
    centres, truth = rng.normal(size=(5, 40)), np.repeat(np.arange(5), 4)
    sent = [
        {
            "lora_B.x": torch.from_numpy((centres[c] + 0.1 * rng.normal(size=40)).reshape(10, 4)),
            "lora_A.x": torch.ones(4),
        }
        for c in truth
    ]
    apart = fedlease.distances(sent)
    labels = fedlease.allocate(apart, 10)
    assert len(set(zip(labels, truth, strict=True))) == len(set(labels)) == 5

    def silhouette(found: np.ndarray) -> float:
        each = []
        for k in range(len(found)):
            own = [j for j in np.flatnonzero(found == found[k]) if j != k]
            others = [apart[k, found == c].mean() for c in set(found) - {found[k]}]
            inside, nearest = np.mean([apart[k, j] for j in own]), min(others)
            each.append((nearest - inside) / max(nearest, inside))
        return float(np.mean(each))

    assert silhouette(labels) > silhouette(fedlease.allocate(apart, 4)) > 0
    assert len(set(fedlease.allocate(apart, 4))) == 4, "as many as may be, where there are more"


HILORA = {"name": "hilora:hilora", "root": 2, "cluster": 1, "clusters": 3, "apart": 0.5, "fraction": 1.0}
LORA = {"lora": {"r": 6, "target_modules": "all-linear"}}


def parts_of(model: dict[str, torch.Tensor], number: int) -> dict[str, torch.Tensor]:
    """Return one of three tiers of rank two."""
    low, high = 2 * number, 2 * number + 2
    return {name: each[:, low:high] if "lora_B" in name else each[low:high] for name, each in model.items()}


def test_hilora_trains_one_tier_after_the_other(hilora: ModuleType) -> None:
    mine = experiment(method=HILORA, model=LORA, rounds=5, run={"executor": "serial", "probes": ["client_perplexity"]})
    (start,) = mine.training.initial_models()
    states = []
    for step in atoll.train(mine.method, mine.execution.make_executor(), atoll.init(mine.method, start)):
        states.append(step.state)
    models = [states[0].starts[0], states[1].starts[0], states[2].starts[0], states[4].starts[0]]
    moved = [
        [
            any(not torch.equal(new, parts_of(old, number)[name]) for name, new in parts_of(model, number).items())
            for number in range(3)
        ]
        for old, model in zip([start, *models], models, strict=False)
    ]
    assert moved == [[True, False, False], [True, False, False], [False, True, False], [False, False, False]]
    leaves = [parts_of(states[4].clients[k], 2) for k in range(4)]
    assert all((leaf[name] != 0).any() for leaf in leaves for name in leaf if "lora_B" in name)
    assert any((leaves[0][name] != leaves[1][name]).any() for name in leaves[0])
    up = [(each.models_down, each.models_up) for each in mine.method.schedule.events]
    assert up == [(4, 4), (4, 4), (4, 4), (4, 0), (0, 0)]
    rows, _ = end_of(mine)
    assert rows[-1]["ari"] == 1
    assert rows[-1]["client_perplexity"] < rows[3]["client_perplexity"], "leaves are measured with their clients"


def test_hiloras_step_is_the_gradient_of_the_loss_and_what_keeps_tiers_apart(hilora: ModuleType) -> None:
    mine = experiment(method={**HILORA, "root": 1}, model=LORA, rounds=2, local={"steps": 1})
    (start,) = mine.training.initial_models()
    generator = torch.Generator().manual_seed(0)
    begun = {name: torch.randn(each.shape, generator=generator) for name, each in start.items()}
    module = mine.initial.copy()
    data = mine.clients.dealt.data
    rows = mine.population.samples(1)
    atoll.load_model(module, begun)
    trained = {name: each for name, each in module.named_parameters() if each.requires_grad}
    loss = losses(module, torch.from_numpy(data.inputs[rows]), torch.empty(0))
    for name, each in trained.items():
        if "lora_B" in name:
            loss = loss + 0.5 * (each[:, :2].detach().T @ each[:, 2:4]).square().sum()
    gradients = dict(zip(trained, torch.autograd.grad(loss, list(trained.values())), strict=True))
    own = hilora.Tiered(mine.initial.copy(), mine.population, mine.method.rule, 0, last=(1, 2), weight=0.5)
    update = own.train(atoll.ClientTask(1, 1, 0, 0, 1, begun))
    for name in begun:
        expected = begun[name].clone()
        parts_of({name: expected}, 1)[name].sub_(0.1 * parts_of(gradients, 1)[name])
        torch.testing.assert_close(update.model[name], expected, rtol=0, atol=1e-5)


def test_hilora_averages_products_and_leaves_other_tiers_alone(hilora: ModuleType) -> None:
    generator = torch.Generator().manual_seed(0)

    def draw() -> dict[str, torch.Tensor]:
        return {"lora_A.x": torch.randn(6, 5, generator=generator), "lora_B.x": torch.randn(7, 6, generator=generator)}

    start, models = draw(), [draw(), draw()]
    for model in models:
        for number in (0, 2):
            for name, each in parts_of(model, number).items():
                each.copy_(parts_of(start, number)[name])
    made = hilora.combine_tiers([(1.0, models[0]), (3.0, models[1])], start, 4.0)
    for number in (0, 2):
        assert all(torch.equal(each, parts_of(start, number)[name]) for name, each in parts_of(made, number).items())
    tiers = [parts_of(model, 1) for model in models]
    mean = 0.25 * tiers[0]["lora_B.x"] @ tiers[0]["lora_A.x"] + 0.75 * tiers[1]["lora_B.x"] @ tiers[1]["lora_A.x"]
    u, s, v = torch.linalg.svd(mean)
    own = parts_of(made, 1)
    torch.testing.assert_close(own["lora_B.x"] @ own["lora_A.x"], u[:, :2] * s[:2] @ v[:2], rtol=0, atol=1e-5)
    torch.testing.assert_close(own["lora_B.x"].T @ own["lora_B.x"], torch.eye(2), rtol=0, atol=1e-5)


def test_hilora_clusters_by_the_angles_between_spaces(hilora: ModuleType) -> None:
    generator = torch.Generator().manual_seed(0)
    bases = torch.randn(4, 30, 2, generator=generator)
    truth = np.repeat(np.arange(4), 5)
    sent = []
    for group in truth:
        turned = bases[group] @ torch.randn(2, 2, generator=generator)  # another basis of the same space
        near = turned + 0.05 * torch.randn(30, 2, generator=generator)
        sent.append({"lora_A.x": torch.ones(6, 3), "lora_B.x": torch.cat([near, torch.randn(30, 4)], dim=1)})
    apart = hilora.distances(sent)
    for i, j in ((0, 1), (0, 7)):
        q, r = (torch.linalg.qr(parts_of(sent[k], 0)["lora_B.x"].double())[0] for k in (i, j))
        angles = torch.linalg.svdvals(q.T @ r).arccos()
        assert apart[i, j] == pytest.approx(float(angles.sin().square().mean()), abs=1e-9)
    labels = hilora.cluster_by(apart, 8, 0)
    assert len(set(zip(labels, truth, strict=True))) == len(set(labels)) == 4


@pytest.mark.parametrize(
    ("method", "model", "told"),
    [
        ({"name": "fedlease:fedlease", "warmup": 2}, {}, "method.warmup = 2, method.clusters = 8: must be from 1 to"),
        (
            {"name": "fedlease:fedlease", "clusters": 3},
            {"lora": None},
            "method.name = 'fedlease': the model has no adapters; model.lora adds them",
        ),
        ({**HILORA, "cluster": 2}, LORA, "method.root = 2, method.cluster = 2, method.clusters = 3: root and cluster"),
        ({**HILORA, "root": 1}, {}, "model.lora.r = 2: must be a multiple of three with hilora"),
    ],
)
def test_what_does_not_fit_is_refused(method: dict[str, Any], model: dict[str, Any], told: str) -> None:
    with pytest.raises((InputError, atoll.AtollError), match=told.replace(".", r"\.")):
        end_of(experiment(method=method, model=model))
