"""Bad input: exit code 2, one sentence that names the setting, its value and what is allowed, and nothing written."""

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import TINY, Command
from tests.made_runs import make_rows, write_run

SETTINGS = [
    # (change, what the sentence must say)
    ("clustering.clusters=7", ["clustering.clusters = 7", "at most data.clients = 6"]),
    ("clustering.clusters=0", ["clustering.clusters = 0", "a whole number of at least 1"]),
    ("method.fraction=0", ["method.fraction = 0", "greater than 0 and at most 1"]),
    ("method.fraction=1.01", ["method.fraction = 1.01", "greater than 0 and at most 1"]),
    ("method.fraction=nan", ["method.fraction = nan", "a finite number"]),
    ("data.rho_device=0.09", ["data.rho_device = 0.09", "0.1", "and 1"]),
    ("data.rho_device=1.5", ["data.rho_device = 1.5", "0.1", "and 1"]),
    ("data.rho_device=nan", ["data.rho_device = nan"]),
    ("clustering.rho_cluster=0.09", ["clustering.rho_cluster = 0.09", "0.1", "and 1"]),
    ("clustering.rho_cluster=2", ["clustering.rho_cluster = 2", "0.1", "and 1"]),
    ("local.batch_size=0", ["local.batch_size = 0", "a whole number of at least 1, or 'full'"]),
    ("local.batch_size=ful", ["local.batch_size = 'ful'", "'full'"]),
    ("local.batch_size=2.5", ["local.batch_size = 2.5", "a whole number"]),
    ("local.steps=0", ["local.steps = 0"]),
    ("local.lr=nan", ["local.lr = nan", "a finite number greater than 0"]),
    ("local.lr=inf", ["local.lr = inf", "a finite number greater than 0"]),
    ("local.lr=-1", ["local.lr = -1", "greater than 0"]),
    ("local.lr=fast", ["local.lr = 'fast'", "a finite number"]),
    ("local.lr=true", ["local.lr = true", "a finite number"]),
    ("local.lr=", ["local.lr = unset", "a finite number"]),
    ("local.momentum=1", ["local.momentum = 1", "of at least 0 and less than 1"]),
    ("seed=-1", ["seed = -1", "at least 0"]),
    ("rounds=0", ["rounds = 0"]),
    ("rounds=true", ["rounds = true", "a whole number"]),
    ("rounds=2.5", ["rounds = 2.5", "a whole number"]),
    ("data.fetch=1", ["data.fetch = 1", "true or false"]),
    ("data.clients=2000", ["data.clients = 2000", "1 or more samples each", "the pool has 1437"]),
    ("method.order=random", ["method.order = 'random'", "'reshuffled' or 'fixed'"]),
    ("method.gamma=-1", ["method.gamma = -1", "at least 0"]),
    ("method.server_lr=0", ["method.server_lr = 0", "greater than 0"]),
    ("name=../up", ["name = '../up'", "letters"]),
    ("run.device=gpu", ["run.device = 'gpu'"]),
    ("method.pattern=censin", ["method.pattern = 'censin'", "'censyn' or 'cenasy' or 'decsyn' or 'decasy'"]),
    ("method.intra_rounds=0", ["method.intra_rounds = 0", "a whole number of at least 1"]),
    ("network.grid=[2]", ["network.grid = [2]"]),
    ("network.grid=4", ["network.grid = 4"]),
    ("network.bandwidth_hz=0", ["network.bandwidth_hz = 0", "greater than 0"]),
    ("network.noise_dbm=nan", ["network.noise_dbm = nan", "a finite number"]),
    ("network.probability=1.5", ["network.probability = 1.5", "at most 1"]),
    ("clustering.time_limit=nan", ["clustering.time_limit = nan", "a finite number greater than 0"]),
    ("clustering.warmup_rounds=-1", ["clustering.warmup_rounds = -1", "at least 0"]),
    ("clustering.mu=guess", ["clustering.mu = 'guess'", "greater than 0, or 'estimate'"]),
    ("clustering.objective=speed", ["clustering.objective = 'speed'", "'bound' or 'time' or 'progress'"]),
    ("run.executor=weighted", ["run.executor = 'weighted'", "local.steps = 2: must be 1", "'serial' or 'auto'"]),
    # unknown names, with the nearest known one
    ("data.dataset=digts", ["data.dataset = 'digts'", "did you mean 'digits'?", "mnist"]),
    ("data.partition=dirichlt", ["data.partition = 'dirichlt'", "did you mean 'dirichlet'?", "module:function"]),
    ("model.name=mpl", ["model.name = 'mpl'", "did you mean 'mlp'?", "alexnet"]),
    ("local.optimizer=adm", ["local.optimizer = 'adm'", "did you mean 'adam'?", "momentum"]),
    ("clustering.method=timezon", ["clustering.method = 'timezon'", "did you mean 'timezone'?"]),
    ("method.name=fedclustr", ["method.name = 'fedclustr'", "did you mean 'fedcluster'?", "fedavg"]),
    ("run.executor=serail", ["run.executor = 'serail'", "'serial'"]),
    ("model.name=", ["model.name = ''", "Allowed: "]),
    # unknown settings, with the nearest known one
    ("data.partiton=iid", ["data.partiton", "did you mean 'partition'?"]),
    ("locl.lr=0.1", ["locl", "did you mean 'local'?"]),
    ("lr=0.1", ["lr", "did you mean local.lr?"]),
    ("method=fedavg", ["method = 'fedavg'", "must be a table", "[method] name"]),
    ("runs=1", ["runs", "is allowed only at the top"]),
    ("model.thickness=5", ["model.thickness", "unknown"]),
    ("method.beta=0.5", ["method.beta", "is taken by method.name = 'cfl-mgd', not by method.name = 'fedcluster'"]),
    ("model.name=alexnet", ["model.name = 'alexnet'", "28x28", "[1, 8, 8]"]),
    # what is not of the form section.key=value
    ("local.lr", ["--set 'local.lr'", "section.key=value"]),
    ("=5", ["--set '=5'", "section.key=value"]),
    ("local..lr=5", ["--set 'local..lr=5'", "section.key=value"]),
]
NEEDED = {
    "data.rho_device": ["data.partition=major-class"],
    "clustering.rho_cluster": ["clustering.method=major-class"],
    "data.clients": ["data.samples="],
    "local.momentum": ["local.optimizer=momentum"],
    "method.gamma": ["method.name=bcd"],
    "method.server_lr": ["method.name=bcd"],
    "method.pattern": ["method.name=hierarchical"],
    "method.intra_rounds": ["method.name=hierarchical"],
    "network.probability": ["network.topology=erdos-renyi"],
    "network.edges": ["network.topology=edges"],
    **{
        f"clustering.{key}": ["clustering.method=feduc"]
        for key in ("time_limit", "warmup_rounds", "mu", "objective", "frequencies")
    },
}


def setting(change: str) -> list[str]:
    """Return the words that make a change, after what it needs."""
    return [word for each in (*NEEDED.get(change.partition("=")[0], []), change) for word in ("--set", each)]


@pytest.mark.parametrize(("change", "told"), SETTINGS, ids=[change for change, _ in SETTINGS])
def test_setting(atoll: Command, folder: Path, change: str, told: list[str]) -> None:
    sentence = atoll("run", "tiny.toml", *setting(change)).refused()
    for words in told:
        assert words in sentence
    assert [path.name for path in folder.iterdir()] == ["tiny.toml"]


ENTRIES = [
    ("network.grid", "[0, 2]", "of at least 1"),
    ("network.client_milliwatts", "[-1.0, 5.0]", "greater than 0"),
    ("network.edges", "[[0, 1.5]]", "whole number"),
    ("clustering.frequencies", "[1.0, 0.0]", "greater than 0"),
]


@pytest.mark.parametrize(("path", "value", "allowed"), ENTRIES, ids=[path for path, _, _ in ENTRIES])
def test_bad_entry_of_a_list(atoll: Command, path: str, value: str, allowed: str) -> None:
    sentence = atoll("run", "tiny.toml", *setting(f"{path}={value}")).refused()
    assert path in sentence
    assert f"{path} = {value.strip('[]').partition(',')[0]}: must be a list" not in sentence
    assert allowed in sentence


FILES = [
    ('name = "a', ["exp.toml", "is not valid TOML"]),
    ("[" * 5000, ["is not valid TOML"]),
    ("[data]\npartiton = 'iid'", ["data.partiton", "did you mean 'partition'?"]),
    ("[data]\nclients = '5'", ["data.clients = '5'", "a whole number"]),
    ("data = 5", ["data = 5", "must be a table"]),
    ('label = "a\\u0000"', ["label = 'a\\x00': must not contain the character NUL"]),
    ('[data]\nclients_file = "a\\u0000"', ["data.clients_file", "must not contain the character NUL"]),
    ("rounds = '3'\nseed = 'x'", ["seed = 'x'", "and 1 more such"]),
    ("runs = 5", ["runs", "[[runs]]"]),
    ("runs = []", ["runs", "[[runs]]"]),
    ("scales = 5", ["scales", "[scales.NAME]"]),
    ("scales.small = 5", ["scales", "[scales.NAME]"]),
    ("[[runs]]\nlabel = 'a'\n[[runs]]\nlabel = 'A'", ["runs", "'a', 'A'", "each needs a label, or panel, of its own"]),
    ("[[runs]]\nlabel = 'report'\n[[runs]]\nlabel = 'b'", ["runs", "labelled 'report'"]),
    ("[[runs]]\nlabel = 'experiment.json'\n[[runs]]\nlabel = 'b'", ["runs", "labelled 'experiment.json'"]),
    ("[[runs]]\nlabel = 'a'\nruns = 5", ["runs", "is allowed only at the top"]),
]


def test_an_error_in_a_schedule_names_the_run(atoll: Command, folder: Path) -> None:
    runs = """rounds = 5
[data]
clients = 6
[[runs]]
label = "flat"
method.name = "fedavg"
[[runs]]
label = "edges"
method = { name = "hierarchical", intra_rounds = 2 }
"""
    (folder / "exp.toml").write_text(runs)
    assert "run 'edges': rounds = 5: must be a multiple of" in atoll("run", "exp.toml").refused()
    assert "run 'edges'" not in atoll("run", "exp.toml", "--only", "edges").refused()


@pytest.mark.parametrize(("text", "told"), FILES)
def test_experiment_file(atoll: Command, folder: Path, text: str, told: list[str]) -> None:
    (folder / "exp.toml").write_text(text)
    sentence = atoll("run", "exp.toml").refused()
    for words in told:
        assert words in sentence
    assert sorted(path.name for path in folder.iterdir()) == ["exp.toml", "tiny.toml"]


def test_experiment_that_is_no_readable_file(atoll: Command, folder: Path) -> None:
    (folder / "folder.toml").mkdir()
    (folder / "tiny.txt").write_text("")
    (folder / "latin.toml").write_bytes(b"name = '\xe4'")
    assert "Is a directory" in atoll("run", "folder.toml").refused()
    assert "No such file" in atoll("run", "missing.toml").refused()
    assert "must end in .toml" in atoll("run", "tiny.txt").refused()
    assert "is not valid TOML" in atoll("run", "latin.toml").refused()
    assert "did you mean 'quickstart'?" in atoll("run", "quikstart").refused()
    assert "did you mean 'quickstart'?" in atoll("recipes", "show", "quikstart").refused()
    assert "did you mean 'small'" in atoll("run", _with_scale(folder), "--scale", "smal").refused()


def _with_scale(folder: Path) -> str:
    (folder / "scaled.toml").write_text(TINY + "\n[scales.small]\nrounds = 1\n")
    return "scaled.toml"


def test_usage(atoll: Command) -> None:
    assert "--nope" in atoll("run", "tiny.toml", "--nope").refused()
    assert "EXPERIMENT" in atoll("run").refused()
    assert "No such command 'rum'" in atoll("rum").refused()
    assert "not both" in atoll("run", "tiny.toml", "--resume", "--overwrite").refused()
    assert "--target 1.5" in atoll("report", ".", "--target", "1.5").refused()
    assert "did you mean 'mnist'?" in atoll("data", "fetch", "mnst").refused()
    told = atoll("run", "tiny.toml", "--set", "data.dataset=rows.csv").refused()
    assert told.endswith("for your own; a file of rows is data.root of 'table'")


@pytest.mark.more
def test_a_report_of_what_runs_do_not_have(atoll: Command, folder: Path) -> None:
    """A target of accuracies that no run has, and a file called ``-``, which elsewhere means standard output."""
    write_run(folder / "runs" / "numbers", make_rows(3, test_accuracy=None))
    refused = atoll("report", "runs", "--target", "0.5").refused()
    assert refused == "--target 0.5: is a test accuracy, and no run has recorded any; leave it out"
    refused = atoll("report", "runs", "--csv", "-").refused()
    assert refused == "--csv '-': names no file; give one, such as --csv results.csv"
    assert [each.name for each in folder.iterdir() if each.name in ("-", "report")] == []
    write_run(folder / "runs" / "classes", make_rows(3))
    assert "To 50 %" in atoll("report", "runs", "--target", "0.5").succeeded()


def test_data_files_missing_or_truncated(atoll: Command, folder: Path) -> None:
    def refused(root: str) -> str:
        changes = ("data.dataset=mnist", f"data.root={root}", "data.fetch=false")
        return atoll("run", "tiny.toml", *(word for change in changes for word in ("--set", change))).refused()

    assert "does not exist" in refused("nowhere")
    (folder / "root" / "mnist").mkdir(parents=True)
    assert "atoll data fetch mnist" in refused("root")
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (folder / "root" / "mnist" / f"{name}-ubyte").write_bytes(b"\0\0\x08\x01\0\0\0\x05abc")
    assert "is damaged" in refused("root")
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("command", ["run tiny.toml", "reproduce quickstart", "report run", "data split tiny.toml"])
@pytest.mark.parametrize("place", ["link", "link/below"])
def test_an_output_folder_that_is_a_link_to_nothing_is_named(
    atoll: Command, folder: Path, command: str, place: str
) -> None:
    (folder / "link").symlink_to("nowhere")
    if "report" in command:
        atoll("run", "tiny.toml", "--out", "run").succeeded()
    told = atoll(*command.split(), "--out", place).refused(code=1)
    where = f"{place}/client-0" if "split" in command else place
    assert told == f"cannot make the folder {where}: link is a file, or a link to nothing"
    assert not (folder / "nowhere").exists()


def test_output_folder(atoll: Command, folder: Path) -> None:
    (folder / "file").write_text("mine")
    (folder / "other").mkdir()
    (folder / "other" / "thesis.txt").write_text("mine")
    assert "is a file" in atoll("run", "tiny.toml", "--out", "file").refused()
    assert "lies below one" in atoll("run", "tiny.toml", "--out", "file/below").refused()
    for more in ((), ("--resume",), ("--overwrite",)):
        assert "is not a run's folder" in atoll("run", "tiny.toml", "--out", "other", *more).refused()
    assert "holds files other than" in atoll("run", "quickstart", "--out", "other").refused()
    assert [path.name for path in (folder / "other").iterdir()] == ["thesis.txt"]
    atoll("run", "tiny.toml", "--out", "ours").succeeded()
    (folder / "ours/config.toml").rename(folder / "config.toml")
    for name in ("summary.json", "metrics.jsonl", "checkpoint"):
        shutil.copytree(folder / "ours", folder / name)
        for other in {"summary.json", "metrics.jsonl", "checkpoint"} - {name}:
            (folder / name / other).rename(folder / f"{name} without {other}")
        for more in ((), ("--resume",)):
            assert "but no config.toml" in atoll("run", "tiny.toml", "--out", name, *more).refused()
        assert (folder / name / name).exists()
    atoll("run", "tiny.toml", "--out", "checkpoint", "--overwrite").succeeded()
    (folder / "config.toml").rename(folder / "ours/config.toml")
    before = {path: path.read_bytes() for path in (folder / "ours").rglob("*") if path.is_file()}
    sentence = atoll("run", "tiny.toml", "--out", "ours").refused()
    assert "--resume" in sentence
    assert "--overwrite" in sentence
    assert "holds a single run" in atoll("run", "quickstart", "--out", "ours").refused()
    changed = ("--set", "local.lr=0.07", "--set", "seed=3", "--resume")
    sentence = atoll("run", "tiny.toml", "--out", "ours", *changed).refused()
    assert "local.lr was 0.05, is now 0.07" in sentence
    assert "seed was 0, is now 3" in sentence
    assert {path: path.read_bytes() for path in (folder / "ours").rglob("*") if path.is_file()} == before
    (folder / "ours" / "notes.txt").write_text("mine")
    atoll("run", "tiny.toml", "--out", "ours", *changed[:-1], "--overwrite").succeeded()
    assert "seed = 3" in (folder / "ours" / "config.toml").read_text()
    assert (folder / "ours" / "notes.txt").read_text() == "mine"


def test_no_run_of_several_begins_when_one_has_no_room(atoll: Command, folder: Path) -> None:
    (folder / "two.toml").write_text(TINY + "\n[[runs]]\nlabel = 'a'\n[[runs]]\nlabel = 'b'\n")
    (folder / "both" / "b").mkdir(parents=True)
    (folder / "both" / "b" / "thesis.txt").write_text("mine")
    assert "both/b" in atoll("run", "two.toml", "--out", "both").refused()
    assert [path.name for path in (folder / "both").iterdir()] == ["b"]


MEANT = {
    "run tiny.toml --lr 0.1": "No such option '--lr'; a setting is given as --set local.lr=VALUE; see atoll run --help",
    "cluster tiny.toml --num-clusters 3": "a setting is given as --set clustering.clusters=VALUE",
    "run tiny.toml --epochs 3": "a setting is given as --set local.epochs=VALUE",
    "run tiny.toml --ressume": "Did you mean '--resume'?; see atoll run --help",
    "run tiny.toml --set rounds 2": "Got unexpected extra argument (2); give --set rounds=2; see atoll run --help",
    "run tiny.toml --set rounds=2 seed=1": "(seed=1); give --set rounds=2 --set seed=1; see atoll run --help",
    "run tiny.toml --set label=my run": '(run); give --set "label=my run"; see atoll run --help',
    "sweep tiny.toml --over seed=0 1": "Got unexpected extra argument (1); give --over seed=0,1; see",
    "run tiny.toml more": "Got unexpected extra argument (more); see atoll run --help",
    "run mine": "experiment 'mine': no recipe has this name, and a folder; did you mean 'mine/own.toml'?",
    "report tiny": "tiny does not exist; did you mean runs/tiny?",
    "report runs/tyny": "runs/tyny does not exist; did you mean runs/tiny?",
    "report nothing": "nothing does not exist",
    "report runs --target 80": "--target 80: must be greater than 0 and at most 1; 80 % is 0.8",
    "fleet init made --nodes two --host h": "--nodes two: must be a whole number; see atoll fleet init --help",
    "report runs --target 80%": "--target 80%: must be a number; see atoll report --help",
    "fleet init --host here --nodes 0": "--nodes 0: must be from 1 to 10000; see atoll fleet init --help",
    "fleet node fleet/node-0 --client -1": "--client -1: must be at least 0",
    "quickstart": "No such command 'quickstart'; did you mean atoll run quickstart?; see atoll --help",
    "runn": "No such command 'runn'; did you mean atoll run?; see atoll --help",
    "fleet statuss": "No such command 'statuss'; did you mean atoll fleet status?; see atoll fleet --help",
    "help": "No such command 'help'; did you mean atoll --help?",
    "run tiny.toml --set method.name=fedprox": "method.name = 'fedprox': unknown, did you mean 'fedavg'?",
    "recipes --show quickstart": "No such option '--show'; did you mean atoll recipes show?; see atoll recipes --help",
    "data fetch quickstart": "NAME quickstart: is a recipe, not a data set; to get its data: atoll data fetch digits",
    "report runs --target 0": "--target 0: must be greater than 0 and at most 1",
}


@pytest.mark.parametrize("words", MEANT)
def test_what_is_meant_is_said(atoll: Command, folder: Path, words: str) -> None:
    (folder / "runs" / "tiny").mkdir(parents=True)
    (folder / "mine").mkdir()
    (folder / "mine" / "own.toml").touch()
    told = atoll(*words.split()).refused()
    assert MEANT[words] in told


def test_only_takes_capitals_for_small_letters_where_nothing_else_fits(atoll: Command, folder: Path) -> None:
    (folder / "two.toml").write_text(TINY + "[[runs]]\nlabel = 'FedAvg'\n[[runs]]\nlabel = 'Other'\n")
    assert "FedAvg" in atoll("schedule", "two.toml", "--only", "fedavg").succeeded()
