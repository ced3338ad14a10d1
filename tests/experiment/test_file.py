"""Settings: every one can be set from the command line and comes out in config.toml; layers and kinds of values."""

import tomllib
import types
import warnings
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import pytest
import tomli_w
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from atoll.data.named_datasets import read_table
from atoll.settings.experiment_file import make_runs, overlay, parse_changes, read_experiment, recipe_names, resolved
from atoll.settings.validation import Settings, validate
from atoll.support.errors import InputError, SettingWarning

TEXTS = {
    "name": "another name",
    "run.device": "cpu",
    "model.start": "before.safetensors",
    "run.stop_at": "test_loss patience 5",
    "data.dataset": "regression",
    "data.partition": "shards",
    "data.skew": "noise",
    "model.name": "cnn",
    "local.optimizer": "adam",
    "local.schedule": "CosineAnnealingLR",
    "clustering.method": "timezone",
    "network.topology": "ring",
    "method.select": "size",
    "method.name": "fedavg",
    "method.combine": "median",
    "privacy.trust": "server",
    "travel.codec": "int8",
    "drift.kind": "partition",
    "method.encoder": "tests.methods.test_fmcl:halves",
}
NEEDED: dict[str, dict[str, Any]] = {  # settings that another value asks for
    "privacy.trust": {"privacy": {"clip": 1.0, "noise": 1.0}},
    "drift.kind": {"drift": {"rounds": [1]}},
    "drift.rounds": {"drift": {"kind": "partition"}},
}
VALUES: dict[str, tuple[str, Any]] = {
    "secure.threshold": ("0.75", 0.75),
    "drift.rounds": ("[2, 4]", [2, 4]),
    "fleet.samples_limit": ("1.5", 1.5),
    "network.grid": ("[2, 3]", [2, 3]),
    "data.augment": ("crop-flip", "crop-flip"),
    "travel.stages": ('["clip"]', ["clip"]),
    "run.trackers": ('["tensorboard"]', ["tensorboard"]),
}


def leaves(model: type[BaseModel] = Settings, prefix: str = "") -> dict[str, FieldInfo]:
    """Return every setting by its path."""
    found: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found |= leaves(inner, f"{prefix}{name}.")
        else:
            found[prefix + name] = field
    return found


def another_value(path: str, field: FieldInfo) -> tuple[str, Any]:
    """Return a valid value other than the default: as typed on the command line, and as it must come out."""
    if path in VALUES:
        return VALUES[path]
    is_union = get_origin(field.annotation) in (types.UnionType, Union)
    kinds = get_args(field.annotation) if is_union else (field.annotation,)
    for kind in kinds:
        kind = get_args(kind)[0] if hasattr(kind, "__metadata__") else kind
        if get_origin(kind) is Literal:
            text = next(value for value in get_args(kind) if value != field.default)
            return text, text
        if kind == list[str]:
            return '["own:probe"]', ["own:probe"]
        if get_origin(kind) is list:
            return ("[[0, 1]]", [[0, 1]]) if get_origin(get_args(kind)[0]) is list else ("[0.25, 0.5]", [0.25, 0.5])
        if kind is bool:
            return str(not field.default).lower(), not field.default
        if kind is int:
            return "7", 7
        if kind is float:
            return "0.25", 0.25
        if kind is str:
            text = TEXTS.get(path, "module:function")
            return text, text
    raise AssertionError(f"{path} has a type that this test does not know: {field.annotation}")


@pytest.mark.parametrize("path", leaves())
def test_set_reaches_every_setting(path: str) -> None:
    text, expected = another_value(path, leaves()[path])
    (settings,) = make_runs(NEEDED.get(path, {}), None, [f"{path}={text}"])
    written: Any = tomllib.loads(tomli_w.dumps(resolved(settings)))
    for part in path.split("."):
        written = written[part]
    assert written == expected
    assert type(written) is type(expected)


def test_no_setting_is_unset_where_its_default_is_not() -> None:
    """TOML has no word for unset, so that a run's config.toml could not hold it."""
    optional = [path for path, field in leaves().items() if type(None) in get_args(field.annotation)]
    assert len(optional) > 20
    assert not [path for path in optional if leaves()[path].default is not None]


def test_every_setting_is_described() -> None:
    assert not [path for path, field in leaves().items() if not field.description]


@pytest.mark.more
def test_all_recipes_are_valid_at_every_scale() -> None:
    for name in recipe_names():
        table = read_experiment(name)
        for scale in (None, *table.get("scales", {})):
            for settings in make_runs(table, scale):
                assert settings.name == name
                assert make_runs(resolved(settings)) == [settings]


def test_layers_are_laid_in_order() -> None:
    table = {
        "rounds": 1,
        "local": {"lr": 0.1, "steps": 1},
        "scales": {"small": {"rounds": 2, "local": {"steps": 2}}},
        "runs": [{"label": "a"}, {"label": "b", "rounds": 3, "local": {"lr": 0.3}}],
    }
    a, b = make_runs(table, "small", ["local.lr=0.4"])
    assert (a.rounds, a.local.lr, a.local.steps) == (2, 0.4, 2)
    assert (b.rounds, b.local.lr, b.local.steps) == (3, 0.4, 2)
    assert [settings.local.lr for settings in make_runs(table)] == [0.1, 0.3]


def test_settings_of_another_method_share_the_classes_of_other_sections() -> None:
    """Making classes is most of the time that many settings take, as those of all methods on the benchmark's suites."""
    made = [validate({"name": "a", "rounds": 1, "method": {"name": name}}) for name in ("fedavg", "ifca")]
    same = {each for each in type(made[0]).model_fields if type(getattr(made[0], each)) is type(getattr(made[1], each))}
    assert {"data", "model", "local", "travel", "network"} <= same
    assert "method" not in same


def test_overlay_leaves_its_arguments_alone() -> None:
    below, over = {"data": {"x": [1]}}, {"data": {"y": [2]}}
    result = overlay(below, over)
    result["data"]["x"].append(5)
    result["data"]["y"].append(5)
    assert (below, over) == ({"data": {"x": [1]}}, {"data": {"y": [2]}})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("label=7", {"label": "7"}),
        ("label='7'", {"label": "7"}),
        ("label=a = b", {"label": "a = b"}),
        ("label=", {"label": ""}),
        ("label=true", {"label": "true"}),
        ("data.root=2024-01-01", {"data": {"root": "2024-01-01"}}),
        ("data.root=", {"data": {"root": None}}),
        ("data.samples=", {"data": {"samples": None}}),
        (" local.lr = 1e-3 ", {"local": {"lr": 1e-3}}),
        ("data.sizes=[1, 2]", {"data": {"sizes": [1, 2]}}),
        ("data.word=plain", {"data": {"word": "plain"}}),
        ("rounds=3\nseed = 4", {"rounds": "3\nseed = 4"}),
    ],
)
def test_changes_are_parsed(change: str, expected: dict[str, Any]) -> None:
    assert parse_changes([change]) == expected


def test_later_changes_win() -> None:
    assert parse_changes(["local.lr=1", "local.steps=2", "local.lr=3"]) == {"local": {"lr": 3, "steps": 2}}


def test_a_whole_number_is_a_number_but_a_text_is_not(tmp_path: Path) -> None:
    assert make_runs({"local": {"lr": 1}})[0].local.lr == 1.0
    with pytest.raises(InputError, match=r"local\.lr = '1': must be a finite number greater than 0"):
        make_runs({"local": {"lr": "1"}})


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "exp.toml").write_bytes(b"\xef\xbb\xbfrounds = 3\r\n")
    assert read_experiment(tmp_path / "exp.toml") == {"name": "exp", "rounds": 3}


@pytest.mark.parametrize(("file", "name"), [("rates 2.toml", "rates 2"), ("ü.toml", "ü"), ("-a.toml", "experiment")])
def test_an_experiment_has_its_files_name_unless_it_says_another(tmp_path: Path, file: str, name: str) -> None:
    (tmp_path / file).write_text("rounds = 3")
    assert make_runs(read_experiment(tmp_path / file))[0].name == name
    (tmp_path / file).write_text("name = 'mine'")
    assert make_runs(read_experiment(tmp_path / file))[0].name == "mine"


def test_clusters_that_the_method_counts_itself_are_told() -> None:
    told = r"clustering.clusters = 3: no run uses it; method.name = 'ifca' finds clusters itself"
    with pytest.warns(SettingWarning, match=told):
        make_runs({"method": {"name": "ifca"}, "clustering": {"clusters": 3}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_runs({"method": {"name": "ifca", "clusters": 3}, "clustering": {"clusters": 3}})
        make_runs({"method": {"name": "fedcluster"}, "clustering": {"clusters": 3}})


@pytest.mark.parametrize(
    ("section", "switch", "given", "told"),
    [
        ("faults", {"attackers": 0.2}, {"attack": "noise"}, "faults.attack = 'noise': no run uses it without faults"),
        ("faults", {"attackers": 0.2}, {"claimed_loss": 0.0}, "faults.claimed_loss = 0.0: no run uses it without"),
        ("secure", {"sums": True}, {"least_nodes": 2}, "secure.least_nodes = 2: no run uses it without secure.sums"),
    ],
)
def test_what_needs_attackers_or_secure_sums_is_told_without(
    section: str, switch: dict[str, object], given: dict[str, object], told: str
) -> None:
    with pytest.warns(SettingWarning, match=f"^{told}"):
        make_runs({section: given})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_runs({section: given | switch})
        make_runs({"faults": {"dropout": 0.1}})


def test_frequencies_of_a_bound_are_told_where_no_pattern_has_them() -> None:
    paced = {"clustering": {"method": "feduc", "clusters": 2, "frequencies": [1.0, 2.0]}}
    told = r"^clustering\.frequencies = \[1.0, 2.0\]: no run uses it without method\.pattern = 'cenasy' or 'decasy'$"
    with pytest.warns(SettingWarning, match=told):
        make_runs({"method": {"name": "hierarchical", "pattern": "decsyn"}, **paced})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runs = [{"method": {"name": "hierarchical", "pattern": pattern}} for pattern in ("censyn", "cenasy")]
        make_runs({**paced, "runs": runs})


def test_an_attack_that_some_run_has_is_not_told_of_the_others() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_runs({"faults": {"attack": "noise"}, "runs": [{"faults": {"attackers": share}} for share in (0.0, 0.2)]})


def test_a_clustering_that_no_run_uses_is_told() -> None:
    told = r"clustering.method = 'feduc': no run uses it; method.name = 'fedavg' has no use for clusters"
    with pytest.warns(SettingWarning, match=told):
        make_runs({"method": {"name": "fedavg"}, "clustering": {"method": "feduc"}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runs = [{"method": {"name": name}} for name in ("fedavg", "fedcluster")]
        make_runs({"clustering": {"method": "feduc"}, "runs": runs})


@pytest.mark.parametrize("run", [{"heterogeneity": True}, {"probes": ["heterogeneity"]}])
def test_a_clustering_that_a_probe_may_use_is_not_told(run: dict[str, object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_runs({"method": {"name": "fedavg"}, "clustering": {"clusters": 3}, "run": run})


@pytest.mark.parametrize(
    "moves", [{"metres_per_round": 2.0}, {"metres_per_round": 2.0, "recluster_every": 3}, {"trace_file": "trace.csv"}]
)
def test_clients_that_would_move_but_stay_are_told(moves: dict[str, object]) -> None:
    placed = {"network": moves, "clustering": {"method": "comaw"}}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        make_runs(placed)
    told = [
        f"network.{key} = {value!r}: no run uses it; with method.name = 'fedcluster'" for key, value in moves.items()
    ]
    assert [str(each.message)[: len(start)] for each, start in zip(found, told, strict=True)] == told
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_runs({**placed, "method": {"name": "hierarchical", "pattern": "censyn"}})
        make_runs({**placed, "runs": [{"label": "a"}, {"label": "b", "method": {"name": "hierfavg"}}]})


OWN_STAGE = """
import atoll


def own(gain: float = 1.0) -> atoll.Stage:
    return atoll.Stage(name="own")
"""


def test_runs_without_a_function_of_ones_own_do_without_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `method.beta` of a built-in method: shared by the file, taken by one run, left out of the other."""
    (tmp_path / "gained.py").write_text(OWN_STAGE)
    monkeypatch.syspath_prepend(tmp_path)
    travel = {"stages": ["gained:own"], "gain": 0.5}
    plain, own = make_runs({"travel": travel, "runs": [{"label": "plain", "travel": {"stages": []}}, {"label": "own"}]})
    assert own.travel.get("gain") == 0.5
    assert plain.travel.get("gain") is None
    with pytest.warns(SettingWarning, match=r"travel\.gain: no run uses it; it is taken by your own function"):
        make_runs({"travel": travel}, changes=["travel.stages=[]"])
    with pytest.raises(InputError, match=r"travel\.gain: unknown"):
        make_runs({}, changes=["travel.gain=0.5"])
    with pytest.raises(InputError, match=r"travel\.gian: unknown"):
        make_runs({"travel": {"stages": ["gained:own"], "gian": 0.5}})


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment in a folder beside the working folder, which names files."""
    (tmp_path / "work").mkdir()
    (tmp_path / "study").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    path = tmp_path / "study" / "x.toml"
    path.write_text('[data]\nroot = "a.csv"\n[[runs]]\nnetwork.trace_file = "b.csv"\nmodel.name = "a.csv"\n')
    return path


def test_files_are_looked_for_beside_the_experiment_first(study: Path) -> None:
    for folder in (study.parent, Path()):
        (folder / "a.csv").write_text("")
    assert read_experiment(study)["data"]["root"] == str(study.parent / "a.csv")
    assert read_experiment(study)["runs"][0]["model"]["name"] == "a.csv"


def test_where_a_clustering_starts_is_no_file(study: Path) -> None:
    study.write_text('rounds = 20\nmethod.name = "hierarchical"\nclustering = { method = "feduc", start = "random" }\n')
    (settings,) = make_runs(read_experiment(study))
    assert settings.clustering.get("start") == "random"


def test_files_are_looked_for_in_the_working_folder_next(study: Path) -> None:
    Path("a.csv").write_text("")
    assert read_experiment(study)["data"]["root"] == "a.csv"


def test_a_file_that_is_nowhere_is_named_by_its_absolute_path(study: Path) -> None:
    assert read_experiment(study)["runs"][0]["network"]["trace_file"] == str(study.parent / "b.csv")
    with pytest.raises(InputError, match=rf"^data.root = '{study.parent / 'a.csv'}' does not exist"):
        read_table(read_experiment(study)["data"]["root"], target="y")
