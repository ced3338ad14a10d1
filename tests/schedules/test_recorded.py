"""What happened, as a file: read again it is what it was, and damaged or foreign files are refused in one sentence."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll import Experiment, InputError, Mix, Schedule, make_event, make_runs
from atoll.runs.variants import replaying
from atoll.schedules.recorded import head_of, line_of, lines_of
from atoll.schedules.schedule_files import digest_of, fitting, keep_events, read_schedule, write_schedule
from atoll.support.files import line_as_bytes

BASE = {
    "rounds": 4,
    "data": {"clients": 6, "samples": 8},
    "model": {"name": "linear"},
    "local": {"steps": 1},
    "clustering": {"clusters": 2},
}
METHODS = {
    "fedcluster": ("method.name=fedcluster", "method.fraction=0.5"),
    "cenasy": ("method.name=hierarchical", "method.pattern=cenasy", "method.intra_rounds=2"),
    "decsyn": ("method.name=hierarchical", "method.pattern=decsyn", "method.intra_rounds=2"),
    "ifca": ("method.name=ifca", "method.clusters=2", "data.partition=rotated", "data.rotations=2"),
    "flhc": ("method.name=flhc", "method.clusters=2", "method.warmup=1"),
    "fedbuff": ("method.name=fedbuff", "method.concurrency=3", "method.buffer=2"),
    "fedat": ("method.name=fedat", "method.tiers=2"),
}

Line = dict[str, Any]


def experiment(method: str = "cenasy") -> Experiment:
    return Experiment(make_runs(BASE, changes=METHODS[method])[0])


def with_losses(schedule: Schedule) -> Schedule:
    """A schedule in which clients were lost, and works began before their number was known."""
    rng = np.random.default_rng(0)
    events = tuple(
        replace(
            event,
            answered=rng.random((event.intra_rounds, len(event.cohort))) < 0.5,
            drawn_as=(event.index + 7, 3),
            late=2,
            dropped=1,
        )
        for event in schedule.events
    )
    return replace(schedule, events=events)


def write_lines(path: Path, schedule: Schedule) -> Path:
    path.write_bytes(b"".join(map(line_as_bytes, lines_of(schedule))))
    return path


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("lost", [False, True], ids=["all there", "some lost"])
def test_both_files_hold_all_of_a_schedule(tmp_path: Path, method: str, lost: bool) -> None:
    planned = experiment(method).method.schedule
    schedule = with_losses(planned) if lost else planned
    write_schedule(tmp_path / "schedule.npz", schedule)
    for path in (write_lines(tmp_path / "happened.jsonl", schedule), tmp_path / "schedule.npz"):
        again = read_schedule(path)
        assert list(lines_of(again)) == list(lines_of(schedule))
        for found, event in zip(again.events, schedule.events, strict=True):
            for name in ("cohort", "weights", "clusters", "answered"):
                one, other = getattr(found, name), getattr(event, name)
                assert (one is None) == (other is None)
                if one is not None:
                    assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert again.rounds == schedule.rounds
        assert digest_of(again) == digest_of(schedule)


def test_numbers_of_numpy_are_written_as_any_others(tmp_path: Path) -> None:
    labels = np.array([0, 1, 0])
    active = tuple(np.unique(labels))
    mix = Mix(published=tuple((cluster, np.float64(0.5)) for cluster in active))
    more: dict[str, Any] = {"clusters": labels, "server": mix, "starts": ((active[1], mix),), "late": np.int64(1)}
    event = make_event(np.arange(1)[0], np.arange(3), np.ones(3), 0.0, 1.0, active, **more)
    schedule = Schedule((event,), clusters=labels.max() + 1, rounds=1)
    read = read_schedule(write_lines(tmp_path / "happened.jsonl", schedule))
    assert (read.clusters, list(lines_of(read))) == (2, list(lines_of(schedule)))
    write_schedule(tmp_path / "schedule.npz", schedule)
    assert digest_of(read_schedule(tmp_path / "schedule.npz")) == digest_of(schedule)


def test_events_that_merge_alike_share_their_mix(tmp_path: Path) -> None:
    schedule = read_schedule(write_lines(tmp_path / "a.jsonl", experiment("fedcluster").method.schedule))
    assert len({id(event.server) for event in schedule.events}) == 2 < len(schedule)


def test_the_checksum_is_of_what_models_depend_on(tmp_path: Path) -> None:
    schedule = experiment().method.schedule
    lost = with_losses(schedule)
    others = replace(lost, events=lost.events[:-1]), replace(lost, rounds=lost.rounds + 1)
    digests = {digest_of(each) for each in (schedule, lost, *others)}
    assert len(digests) == 4


def test_a_line_that_a_crash_tore_is_left_out(tmp_path: Path) -> None:
    schedule = experiment("fedcluster").method.schedule
    path = write_lines(tmp_path / "happened.jsonl", schedule)
    with open(path, "ab") as file:
        file.write(b'{"event": 8, "rou')
    assert len(read_schedule(path)) == len(schedule)


def test_what_happened_so_far_is_a_schedule_of_so_many_rounds(tmp_path: Path) -> None:
    schedule = experiment("fedcluster").method.schedule
    path = tmp_path / "happened.jsonl"
    path.write_bytes(b"".join([*map(line_as_bytes, lines_of(schedule))][: 1 + 3]))
    found = read_schedule(path)
    assert (len(found), found.rounds) == (3, 1)  # two clusters, so three events are one round and a half


def test_events_to_go_on_from_are_kept_and_later_ones_dropped(tmp_path: Path) -> None:
    schedule = experiment("fedcluster").method.schedule
    path = write_lines(tmp_path / "happened.jsonl", schedule)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"event"')
    assert [event.index for event in keep_events(path, 2)] == [0, 1]
    assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:3])
    with pytest.raises(InputError, match=r"--resume: .* is damaged \(it ends before event 2\); add --overwrite"):
        keep_events(path, 3)
    assert keep_events(path, 0) == ()
    assert path.read_bytes() == line_as_bytes(head_of(schedule))
    path.unlink()
    with pytest.raises(InputError, match=r"--resume: .* cannot be read"):
        keep_events(path, 0)


def drop(name: str) -> Callable[[Line], Line]:
    return lambda line: {key: value for key, value in line.items() if key != name}


def change(**values: Any) -> Callable[[Line], Line]:
    return lambda line: line | values


@pytest.mark.parametrize(
    ("number", "damage", "told"),
    [
        (0, change(format=1), "line 1 is damaged (its format is 1, but this version of Atoll reads 2)"),
        (0, drop("format"), "line 1 is not an event of a run (format: field required)"),
        (2, change(active=[5]), "line 3 is damaged (it names cluster 5, but there are 2)"),
        (2, change(clusters=[1, 1, 1]), "line 3 is damaged (a client's cluster is not active)"),
        (2, drop("weights"), "line 3 is not an event of a run (weights: field required)"),
        (
            2,
            change(weights=[8.0, -1.0, 8.0]),
            "line 3 is not an event of a run (weights.1: input should be greater than",
        ),
        (
            2,
            change(weights=[8.0]),
            "line 3 is damaged (cohort must hold different clients in each cluster, and weights one",
        ),
        (2, change(cohort=[0, 0, 1]), "line 3 is damaged (cohort must hold different clients"),
        (2, change(event=7), "line 3 is damaged (it is event 7, but event 1 must follow)"),
        (2, change(seconds=0.0), "line 3 is damaged (it ends before the previous event)"),
        (1, change(round=9), "line 3 is damaged (it is of round 2, after one of round 9)"),
        (2, change(seconds=float("inf")), "line 3 is not an event of a run (seconds: "),
        (2, change(answered=[[1, 0, 1]]), "line 3 is damaged (answered does not match intra_rounds and cohort)"),
        (2, change(answered=[[1], [1, 0, 1]]), "line 3 is damaged ("),
        (2, change(answered=[[2, 0, 1], [1, 1, 1]]), "line 3 is not an event of a run (answered.0.0: "),
        (2, change(staleness=[]), "line 3 is damaged (active, began and staleness have different lengths)"),
        (2, change(clusters=[0]), "line 3 is damaged (clusters must hold one cluster for each client of the cohort)"),
        (2, change(server={"server": 0.5, "published": []}), "line 3 is damaged (Mix: the weights must sum to one"),
        (
            2,
            change(__class__="os.system"),
            "line 3 is not an event of a run (__class__: extra inputs are not permitted)",
        ),
        (2, lambda line: [], "line 3 is not an event of a run (its text: "),
    ],
)
def test_a_damaged_line_is_told(tmp_path: Path, number: int, damage: Callable[[Line], Any], told: str) -> None:
    lines: list[Any] = list(lines_of(experiment().method.schedule))
    lines[number] = damage(lines[number])
    path = tmp_path / "happened.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InputError) as caught:
        read_schedule(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"--schedule {path}: {told}")
    assert "\n" not in sentence
    assert "pydantic" not in sentence


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("happened.jsonl", b"", "holds no event"),
        ("happened.jsonl", b'{"event": 0, "round": 0}\n', "line 1 is not an event of a run"),
        ("happened.jsonl", b"\x00\xff\n", "line 1 is not an event of a run"),
        ("schedule.npz", b"nonsense", "is damaged, or not a schedule"),
        ("schedule.npz", b"", "is damaged, or not a schedule"),
    ],
)
def test_a_foreign_file_is_told(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=f"^--schedule .*{name}: {told}"):
        read_schedule(tmp_path / name)
    with pytest.raises(InputError, match=r"^--schedule .*none.jsonl: cannot be read"):
        read_schedule(tmp_path / "none.jsonl")


def test_damaged_arrays_are_told(tmp_path: Path) -> None:
    path = tmp_path / "schedule.npz"
    write_schedule(path, experiment().method.schedule)
    content = path.read_bytes()
    with np.load(path) as file:
        columns = {name: file[name] for name in file.files}
    for at in range(0, len(content), 97):
        path.write_bytes(content[:at])
        with pytest.raises(InputError, match="is damaged, or not a schedule"):
            read_schedule(path)
    for name in columns:
        np.savez(path, **{key: value for key, value in columns.items() if key != name})
        with pytest.raises(InputError, match=r"is not a schedule of this version|is damaged"):
            read_schedule(path)
    np.savez(path, **columns | {"seconds": columns["seconds"][::-1]})
    with pytest.raises(InputError, match=r"event 1: it ends before the previous event"):
        read_schedule(path)
    np.savez(path, **columns | {"head": np.array([{"a": 1}], object)}, allow_pickle=True)
    with pytest.raises(InputError, match="is damaged, or not a schedule"):
        read_schedule(path)


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("round", lambda old: old + 0.5, "round must hold whole numbers of at least 0, it holds 0.5"),
        ("round", lambda old: old.astype(str), "round must be a column of numbers, it holds <U21 of shape"),
        ("round", lambda old: old[:, None], r"round must be a column of numbers, it holds int64 of shape \(\d+, 1\)"),
        ("round", lambda old: -1 - old, "round must hold whole numbers of at least 0, it holds -1"),
        ("seconds", lambda old: old * np.nan, "seconds must hold finite numbers of at least 0, it holds nan"),
        ("began", lambda old: old + np.inf, "began must hold finite numbers of at least 0, it holds inf"),
        ("weights", lambda old: old * 0, "weights must hold finite numbers above 0, it holds 0"),
        ("cohort", lambda old: old + 2.0**63, "cohort must hold whole numbers of at least 0"),
        ("intra_rounds", lambda old: old * 0, "intra_rounds must hold whole numbers of at least 1, it holds 0"),
        ("merge", lambda old: old - 1, "merge must hold whole numbers of at least 0, it holds -1"),
        ("head", lambda old: np.frombuffer(b"[2]", np.uint8), "its text: input should be an object"),
        ("head", lambda old: np.frombuffer(old.tobytes().replace(b" 4", b' "4"'), np.uint8), "rounds: "),
    ],
)
def test_numbers_that_no_event_has_are_told(tmp_path: Path, name: str, change: Callable[[Any], Any], told: str) -> None:
    write_schedule(path := tmp_path / "schedule.npz", experiment().method.schedule)
    with np.load(path) as file:
        columns = {each: file[each] for each in file.files}
    np.savez(path, **columns | {name: change(columns[name])})
    with pytest.raises(InputError, match=rf"^--schedule .*schedule.npz: is damaged, or not a schedule \({told}"):
        read_schedule(path)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (("clustering.clusters=3",), "has 2 clusters, the experiment 3"),
        (("data.clients=4",), "names client 5, but the experiment has 4 clients, counted from 0"),
        (("method.pattern=decasy",), "has a server, unlike the experiment's method"),
        (("rounds=2",), "has events of round 2, but the experiment has rounds = 2"),
    ],
)
def test_a_schedule_of_another_experiment_is_refused(tmp_path: Path, changes: tuple[str, ...], told: str) -> None:
    path = write_lines(tmp_path / "happened.jsonl", experiment().method.schedule)
    other = Experiment(make_runs(BASE, changes=(*METHODS["cenasy"], *changes))[0])
    with pytest.raises(InputError, match=f"^--schedule: the schedule {told}; give one from a run of this experiment$"):
        replaying(other, path)


def test_how_clients_find_their_cluster_must_fit() -> None:
    schedule = experiment("decsyn").method.schedule
    free = replace(schedule, events=tuple(replace(event, clusters=None) for event in schedule.events))
    with pytest.raises(InputError, match="differ in how clients find their cluster"):
        fitting(free, schedule, 6)


def test_a_client_in_several_clusters_of_an_event_must_fit(tmp_path: Path) -> None:
    """FedDrift's train the models of all clusters that they hold data of; those of other methods train one."""
    drift = ["drift.kind=partition", "drift.rounds=[2]", "method.name=feddrift", "method.clusters=2"]
    made = Experiment(make_runs(BASE, changes=drift)[0])
    planned = made.method.schedule
    write_schedule(tmp_path / "schedule.npz", planned)
    assert max(np.unique(event.cohort, return_counts=True)[1].max() for event in planned.events) == 2
    for path in (write_lines(tmp_path / "happened.jsonl", planned), tmp_path / "schedule.npz"):
        assert digest_of(replaying(made, path).method.schedule) == digest_of(planned)
    lines: list[Any] = list(lines_of(planned))
    lines[-1]["clusters"] = [0] * len(lines[-1]["cohort"])
    path.with_suffix(".jsonl").write_bytes(b"".join(map(line_as_bytes, lines)))
    with pytest.raises(InputError, match=r"is damaged \(cohort must hold different clients in each cluster"):
        read_schedule(path.with_suffix(".jsonl"))
    other = Experiment(make_runs(BASE, changes=METHODS["ifca"])[0]).method.schedule
    free = replace(planned, events=tuple(replace(event, clusters=None) for event in planned.events))
    with pytest.raises(InputError, match="trains a client in several clusters of an event, unlike the experiment's"):
        fitting(free, other, 6)


def test_a_line_says_what_was_left_out() -> None:
    event = experiment().method.schedule.events[0]
    assert line_of(event, 1, {"not_finite": 2})["refused"] == {"not_finite": 2}
