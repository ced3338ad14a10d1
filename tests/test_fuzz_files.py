"""Whatever is in a file that crosses a trust boundary: it is read, or refused in one sentence."""

import io
import json
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from warnings import catch_warnings

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import tomli_w
import torch
from PIL import Image

from atoll import Experiment, make_runs, read_experiment, run_events
from atoll.data.client_columns import read_clients
from atoll.data.dealing.partition_file import digest_of, from_file
from atoll.data.files.folders import read_folder
from atoll.data.files.images import read_images
from atoll.data.files.official import read_cifar, read_idx
from atoll.data.named_datasets import read_table
from atoll.fleet.folder.configuration import read_fleet, read_node
from atoll.fleet.folder.init import FleetPlan, init_fleet
from atoll.fleet.node.shards import read_shard
from atoll.fleet.server.clustering_log import read_clusterings
from atoll.network.mobility import read_trace
from atoll.network.network_files import read_matrix, read_network_clients
from atoll.network.topology import edges
from atoll.report.page import make_content
from atoll.report.reading.runs import read_begun
from atoll.runs.export import load_module
from atoll.runs.run_folder import RunFolder
from atoll.runs.saved import read_saved
from atoll.runs.spilling import Shelf, _Kept
from atoll.schedules.recorded import lines_of
from atoll.schedules.schedule_files import read_schedule
from atoll.support.errors import AtollError, SettingWarning
from atoll.support.files import line_as_bytes
from atoll.sweep.sweep_folder import read_note
from examples.leaf import read_leaf
from tests.fuzzing import carry_out, few, fewest, many, some
from tests.made_runs import make_rows
from tests.tiers import thinned

Read = Callable[[Path], object]
CHANGES = (
    *("rounds=2", "data.clients=6", "data.samples=8", "clustering.clusters=2", "method.fraction=0.5"),
    *("local.steps=1", "local.batch_size=4", "model.name=linear", "run.checkpoint_every=1", "run.executor=serial"),
)


def made_run(folder: Path) -> Path:
    experiment = Experiment(make_runs({}, None, CHANGES)[0])
    list(run_events(experiment, folder))
    (folder / "happened.jsonl").write_bytes(b"".join(map(line_as_bytes, lines_of(experiment.method.schedule))))
    (folder / "clients.json").write_text('{"event": 2, "round": 1, "own": {"clients": [0, 2], "values": [0.5, 0.25]}}')
    return folder


def client(folder: Path) -> None:
    arrays = {"inputs": np.linspace(0, 1, 30).reshape(10, 3), "targets": np.arange(10) % 2}
    np.savez(folder / "0.npz", inputs=arrays["inputs"], targets=arrays["targets"])
    np.savez_compressed(folder / "1.npz", inputs=arrays["inputs"], targets=arrays["targets"])
    np.save(folder / "inputs.npy", arrays["inputs"])
    np.save(folder / "targets.npy", arrays["targets"])
    pq.write_table(pa.table({"x": arrays["inputs"][:, 0], "y": arrays["targets"]}), folder / "0.parquet")
    (folder / "form.json").write_text('{"shape": [3], "classes": 2, "scale": 1.0, "loss": "cross-entropy"}')


def tables(folder: Path) -> None:
    kinds = pa.array(["a", "b", None] * 4).dictionary_encode()
    columns = {"c": [*"ppqqrr"] * 2, "g": ["m"] * 12, "t": list(range(12)), "x": [0.5, None, -1e9] * 4, "k": kinds}
    made = pa.table(columns | {"y": [0, 1] * 6})
    pq.write_table(made, folder / "table.parquet")
    pa.csv.write_csv(made.set_column(4, "k", made["k"].cast(pa.string())), folder / "table.csv")
    for name, new in (("file", pa.ipc.new_file), ("stream", pa.ipc.new_stream)):
        with new(str(folder / f"{name}.arrow"), made.schema) as writer:
            writer.write_table(made)


def pictures(picture: bytes) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"image": [picture] * 10, "label": list(range(10))}), file, compression="none")
    return file.getvalue()


def png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (6, 5), (1, 2, 3)).save(file, "PNG")
    return file.getvalue()


def idx() -> bytes:
    return b"\0\0\x08\x02" + (3).to_bytes(4, "big") + (2).to_bytes(4, "big") + bytes(6)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of everything, as it is written."""
    folder = tmp_path_factory.mktemp("whole")
    made_run(folder / "run")
    client(folder)
    tables(folder)
    both = {"indices": np.arange(6), "offsets": np.array([0, 3, 6]), "digest": np.array(digest_of(np.arange(6) % 2))}
    np.savez(folder / "who.npz", **both, **{f"test_{name}": value for name, value in both.items()})  # type: ignore[arg-type]
    init_fleet(folder / "fleet", FleetPlan(nodes=2, host="127.0.0.1"))
    shelf = Shelf(folder, torch.device("cpu"))
    shelf.write([(3, _Kept({"w": torch.arange(4.0)}))])
    clustered = {"event": 0, "round": 0, "clusters": 2, "labels": [0, 1], "hours": None, "samples": [3, 4], "moved": 0}
    unknown = {key: [None, 0.5] for key in ("seconds_per_sample", "compute_seconds", "upload_seconds")}
    files = {
        "clusterings.jsonl": line_as_bytes(clustered | {"kept": None} | unknown),
        "experiment.toml": tomli_w.dumps({"runs": [{"label": "a"}], "data": {"clients": 6}}).encode(),
        "experiment.json": b'{"runs": ["run", "good"]}',
        "sweep.json": b'{"kind": "sweep", "runs": {"a": {"seed": 1}}}',
        "rows.jsonl": "".join(json.dumps(row) + "\n" for row in make_rows(3, confusion=[[1, 2]], ari=0.5)).encode(),
        "clients.csv": b"client,utc_offset,longitude,slots\n0,1,2.5,0 1\n1,-3,0,\n",
        "network.csv": b"client,x,y,power,seconds_per_sample,samples\n0,1,2,50,0.1,3\n1,2,3,60,0.2,4\n",
        "trace.csv": b"round,client,x,y\n0,0,1,2\n0,1,3,4\n5,1,2,2\n",
        "rates.csv": b"0.5,1\n2,3\n",
        "edges.txt": b"0 1\n1,2 # near\n",
        "pictures.parquet": pictures(png()),
        "picture.png": png(),
        "leaf.json": json.dumps({"users": ["u"], "user_data": {"u": {"x": [[0.5, 1]] * 4, "y": [0, 1] * 2}}}).encode(),
        "images.idx": idx(),
        "batch.bin": bytes(2 * 3073),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def beside(read: Read) -> Read:
    """Read a run beside a good one, which must be there whatever the other holds."""

    def read_and_report(path: Path) -> None:
        folder = path.parent.parent if path.parent.name == "run" else path.parent
        runs, faults = read_begun([folder])
        if path.name != "experiment.json":  # which may name others
            assert "good" in {run.folder.name for run in runs}
        assert all("\n" not in fault for fault in faults)
        make_content(runs, notices=faults, live=True).as_json()
        read(path)

    return read_and_report


def saved(path: Path) -> object:
    folder = path.parent.parent if path.parent.name == "checkpoint" else path.parent
    found = read_saved(folder)
    return load_module(found.settings, found.model())


def spilled(path: Path) -> None:
    Shelf(path.parent, torch.device("cpu"), files={"1": {"clients": 1}}).read(3, _Kept(None, 1))


def table(path: Path) -> object:
    return read_table(
        str(path), target="y", client="c", time="t", group="g", missing="fill", min_samples=1, test_every=2
    )


STEM = "event-00000004"
BOUNDARIES: dict[str, tuple[str, str, Read]] = {
    # name: the file as it is written, where it lies when it is read, and what reads it
    "a run's settings": ("run/config.toml", "run/config.toml", beside(saved)),
    "a run's rows": ("run/metrics.jsonl", "run/metrics.jsonl", beside(lambda path: RunFolder(path.parent).rows())),
    "rows without checksums": ("rows.jsonl", "run/metrics.jsonl", beside(lambda path: RunFolder(path.parent).rows())),
    "a run's clients": ("run/clients.json", "run/clients.json", beside(lambda _: None)),
    "an experiment's order": ("experiment.json", "experiment.json", beside(lambda _: None)),
    "a run's schedule": ("run/schedule.npz", "run/schedule.npz", beside(read_schedule)),
    "what happened in a run": ("run/happened.jsonl", "run/happened.jsonl", read_schedule),
    "a run's summary": ("run/summary.json", "run/summary.json", lambda path: RunFolder(path.parent).summary()),
    "a checkpoint's note": (f"run/checkpoint/{STEM}.json", f"run/checkpoint/{STEM}.json", saved),
    "a checkpoint's tensors": (f"run/checkpoint/{STEM}.safetensors", f"run/checkpoint/{STEM}.safetensors", saved),
    "clients' states": ("clients-00000001.safetensors", "clients-00000001.safetensors", spilled),
    "a live run's clusterings": ("clusterings.jsonl", "clusterings.jsonl", lambda path: read_clusterings(path, 2)),
    "an experiment": ("experiment.toml", "experiment.toml", lambda path: make_runs(read_experiment(path))),
    "a sweep's note": ("sweep.json", "sweep.json", lambda path: read_note(path.parent)),
    "a fleet": ("fleet/fleet.toml", "fleet.toml", read_fleet),
    "a node": ("fleet/nodes/node-0/node.toml", "node.toml", read_node),
    "the form of a shard": ("form.json", "shard/form.json", lambda path: read_shard(make_runs({})[0], path.parent)),
    "a shard": ("inputs.npy", "shard/inputs.npy", lambda path: read_shard(make_runs({})[0], path.parent)),
    "a table of clients": ("clients.csv", "clients.csv", lambda path: read_clients(path, 2)),
    "a network's clients": ("network.csv", "network.csv", read_network_clients),
    "a trace": ("trace.csv", "trace.csv", read_trace),
    "rates": ("rates.csv", "rates.csv", read_matrix),
    "rates of NumPy": ("inputs.npy", "rates.npy", read_matrix),
    "edges": ("edges.txt", "edges.txt", lambda path: edges(3, str(path))),
    "an npz file": ("0.npz", "data/0.npz", lambda path: read_folder(str(path.parent))),
    "a packed npz file": ("1.npz", "data/0.npz", lambda path: read_folder(str(path.parent))),
    "a Parquet file": ("0.parquet", "data/0.parquet", lambda path: read_folder(str(path.parent))),
    "pictures": ("pictures.parquet", "data/0.parquet", lambda path: read_folder(str(path.parent))),
    "a CSV table": ("table.csv", "table/t.csv", table),
    "a Parquet table": ("table.parquet", "table/t.parquet", table),
    "an Arrow file": ("file.arrow", "table/t.arrow", table),
    "an Arrow stream": ("stream.arrow", "table/t.arrow", table),
    "LEAF's JSON": ("leaf.json", "leaf/a.json", lambda path: read_leaf(str(path.parent), test_every=2)),
    "a picture": ("picture.png", "images/a/1.png", lambda path: read_images(str(path.parents[1]), test_every=2)),
    "a partition": ("who.npz", "who.npz", lambda path: from_file(np.arange(6) % 2, 2, str(path))),
    "an IDX file": ("images.idx", "images.idx", read_idx),
    "a CIFAR file": ("batch.bin", "batch.bin", read_cifar),
}


@pytest.fixture
def place(whole: Path, tmp_path: Path) -> Path:
    """A folder in which all is right, until one file of it is replaced."""
    import shutil

    for name in ("run", "good"):
        shutil.copytree(whole / "run", tmp_path / name, ignore=shutil.ignore_patterns("happened.jsonl"))
    for name in ("shard", "data", "table", "leaf", "images/a"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(whole / "picture.png", tmp_path / "images/a/2.png")
    for name in ("inputs.npy", "targets.npy", "form.json"):
        shutil.copy(whole / name, tmp_path / "shard" / name)
    return tmp_path


def check(name: str, often: object, whole: Path, place: Path) -> None:
    source, goal, read = BOUNDARIES[name]
    content = (whole / source).read_bytes()
    path = place / goal
    wholes = (content, *unpacked(content))

    def read_or_refuse(damaged: bytes) -> None:
        path.write_bytes(damaged)
        with suppress(AtollError):
            read(path)

    if "sweep" in name:
        path = place / "sweep" / goal
        path.parent.mkdir()
    read_or_refuse(content)
    with catch_warnings(action="ignore", category=SettingWarning):  # of a damaged table's columns, rightly
        carry_out(often, wholes, read_or_refuse)  # type: ignore[arg-type]


def unpacked(content: bytes) -> tuple[bytes, ...]:
    """Return a ZIP file without compression too, in which damage reaches what is packed."""
    if not content.startswith(b"PK"):
        return ()
    plain = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(plain, "w") as copy:
        for entry in archive.namelist():
            copy.writestr(entry, archive.read(entry))
    return (plain.getvalue(),)


@pytest.mark.parametrize("name", thinned(BOUNDARIES, 6))
def test_a_little_damage_is_in_a_file(name: str, whole: Path, place: Path) -> None:
    check(name, fewest, whole, place)


@pytest.mark.more
@pytest.mark.parametrize("name", BOUNDARIES)
def test_whatever_is_in_a_file(name: str, whole: Path, place: Path) -> None:
    check(name, few if BOUNDARIES[name][2].__name__ == "read_and_report" else some, whole, place)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", BOUNDARIES)
def test_much_is_in_files(name: str, whole: Path, place: Path) -> None:
    check(name, many, whole, place)
