"""Augmentation: seeded for each client and step, of training batches alone, and told in a sentence where it fails."""

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import atoll
from atoll import (
    Dataset,
    Experiment,
    InputError,
    LocalRule,
    Population,
    Trainer,
    generator,
    make_population,
    read_model,
)
from atoll.experiment.modules import make_rule
from atoll.local import trainer as trainers
from atoll.local.augment import cifar, crop_flip
from atoll.local.layers import standardised
from atoll.local.rule import adam, sgd
from atoll.local.task import ClientTask
from atoll.local.weights import place
from atoll.support.seeds import layers_drawing_from

SEED = 3


@pytest.fixture(autouse=True)
def _kornia() -> None:
    pytest.importorskip("kornia")


def images(samples: int = 60, side: int = 12, channels: int = 3) -> Dataset:
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 256, (samples, channels, side, side)).astype(np.uint8)
    return Dataset("images", inputs, np.arange(samples) % 3, inputs[:9], np.arange(9) % 3, 3, scale=1 / 255)


POPULATION: Population = make_population(images(), list(np.arange(60).reshape(6, 10)))


def small(classes: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Dropout(), nn.Linear(200, classes))


def own(inputs: Tensor, strength: float = 0.1) -> Tensor:
    return inputs.add_(strength * torch.randn_like(inputs))  # in place: the pool and the other steps keep theirs


def idle(inputs: Tensor) -> Tensor:
    """Draw, and change nothing."""
    torch.rand(7)
    return inputs


def settings(**changes: Any) -> dict[str, Any]:
    data = {"dataset": images(), "clients": 6, "augment": "cifar", **changes.pop("data", {})}
    local = {"steps": 2, "batch_size": 4, "lr": 0.05}
    return {"rounds": 3, "model": small_model, "data": data, "local": local, "method": {"name": "fedavg"}, **changes}


def small_model(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Dropout(), nn.Linear(200, classes))


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def task(client: int = 2, event: int = 1) -> ClientTask:
    return ClientTask(event, event, 0, 0, client, read_model(small()))


# What is drawn.


@pytest.mark.parametrize("optimizer", [sgd, adam])
@pytest.mark.parametrize("batch_size", [4, "full"])
@pytest.mark.parametrize("augment", [cifar, crop_flip, own])
def test_a_clients_steps_are_those_by_hand(optimizer: Any, batch_size: Any, augment: Any) -> None:
    rule = LocalRule(optimizer, lr=0.05, steps=3, batch_size=batch_size, augment=augment)
    ours, key = Trainer(small(), POPULATION, rule, SEED).train(task()), task().key
    samples, module = POPULATION.samples(2), place(small())  # in the layout that the trainer's is in, for the same bits
    drawn = generator(SEED, "batches", *key).integers(10, size=(3, 4))
    rows = [samples] * 3 if batch_size == "full" else list(samples[drawn])
    steps = optimizer(module.parameters(), 0.05)
    losses = []
    with layers_drawing_from(SEED, "layers", *key):
        for step, own_rows in enumerate(rows):
            inputs = torch.from_numpy(POPULATION.data.inputs[own_rows]) * torch.tensor(POPULATION.data.scale)
            with layers_drawing_from(SEED, "augment", *key, step):
                inputs = augment(inputs.float())
            loss = nn.functional.cross_entropy(module(inputs), torch.from_numpy(POPULATION.data.targets[own_rows]))
            steps.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            steps.step()
            losses.append(loss.detach())
    assert same(ours.model, dict(module.state_dict()))
    assert ours.loss == pytest.approx(float(sum(losses)) / 3)


def test_batches_and_dropout_draw_as_without_it() -> None:
    """Whatever an augmentation draws, the other random numbers stay the same, and so do the global ones."""
    found = []
    for augment in (None, idle):
        rule = LocalRule(sgd, lr=0.05, steps=3, batch_size=4, augment=augment)
        trainer, work = Trainer(small(), POPULATION, rule, SEED), task()
        torch.manual_seed(9)
        found.append(trainer.train(work))
        assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(9)))
    assert same(found[0].model, found[1].model)


def test_steps_clients_and_events_differ() -> None:
    rule = LocalRule(sgd, lr=0.05, steps=2, batch_size=4, augment=lambda inputs: torch.rand_like(inputs))
    trainer = Trainer(small(), POPULATION, rule, SEED)
    drawn = [x for each in (task(), task(3), task(2, 2)) for x, _ in trainer.draw_batches(each)]
    assert len({x.numpy().tobytes() for x in drawn}) == 6
    again = [x for x, _ in trainer.draw_batches(task())]
    assert all(map(torch.equal, again, drawn))


def runs(**changes: Any) -> Iterator[Any]:
    for executor in ("serial", "cores"):
        yield atoll.run(settings(run={"executor": executor, "workers": 2}, **changes))


@pytest.mark.parametrize("augment", ["cifar", "crop-flip", own])
def test_cores_give_serials_bits(augment: Any) -> None:
    one, other = runs(data={"augment": augment})
    assert same(one.model(), other.model())
    plain = atoll.run(settings(data={"augment": "none"}))
    assert not same(one.model(), plain.model())


def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    def experiment() -> Experiment:
        return Experiment(**settings(run={"executor": "serial", "checkpoint_every": 1}))

    whole = list(atoll.run_events(experiment(), tmp_path / "whole"))
    with closing(atoll.run_events(experiment(), tmp_path / "half")) as events:
        for _ in range(3):
            next(events)
    rest = list(atoll.run_events(experiment(), tmp_path / "half", resume=True))
    assert 0 < len(rest) < len(whole)
    one, other = (sorted((tmp_path / name / "checkpoint").glob("*.safetensors"))[-1] for name in ("whole", "half"))
    assert one.read_bytes() == other.read_bytes()


# What is not augmented.


def test_only_training_calls_it() -> None:
    """Losses that find clusters, evaluation and probes see the samples as they are."""
    called = []

    def counted(inputs: Tensor) -> Tensor:
        called.append(len(inputs))
        return inputs

    method = {"name": "ifca", "clusters": 2, "fraction": 0.5}
    run = {"executor": "serial", "probes": ["client_accuracy"]}
    wanted = settings(data={"augment": counted}, method=method, run=run)
    one = atoll.run(wanted)
    assert called == [4] * (1 + 3 * 3 * 2)  # the step tried beforehand; rounds x cohort x steps
    other = atoll.run({**wanted, "data": {**wanted["data"], "augment": "none"}})
    assert one.history["train_loss"].tolist() == other.history["train_loss"].tolist()
    assert same(one.model(0), other.model(0))


def test_losses_that_find_clusters_are_of_the_samples_as_they_are() -> None:
    models = [read_model(small()), {name: each + 0.1 for name, each in read_model(small()).items()}]
    rules = [LocalRule(sgd, lr=0.05, augment=each) for each in (None, cifar)]
    ours, theirs = (Trainer(small(), POPULATION, r, 0).losses(models, np.arange(6), 0) for r in rules)
    assert np.array_equal(ours, theirs)


def test_without_it_nothing_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainers, "augmented", None)
    monkeypatch.setitem(sys.modules, "kornia.augmentation", None)
    made = Experiment(**settings(data={"augment": "none"}))
    assert make_rule(made.settings).augment is None
    assert make_rule(made.settings) == make_rule(
        Experiment(**settings()).settings.model_copy(update={"data": made.settings.data})
    )
    assert atoll.run(made.settings).model()


# What the transforms do.


def drawn(augment: Any, inputs: Tensor, **given: Any) -> Tensor:
    with layers_drawing_from(SEED, "augment"):
        return augment(inputs, **given)


def test_a_centre_crop_of_a_shifted_image_is_a_random_crop() -> None:
    inputs = torch.rand(40, 3, 12, 12)
    found = drawn(crop_flip, inputs, shift=2)[:, :, 2:-2, 2:-2]
    seen = set()
    for image, crop in zip(inputs, found, strict=True):
        windows = {
            (top, left, flip): (image.flip(-1) if flip else image)[:, top : top + 8, left : left + 8]
            for top in range(5)
            for left in range(5)
            for flip in (False, True)
        }
        (place,) = [place for place, window in windows.items() if torch.equal(window, crop)]
        seen.add(place)
    assert {flip for *_, flip in seen} == {False, True}
    assert len({top for top, *_ in seen}) == len({left for _, left, _ in seen}) == 5


def test_none_of_it_leaves_images_as_they_are() -> None:
    inputs = torch.rand(5, 1, 9, 12)
    assert torch.equal(drawn(crop_flip, inputs, shift=0, flip=0.0), inputs)
    assert torch.equal(drawn(crop_flip, inputs, shift=0, flip=1.0), inputs.flip(-1))


def test_cifar_is_tensorflows_brightness_and_contrast_of_the_crop() -> None:
    """After the crop and the standardisation of each image, as in the code of IFCA's authors."""
    inputs = torch.rand(30, 3, 20, 20)
    with layers_drawing_from(SEED, "augment"):
        crops = crop_flip(inputs)[:, :, 4:-4, 4:-4].double()
        by = torch.empty(2, 30, 1, 1, 1).uniform_(-1, 1).double()
    lit = crops + 63 / 255 * by[1]
    mean = lit.mean(dim=(2, 3), keepdim=True)
    expected = (lit - mean) * (1 + 0.8 * by[0]) + mean
    found = drawn(cifar, inputs)[:, :, 4:-4, 4:-4]
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)
    dark = drawn(cifar, inputs, brightness=0.0)[:, :, 4:-4, 4:-4]
    torch.testing.assert_close(standardised(found), standardised(dark), rtol=0, atol=1e-4)  # brightness cancels
    assert found.dtype == torch.float32


def test_a_batch_may_share_shift_brightness_and_contrast() -> None:
    inputs = torch.rand(1, 3, 20, 20).expand(30, -1, -1, -1)
    found = drawn(cifar, inputs, batchwise=True)
    assert len({each.numpy().tobytes() for each in found}) == 2  # flipped or not, each by itself
    assert len({each.numpy().tobytes() for each in drawn(cifar, inputs)}) == 30


# What is refused.


def refused(told: str, tmp_path: Path, **changes: Any) -> None:
    with pytest.raises(InputError, match=told) as caught:
        atoll.run(settings(**changes), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def grown(inputs: Tensor) -> Tensor:
    return torch.cat([inputs, inputs], dim=1)


def doubled(inputs: Tensor) -> Tensor:
    return inputs.double()


def as_array(inputs: Tensor) -> Any:
    return inputs.numpy()


def forgotten(inputs: Tensor) -> None:
    pass


def broken(inputs: Tensor) -> Tensor:
    return inputs[:, 0, 0, 99]


LIKE = r"must return a tensor like its inputs, float32 \[4, 3, 12, 12\]; it returned"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"augment": "crop"}, r"data.augment = 'crop': .*did you mean 'crop-flip'"),
        ({"augment": "nowhere:f"}, r"data.augment = 'nowhere:f': there is no module 'nowhere'"),
        ({"augment": grown}, rf"data.augment: {LIKE} float32 \[4, 6, 12, 12\]"),
        ({"augment": doubled}, rf"data.augment: {LIKE} float64"),
        ({"augment": as_array}, rf"data.augment: {LIKE} an array of float32"),
        ({"augment": forgotten}, rf"data.augment: {LIKE} nothing"),
        (
            {"augment": broken},
            r"data.augment = '.*broken': calling it failed \(IndexError: .*test_augment.py line \d+\)",
        ),
        (
            {"augment": "crop-flip", "shift": 7},
            r"data.augment = 'crop-flip': needs images of more than 14x14 pixels.* \[3, 12, 12\]",
        ),
        ({"augment": "crop-flip", "shift": 6}, r"data.augment = 'crop-flip': needs images of more than 12x12 pixels"),
        ({"augment": "crop-flip", "shift": -1}, r"data.shift = -1"),
        ({"flip": 0.5}, r"data.flip: is taken by data.augment = 'crop-flip', not by data.augment = 'cifar'"),
        ({"contrast": 2.0}, r"data.contrast = 2.0"),
    ],
)
def test_bad_input_is_told_in_a_sentence_before_anything_is_written(
    data: dict[str, Any], told: str, tmp_path: Path
) -> None:
    refused(told, tmp_path, data=data)


def test_tables_and_sequences_have_no_images(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).random((30, 5), np.float32)
    table = Dataset("rows", rows, np.arange(30) % 3, rows[:3], np.arange(3), 3)
    told = r"data.augment = 'cifar': needs images of more than 8x8 pixels.*; inputs have the shape \[5\]"
    refused(told, tmp_path, data={"dataset": table}, model={"name": "mlp"})


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "kornia.augmentation", None)
    refused(r"^data.augment = 'cifar' needs kornia; run pip install 'kornia>=0.9'$", tmp_path)


@pytest.mark.parametrize("executor", ["stacked", "weighted"])
def test_executors_of_many_clients_are_refused(executor: str, tmp_path: Path) -> None:
    told = rf"run.executor = '{executor}': data.augment: each client's batches are augmented .*; use 'serial' or 'auto'"
    refused(told, tmp_path, run={"executor": executor}, local={"steps": 1})


def test_auto_trains_client_by_client() -> None:
    plain = {"augment": "none"}
    one_step = {"steps": 1}
    model = {"name": "mlp"}
    assert Experiment(**settings(local=one_step, data=plain, model=model)).execution.choice.whole
    assert not Experiment(**settings(local=one_step, model=model)).execution.choice.whole
