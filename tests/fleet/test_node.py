"""What a node is: its files, its settings, its rule."""

import json
import pickle
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll import Experiment, InputError, LocalRule
from atoll.fleet.agreed.agreement import DataForm, digest_of, require_fleet
from atoll.fleet.node.node import Reporting, make_method, open_site
from atoll.fleet.node.shards import FORM, INPUTS, TARGETS, read_shard, write_shards
from atoll.settings.experiment_file import compose
from tests.fleets import agreement_of, small
from tests.tiers import thinned


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return write_shards(small(), tmp_path / "shards")[1]


def test_a_client_finds_its_own_samples_in_its_folder(tmp_path: Path) -> None:
    experiment = small(data={"partition": "rotated"})
    population = experiment.population
    folders = write_shards(experiment, tmp_path)
    for client, folder in enumerate(folders):
        data = read_shard(experiment.settings, folder)
        rows = population.samples(client)
        pool = population.data
        images = [np.rot90(pool.inputs[r % len(pool.inputs)], r // len(pool.inputs), axes=(-2, -1)) for r in rows]
        assert np.array_equal(data.inputs, np.stack(images))
        assert np.array_equal(data.targets, pool.labels_of(rows))
        assert data.inputs.dtype == pool.inputs.dtype
        assert len(data.test_inputs) == 1  # which nobody measures anything on
    assert (population.indices >= len(population.data.inputs)).any()  # some are turned


def test_without_a_form_it_is_that_of_the_data_set(shard: Path) -> None:
    settings = small().settings
    site = open_site(settings, shard, 1)
    (shard / FORM).unlink()
    assert open_site(settings, shard, 1).agreement.digest == site.agreement.digest


def test_the_clients_of_a_node_have_data_of_one_form(tmp_path: Path) -> None:
    path = write_shards(small(), tmp_path)[1] / FORM
    path.write_text(path.read_text().replace("0.0625", "0.125"))
    with pytest.raises(InputError, match=r"client-1: has samples of another form than .*client-0; form\.json must be"):
        open_site(small().settings, tmp_path, (0, 1))


def write(folder: Path, name: str, array: Any) -> None:
    np.save(folder / name, array, allow_pickle=False)


def wrong_labels(folder: Path) -> None:
    labels = np.load(folder / TARGETS)
    labels[17] = 10
    write(folder, TARGETS, labels)


DAMAGE = {
    "no folder": (lambda f: f.rename(f.with_name("away")), "there is no such folder; it must hold"),
    "no inputs": (lambda f: (f / INPUTS).unlink(), r"inputs.npy: cannot be read \(No such file or directory\)"),
    "no targets": (lambda f: (f / TARGETS).unlink(), r"targets.npy: cannot be read \(No such file or directory\)"),
    "labels": (wrong_labels, r"targets.npy: labels must be from 0 to 9, sample 17 has 10 \(1 such samples\)"),
    "negative": (lambda f: write(f, TARGETS, np.full(40, -1)), "labels must be from 0 to 9, sample 0 has -1"),
    "real labels": (lambda f: write(f, TARGETS, np.zeros(40)), "must hold one whole number a sample"),
    "one-hot": (lambda f: write(f, TARGETS, np.zeros((40, 10), int)), "must hold one whole number a sample"),
    "shape": (
        lambda f: write(f, INPUTS, np.zeros((40, 1, 28, 28))),
        r"inputs.npy: samples have the shape \[1, 28, 28\], but the model's inputs have \[1, 8, 8\]",
    ),
    "lengths": (lambda f: write(f, TARGETS, np.zeros(39, int)), "has 39 targets for 40 samples"),
    "empty": (lambda f: write(f, INPUTS, np.zeros((0, 1, 8, 8))), "at least one sample"),
    "not finite": (lambda f: write(f, INPUTS, np.full((40, 1, 8, 8), np.nan)), "not finite"),
    "texts": (lambda f: write(f, TARGETS, np.array(["a"] * 40)), "must hold an array of numbers"),
    "no array": (lambda f: (f / INPUTS).write_bytes(b"hello"), "is not a .npy file of numbers"),
    "a pickle": (lambda f: (f / INPUTS).write_bytes(pickle.dumps([1])), "is not a .npy file of numbers"),
    "no form": (lambda f: (f / FORM).write_text("{}"), "form.json: shape: .*must hold shape, classes, scale and loss"),
    "form": (
        lambda f: (f / FORM).write_text(json.dumps({"shape": [1, 8, 8], "classes": 10, "scale": 1.0, "loss": "l1"})),
        "form.json: loss = 'l1' and classes = 10: must be",
    ),
}


@pytest.mark.parametrize(("damage", "told"), DAMAGE.values(), ids=DAMAGE)
def test_samples_that_do_not_fit_are_told_in_a_sentence(damage: Any, told: str, shard: Path) -> None:
    damage(shard)
    with pytest.raises(InputError, match=told) as caught:
        open_site(small().settings, shard, 1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("client", [-1, 4, [0, 0], []], ids=str)
def test_a_client_that_there_is_not_is_refused(client: Any, shard: Path) -> None:
    with pytest.raises(InputError, match=r"must be from 0 to data\.clients - 1 = 3"):
        open_site(small().settings, shard, client)


def test_class_counts_need_classes(tmp_path: Path) -> None:
    experiment = small(data={"dataset": "regression"}, model={"name": "linear"})
    (folder, *_) = write_shards(experiment, tmp_path)
    with pytest.raises(InputError, match="class_counts = true"):
        open_site(experiment.settings, folder, 0, Reporting(class_counts=True))


@pytest.mark.parametrize(
    "values",
    [
        {"epsilon": 1.0},
        {"class_counts": True, "epsilon": 0.0},
        {"class_counts": True, "epsilon": float("nan")},
        {"utc_offset": 30.0},
        {"slots": (-1,)},
    ],
    ids=str,
)
def test_reporting_refuses_what_no_server_takes(values: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Reporting(**values)


METHODS: dict[str, dict[str, Any]] = {
    "fedcluster": {"clustering": {"clusters": 3}},
    "fedavg": {"method": {"name": "fedavg"}, "local": {"proximal": 0.1, "lr_factor": 2.0}},
    "ifca": {"method": {"name": "ifca", "resample": True}, "rounds": 2},
    "cfl-mgd": {"method": {"name": "cfl-mgd", "beta": 0.5}},
    "own": {"method": {"name": "tests.fleet.test_node:halved", "by": 4.0}},
    **{
        pattern: {"method": {"name": "hierarchical", "pattern": pattern, "intra_rounds": 2}, "rounds": 12}
        for pattern in ("censyn", "cenasy", "decsyn", "decasy")
    },
}


def halved(population: Any, clustering: Any, rule: LocalRule, rounds: int, by: float) -> Any:
    """A method of one's own with a local rule of its own."""
    from atoll import fedcluster

    return fedcluster(population, clustering, replace(rule, lr=rule.lr / by), rounds)


@pytest.mark.more
@pytest.mark.parametrize("changes", thinned(METHODS.values(), 1), ids=METHODS)
def test_a_node_comes_to_the_rule_of_the_server(changes: dict[str, Any], tmp_path: Path) -> None:
    experiment = small(**changes)
    theirs = experiment.method.rule
    ours = make_method(experiment.settings, np.where(np.arange(4) == 2, 40, 10**9), experiment.module).rule
    for field in fields(LocalRule):
        one, two = getattr(ours, field.name), getattr(theirs, field.name)
        if field.name == "optimizer":
            assert told(one) == told(two)
        else:
            assert one == two, field.name
    site = open_site(experiment.settings, write_shards(experiment, tmp_path)[2], 2)
    assert site.agreement.digest == agreement_of(experiment).digest
    assert site.agreement.form == agreement_of(experiment).form
    assert list(site.agreement.form) == list(agreement_of(experiment).form)


def told(optimizer: Any) -> Any:
    if isinstance(optimizer, partial):
        return told(optimizer.func), optimizer.args, optimizer.keywords
    cells = [cell.cell_contents for cell in optimizer.__closure__ or ()]
    return [cell if isinstance(cell, dict) else getattr(cell, "__name__", cell) for cell in cells] or optimizer


def test_the_form_has_the_moments_that_a_client_sends(tmp_path: Path) -> None:
    form = agreement_of(small(method={"name": "cfl-mgd"})).form
    assert {name for name in form if "@" in name} == {
        f"{name}@momentum_buffer" for name in ("1.weight", "1.bias", "3.weight", "3.bias")
    }
    assert not any("@" in name for name in agreement_of(small()).form)


def test_a_client_with_too_few_samples_is_named(tmp_path: Path) -> None:
    experiment = small()
    folder = write_shards(experiment, tmp_path)[2]
    settings = small(method={"name": "ifca", "resample": True}, rounds=50).settings
    with pytest.raises(InputError, match="client 2 has 40 samples but needs at least 2 x rounds = 100"):
        open_site(settings, folder, 2)


FORM_OF_DIGITS = DataForm((1, 8, 8), 10, 1 / 16, "cross-entropy")


def digest(**changes: Any) -> str:
    experiment = small(**changes)
    return digest_of(experiment.settings, FORM_OF_DIGITS, experiment.method)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"model": {"name": "lr"}},
        {"local": {"lr": 0.01}},
        {"local": {"optimizer": "adam"}},
        {"method": {"name": "cfl-mgd"}},
        {"method": {"name": "cfl-mgd", "beta": 0.5}},
        {"run": {"precision": "bfloat16"}},
        {"method": {"name": "ifca", "resample": True}},
        {"data": {"augment": "crop-flip", "shift": 1}},
    ],
    ids=str,
)
def test_settings_that_change_a_clients_work_change_the_digest(changes: dict[str, Any]) -> None:
    assert digest(**changes) != digest()


def test_arguments_of_an_augmentation_change_the_digest() -> None:
    one, other = (digest(data={"augment": "crop-flip", "shift": shift}) for shift in (1, 2))
    assert one != other


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"rounds": 7},
        {"method": {"order": "fixed"}},
        {"method": {"fraction": 0.5}},
        {"method": {"combine": "median"}},
        {"clustering": {"clusters": 4}},
        {"network": {"upload_seconds": 3.0}},
        {"data": {"root": "elsewhere", "partition": "dirichlet"}},
        {"faults": {"tolerate": True}},
        {"run": {"device": "cuda", "executor": "fleet"}},
        {"fleet": {"wait_seconds": 3.0}},
    ],
    ids=str,
)
def test_settings_of_the_server_alone_do_not(changes: dict[str, Any]) -> None:
    assert digest(**changes) == digest()


def test_the_rounds_matter_where_data_are_split_for_each() -> None:
    resampled = {"name": "ifca", "resample": True}
    assert digest(method=resampled, rounds=7) != digest(method=resampled, rounds=8)


@pytest.mark.parametrize("field", ["shape", "classes", "scale", "loss"])
def test_the_form_of_the_data_is_in_the_digest(field: str) -> None:
    other = {"shape": (64,), "classes": 9, "scale": 1.0, "loss": "squared"}
    changed, experiment = DataForm(**(vars(FORM_OF_DIGITS) | {field: other[field]})), small()
    assert digest_of(experiment.settings, changed, experiment.method) != digest()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"method": {"name": "centralized"}}, "method.name = 'centralized'"),
        ({"faults": {"attackers": 0.5}}, "faults.attackers = 0.5"),
        ({"faults": {"dropout": 0.5}}, "faults.dropout = 0.5"),
        ({"privacy": {"trust": "aggregator", "clip": 1.0, "noise": 1.0}}, "aggregators are in the server's process"),
    ],
)
def test_what_makes_no_sense_on_a_fleet_is_refused(changes: dict[str, Any], told: str, tmp_path: Path) -> None:
    experiment = Experiment(compose([small().settings.model_dump(exclude_none=True), changes])[0])
    with pytest.raises(InputError, match=told):
        require_fleet(experiment.settings)
    with pytest.raises(InputError, match=told):
        open_site(experiment.settings, tmp_path, 0)
    with pytest.raises(InputError, match=told):
        write_shards(experiment, tmp_path)
