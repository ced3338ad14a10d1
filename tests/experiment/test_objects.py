"""Functions and data sets given as objects, as from a notebook: found again, kept apart, and refused in a sentence."""

import functools
import math
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import atoll
from atoll.runs.fingerprint import as_written, digest
from atoll.settings import plugins
from atoll.settings.given_objects import named
from atoll.settings.validation import validate

SMALL: dict[str, Any] = {
    "rounds": 1,
    "data": {"clients": 4},
    "clustering": {"clusters": 2},
    "local": {"steps": 1},
    "method": {"fraction": 1.0},
}
Settings: Any = atoll.Settings  # type checkers know sections only, not what may stand in their place
SETTINGS = Settings(**SMALL)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Run cells in the module `__main__`, as a kernel does; returns what a cell defines as `f`."""
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(plugins, "_GIVEN", {})

    def run_cell(text: str) -> Any:
        exec(text, vars(main))
        return vars(main)["f"]

    return run_cell


def evens(population: atoll.Population) -> list[int]:
    return [client % 2 for client in range(len(population))]


def letters(samples: int = 40, shift: float = 0.0) -> atoll.Dataset:
    labels = np.arange(samples) % 2
    inputs = np.stack([labels + shift, 1.0 - labels], axis=1).astype(np.float32)
    return atoll.Dataset("two letters", inputs, labels, inputs, labels, classes=2)


def narrow(shape: tuple[int, ...], classes: int, width: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], width), nn.ReLU(), nn.Linear(width, classes))


def plain(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr)


def test_a_run_of_objects_has_the_bits_of_one_of_names(tmp_path: Path) -> None:
    own: dict[str, Any] = {
        "clustering": evens,
        "data": {"dataset": letters, "clients": 4},
        "model": {"name": narrow, "width": 2},
    }
    given = atoll.run(SMALL, tmp_path / "objects", **own, local={"optimizer": plain})
    by_name = atoll.run(
        SMALL,
        clustering={"method": f"{__name__}:evens"},
        data={"dataset": f"{__name__}:letters"},
        model={"name": f"{__name__}:narrow", "width": 2},
        local={"optimizer": f"{__name__}:plain"},
    )
    assert all(torch.equal(given.model()[name], tensor) for name, tensor in by_name.model().items())
    assert atoll.read_result(tmp_path / "objects").module()(torch.ones(1, 2)).shape == (1, 2)


def test_a_clustering_of_ones_own_that_asks_for_no_number_of_clusters_says_it_by_its_labels() -> None:
    def made(labels: list[int], **more: Any) -> atoll.Experiment:
        own: dict[str, Any] = {"method": lambda population: labels, **more}
        return atoll.Experiment(rounds=2, data={"clients": 4, "samples": 20}, clustering=own)

    assert made([0, 1, 1, 0]).clustering.clusters == 2
    assert made([2, 0, 1, -1], clusters=3).clustering.clusters == 3
    with pytest.raises(atoll.InputError, match=r"from 0 to 3 \(clustering.clusters = 2"):
        _ = made([0, 1, 2, 3], clusters=2).clustering
    with pytest.raises(atoll.InputError, match="leaves cluster 1 without clients; number them without gaps"):
        _ = made([0, 2, 2, 0]).clustering
    with pytest.raises(atoll.InputError, match="leaves out all clients"):
        _ = made([-1, -1, -1, -1]).clustering


def test_what_can_be_imported_keeps_its_name() -> None:
    assert named({"clustering": evens})["clustering"] == {"method": f"{__name__}:evens"}
    assert named({"method": atoll.cfl})["method"] == {"name": "cfl"}
    assert named({"model": "cnn", "run": {"probes": [evens]}}) == {
        "model": {"name": "cnn"},
        "run": {"probes": [f"{__name__}:evens"]},
    }
    runs = named({"runs": [{"label": "a", "clustering": evens}], "panels": 5})
    assert runs == {"runs": [{"label": "a", "clustering": {"method": f"{__name__}:evens"}}], "panels": 5}


def test_one_probe_must_be_in_a_list() -> None:
    with pytest.raises(atoll.InputError, match=r"run\.probes = the function evens: must be in a list, also if it"):
        named({"run": {"probes": evens}})


def test_a_cell_that_ran_twice_is_the_same_and_another_one_is_not(notebook: Callable[[str], Any]) -> None:
    first, again = (notebook("def f(population): return [0] + [1] * (len(population) - 1)") for _ in range(2))
    other = notebook("def f(population): return [1] + [0] * (len(population) - 1)")
    made = [atoll.Experiment(SETTINGS, clustering=f) for f in (first, again, other, first)]
    names = [each.settings.clustering.method for each in made]
    assert names == ["__main__:f", "__main__:f", "__main__:f_2", "__main__:f"]
    assert [each.clustering.labels.tolist() for each in made[1:3]] == [[0, 1, 1, 1], [1, 0, 0, 0]]


def test_functions_that_differ_in_what_they_hold_are_kept_apart() -> None:
    def dealt(clusters: int) -> Callable[..., Any]:
        return lambda population: [client % clusters for client in range(len(population))]

    def turned(population: atoll.Population, by: int) -> Any:
        return (np.arange(len(population)) + by) % 2

    made = [atoll.Experiment(SETTINGS, clustering={"method": dealt(k), "clusters": k}) for k in (2, 3)]
    assert [each.clustering.labels.tolist() for each in made] == [[0, 1, 0, 1], [0, 1, 2, 0]]
    made = [atoll.Experiment(SETTINGS, clustering=functools.partial(turned, by=k)) for k in (0, 1)]
    assert [each.clustering.labels.tolist() for each in made] == [[0, 1, 0, 1], [1, 0, 1, 0]]
    again = [Settings(clustering=dealt(2)).clustering.method for _ in range(2)]
    assert again[0] == again[1]


def test_data_are_told_apart_by_what_they_hold() -> None:
    one, same, other = (Settings(data=letters(shift=shift)).data.dataset for shift in (0, 0, 1))
    assert one == same != other
    assert one.startswith("__main__:two_letters_")
    assert Settings(data=replace(letters(), name="2 letters")).data.dataset.startswith("__main__:_2_letters_")
    assert atoll.Experiment(data={"dataset": letters(), "clients": 4}).clients.dealt.data.name == "two letters"


def test_ones_own_data_and_partition_may_ask_for_the_seed() -> None:
    told = dict[str, Any]()

    def make(seed: int, size: int = 8, **others: Any) -> atoll.Dataset:
        told.update(others, size=size, seed=seed)
        return letters()

    def deal(labels: Any, clients: int, seed: int) -> Any:
        return np.array_split(np.arange(len(labels) - seed), clients)

    data = {"dataset": make, "size": 9, "start": "2024-01-01", "partition": deal, "clients": 4}
    made = atoll.Experiment(SETTINGS, seed=3, data=data)
    assert made.population.sizes.sum() == 40 - 3
    assert told == {"size": 9, "start": "2024-01-01", "seed": 3}


@pytest.mark.parametrize("held", [torch.nn.ReLU, {"a": None}, {1, 2}, torch.float32])
def test_what_no_file_can_hold_is_refused(held: Any) -> None:
    def net(shape: tuple[int, ...], classes: int, extra: Any = None) -> torch.nn.Module:
        return narrow(shape, classes)

    with pytest.raises(atoll.InputError, match=r"^model\.extra = .*: must be what an experiment file can hold"):
        atoll.Experiment(SETTINGS, model={"name": net, "extra": held})


def test_planted_groups_may_have_gaps() -> None:
    columns = {"c": [*"aabbcc"] * 5, "g": [*"xxzzyy"] * 5, "v": [0, 1, 2] * 10, "y": [0, 1] * 15}
    data = {"dataset": atoll.from_pandas(pa.table(columns), target="y", client="c", group="g"), "partition": "natural"}
    made = atoll.Experiment(SETTINGS, data={**data, "clients": 2}, clustering={"method": "planted", "clusters": 2})
    assert made.clustering.labels.tolist() == [0, 1]


def test_settings_of_objects_are_copied_and_sent_within_a_process() -> None:
    settings = Settings(clustering=lambda population: [0] * len(population))
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_a_run_of_objects_goes_on_in_its_notebook_and_elsewhere_says_why_not(
    notebook: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = "def f(population): return [k % 2 for k in range(len(population))]"
    f = notebook(cell)
    atoll.run(SMALL, tmp_path / "run", clustering=f)
    f = notebook(cell)
    assert atoll.run(SMALL, tmp_path / "run", clustering=f, resume=True).history["round"].tolist() == [0, 1]
    del sys.modules["__main__"].f
    monkeypatch.setattr(plugins, "_GIVEN", {})
    told = r"clustering\.method = '__main__:f': was passed directly by another script or notebook; pass it again"
    with pytest.raises(atoll.InputError, match=told):
        atoll.read_result(tmp_path / "run")


def test_a_module_is_refused_and_a_class_of_modules_is_not() -> None:
    with pytest.raises(atoll.InputError, match=r"model\.name: is a module, 'Linear'; give a function that returns one"):
        atoll.Experiment(model=nn.Linear(2, 2))
    assert named({"model": nn.Linear})["model"] == {"name": "torch.nn.modules.linear:Linear"}


def test_an_optimizer_that_is_made_already_is_refused_and_its_class_is_not() -> None:
    made = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    told = r"local\.optimizer: is an object, 'SGD', made for one model; give its class or a function that returns one"
    with pytest.raises(atoll.InputError, match=told):
        atoll.Experiment(local={"optimizer": made})
    assert atoll.Experiment(local={"optimizer": torch.optim.SGD}).settings.local.optimizer == "torch-sgd"


def test_an_experiment_takes_settings_and_changes_of_them() -> None:
    settings = Settings(rounds=3, method="fedavg")
    changed = atoll.Experiment(settings, local={"lr": 0.5}, seed=1).settings
    assert (changed.rounds, changed.method.name, changed.local.lr, changed.seed) == (3, "fedavg", 0.5, 1)
    assert atoll.Experiment().settings == Settings()
    unlimited = Settings(fleet={"strikes": "off", "samples_limit": "off"})
    assert atoll.Experiment(unlimited, rounds=3).settings.fleet == unlimited.fleet
    assert validate(as_written(unlimited)) == unlimited
    assert digest(Settings(fleet={"samples_limit": "off"})) != digest(Settings())
    with pytest.raises(atoll.InputError, match="Experiment: takes Settings, or settings by name"):
        atoll.Experiment("quickstart")  # type: ignore[arg-type]
    with pytest.raises(atoll.InputError, match=r"clusterings: unknown.*clustering"):
        atoll.Experiment(clusterings=evens)


def with_lazy_layers(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))


def in_half(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes)).to(torch.bfloat16)


def test_a_model_in_half_precision_is_refused_in_a_sentence() -> None:
    with pytest.raises(atoll.InputError, match=r"'1\.weight' is of bfloat16, .*set run\.precision = 'bfloat16'"):
        atoll.run(model=in_half, **SMALL)


def test_a_model_without_weights_yet_is_refused_in_a_sentence() -> None:
    with pytest.raises(
        atoll.InputError, match=r"model\.name = .*with_lazy_layers': has lazy layers.*give each its size"
    ):
        atoll.run(model=with_lazy_layers, **SMALL)
