"""Runs kept as evidence: taken as finished, to the bit, and refused where they do not fit."""

import gzip
import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from atoll.report.reading.groups import group_runs
from atoll.report.reading.runs import find_runs
from atoll.reproduce.claim_results import gather
from atoll.reproduce.kept_runs import FILES, PLANS, keep_plans, kept_file, seeds_in, unpack_plans
from atoll.reproduce.recipe_plans import read_plans
from atoll.reproduce.recipe_runs import RecipeTask, begin_tasks, carry_out_task, plan_tasks, restore
from atoll.settings.validation import validate
from atoll.support import environment
from atoll.support.errors import InputError
from tests.made_runs import make_rows, write_run

COMMIT = "0123abc"
SMALL = {"name": "small", "data": {"clients": 4}, "clustering": {"clusters": 2}, "rounds": 2, "label": "A, seed 0"}


@pytest.fixture(autouse=True)
def committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_git_revision", lambda: COMMIT)


@pytest.fixture
def task(tmp_path: Path) -> RecipeTask:
    settings = validate(SMALL)
    return RecipeTask("r", "A", tmp_path / "run", (settings,), kept=kept_file(tmp_path / "kept", "r", "tiny", settings))


def rows_of(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {name: value for name, value in json.loads(line).items() if name not in ("wall_time", "crc32")}
        for line in lines
    ]


def test_a_finished_run_is_kept_and_restored_to_the_byte(task: RecipeTask, tmp_path: Path) -> None:
    assert task.kept is not None
    assert not carry_out_task(task).note
    assert task.kept == tmp_path / "kept/r/tiny/a-seed-0.json.gz"
    assert task.kept.stat().st_size < 10_000
    elsewhere = replace(task, folder=tmp_path / "other")
    assert restore([elsewhere]) == {}
    for name in FILES:
        assert (elsewhere.folder / name).read_bytes() == (task.folder / name).read_bytes()
    before = task.kept.read_bytes()
    assert carry_out_task(elsewhere).was_finished
    assert task.kept.read_bytes() == before


def test_a_removed_file_is_run_again_to_the_same_numbers(task: RecipeTask, tmp_path: Path) -> None:
    assert task.kept is not None
    carry_out_task(task)
    task.kept.unlink()
    again = replace(task, folder=tmp_path / "again")
    assert restore([again]) == {}
    assert not carry_out_task(again).was_finished
    assert rows_of(again.folder) == rows_of(task.folder)
    assert task.kept.exists()


def test_a_run_on_another_device_is_the_same_run(task: RecipeTask, tmp_path: Path) -> None:
    carry_out_task(task)
    settings = validate(SMALL | {"run": {"device": "cuda"}})
    other = replace(task, folder=tmp_path / "other", settings=(settings,))
    assert restore([other]) == {}
    before = (other.folder / "config.toml").read_bytes()
    outcome = carry_out_task(other)
    assert (outcome.problem, outcome.was_finished) == ("", True)
    assert (other.folder / "config.toml").read_bytes() == before


def test_evidence_that_is_kept_is_used_on_another_device(tmp_path: Path) -> None:
    """All kept runs of a recipe, as `atoll reproduce --device cuda` finds them; this needs no GPU."""
    kept = Path(__file__).parents[2] / "evidence"
    tasks = plan_tasks("fedcluster-figure-5", "tiny", tmp_path, True, 1, "cuda", kept)[:2]
    assert restore(tasks) == {}
    assert [(each.problem, each.was_finished) for each in map(carry_out_task, tasks)] == [("", True)] * 2


def altered(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    def alter(packed: bytes) -> bytes:
        content = json.loads(gzip.decompress(packed))
        change(content)
        return gzip.compress(json.dumps(content).encode())

    return alter


def other_rounds(content: dict[str, Any]) -> None:
    content["files"]["config.toml"] = content["files"]["config.toml"].replace("rounds = 2", "rounds = 3")


def less_rows(content: dict[str, Any]) -> None:
    files = content["files"]
    files["metrics.jsonl"] = "".join(files["metrics.jsonl"].splitlines(keepends=True)[:-1])


def row_cut(number: int) -> Callable[[dict[str, Any]], None]:
    def cut(content: dict[str, Any]) -> None:
        lines = content["files"]["metrics.jsonl"].splitlines(keepends=True)
        content["files"]["metrics.jsonl"] = "".join(lines[:number] + lines[number + 1 :])

    return cut


def other(name: str, text: str, instead: str) -> Callable[[bytes], bytes]:
    def change(content: dict[str, Any]) -> None:
        assert text in content["files"][name]
        content["files"][name] = content["files"][name].replace(text, instead)

    return altered(change)


DAMAGED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut short": (lambda packed: packed[:-30], "it is cut short or too long"),
    "no gzip": (lambda packed: b"{}", "incorrect header check"),
    "empty": (lambda packed: b"", "it is cut short or too long"),
    "a list": (lambda packed: gzip.compress(b"[]"), "it must hold a table with format = 1"),
    "no files": (altered(lambda content: content["files"].pop("metrics.jsonl")), "metrics.jsonl"),
    "of no commit": (altered(lambda content: content.update(commit="0123abc-dirty")), "'0123abc-dirty', which is none"),
    "of an unknown one": (altered(lambda content: content.update(commit=None)), "None, which is none"),
    "other settings": (altered(other_rounds), "had other settings than the recipe has now"),
    "rows cut": (altered(less_rows), "its rows do not end as its summary says"),
    "first row cut": (altered(row_cut(0)), "the row before training is missing"),
    "middle row cut": (altered(row_cut(1)), "a row between rounds 0 and 2 is missing"),
    "no row": (other("metrics.jsonl", "\n", " "), "cannot be read as a kept run"),
    "other rows": (other("metrics.jsonl", '"round": 1', '"round": 2'), "line 2: its checksum does not match"),
    "no settings": (other("config.toml", "rounds", "[rounds"), "cannot be read as a kept run"),
    "settings of none": (other("config.toml", "rounds = 2", "rounds = -2"), "rounds"),
    "no summary": (other("summary.json", "{", "["), "cannot be read as a kept run"),
    "no environment": (other("environment.json", '"git"', '"got"'), "cannot be read as a kept run"),
    "another commit": (
        altered(lambda content: content.update(commit="fedcba9")),
        "its commit is fedcba9, but it ran at",
    ),
    "another digest": (altered(lambda content: content.update(digest="0")), "had other settings"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_does_not_fit_is_refused_in_one_sentence(name: str, task: RecipeTask, tmp_path: Path) -> None:
    assert task.kept is not None
    carry_out_task(task)
    damage, told = DAMAGED[name]
    task.kept.write_bytes(damage(task.kept.read_bytes()))
    other = replace(task, folder=tmp_path / "other")
    (reason,) = restore([other]).values()
    assert told in reason
    assert str(task.kept) in reason
    assert reason.endswith("remove the file to have it run again")
    assert not (other.folder / "config.toml").exists()


def test_a_run_from_before_a_setting_existed_has_its_default(task: RecipeTask, tmp_path: Path) -> None:
    """So figures have one curve of its label, as verdicts have one value."""

    def older(content: dict[str, Any]) -> None:
        table = tomllib.loads(content["files"]["config.toml"])
        assert table.pop("drift")["kind"] == "none"
        content["files"]["config.toml"] = tomli_w.dumps(table)

    carry_out_task(task)
    settings = validate(SMALL | {"label": "A, seed 1", "seed": 1})
    assert task.kept is not None
    later = replace(task, folder=tmp_path / "later", settings=(settings,), kept=task.kept.with_name("later.json.gz"))
    carry_out_task(later)
    task.kept.write_bytes(altered(older)(task.kept.read_bytes()))
    both = [replace(each, folder=tmp_path / "both" / each.folder.name) for each in (task, later)]
    assert restore(both) == {}
    assert tomllib.loads((both[0].folder / "config.toml").read_text())["drift"]["kind"] == "none"
    (group,) = group_runs(find_runs([tmp_path / "both"]))
    assert group.label == "A"
    assert group.seeds == (1, 0)  # in the order of the folders


def test_the_recipes_settings_count_not_the_files(task: RecipeTask, tmp_path: Path) -> None:
    carry_out_task(task)
    settings = validate(SMALL | {"rounds": 3})
    (reason,) = restore([replace(task, folder=tmp_path / "other", settings=(settings,))]).values()
    assert "had other settings than the recipe has now" in reason


@pytest.mark.parametrize("commit", [None, "0123abc-dirty"])
def test_a_run_of_no_commit_is_not_kept(commit: str | None, task: RecipeTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_git_revision", lambda: commit)
    assert "is not kept as evidence: it ran at no commit" in carry_out_task(task).note
    assert task.kept is not None
    assert not task.kept.exists()


def test_what_is_kept_later_is_read_with_the_other_runs_of_a_folder(tmp_path: Path) -> None:
    made = [validate({**SMALL, "label": f"A, seed {seed}", "seed": seed}) for seed in range(3)]
    files = [kept_file(tmp_path / "kept", "r", "tiny", settings) for settings in made]
    for settings, file in zip(made, files, strict=True):
        assert not carry_out_task(RecipeTask("r", "A", tmp_path / file.name, (settings,), kept=file)).note
    pairs = enumerate(zip(made, files, strict=True))
    tasks = [RecipeTask("r", "A", tmp_path / f"r/{number}", (each,), kept=file) for number, (each, file) in pairs]
    assert restore(tasks[:2]) == {}
    begin_tasks(tasks[:2])  # writes experiment.json
    assert restore(tasks) == {}
    assert [run.folder.name for run in find_runs([tmp_path / "r"])] == ["0", "1", "2"]


def test_a_run_of_other_settings_is_refused_and_not_judged(task: RecipeTask) -> None:
    assert not carry_out_task(task).note
    other = replace(task, settings=(task.settings[0].but("local", lr=0.2),))
    (told,) = restore([other]).values()
    assert "was run with other settings: local.lr was 0.05, is now 0.2" in told
    assert restore([task]) == {}
    place = task.folder.parent
    assert [run.folder for run in gather("quickstart", [], "tiny", place).runs] == [task.folder]
    assert gather("quickstart", [], "tiny", place, refused=restore([other])).runs == ()


def test_clusterings_are_kept_as_one_file(tmp_path: Path) -> None:
    (tmp_path / PLANS).write_text('{"settings": [], "plans": []}')
    file = tmp_path / "kept/r/tiny" / f"{PLANS}.gz"
    assert keep_plans(file, tmp_path) == ""
    unpack_plans(file, tmp_path / "other")
    assert (tmp_path / "other" / PLANS).read_text() == '{"settings": [], "plans": []}'


def test_a_folder_gets_kept_clusterings_if_there_are_more_than_it_holds(tmp_path: Path) -> None:
    def text(number: int) -> str:
        return json.dumps({"settings": [{"seed": seed} for seed in range(number)], "plans": [{}] * number})

    task = RecipeTask("r", "", tmp_path / "own", (), is_trained=False, kept=tmp_path / "kept" / f"{PLANS}.gz")
    assert task.kept is not None
    task.folder.mkdir()
    for own, kept, expected in [(2, 3, 3), (3, 3, 3), (4, 3, 4)]:
        (tmp_path / PLANS).write_text(text(kept))
        assert keep_plans(task.kept, tmp_path) == ""
        (task.folder / PLANS).write_text(text(own))
        assert restore([task]) == {}
        assert len(read_plans(task.folder)["plans"]) == expected
    (tmp_path / PLANS).write_text("[]")
    keep_plans(task.kept, tmp_path)
    (reason,) = restore([task]).values()
    assert reason.startswith(f"{task.kept} cannot be read as kept clusterings (")
    assert reason.endswith("; remove the file to have it run again")


def test_seeds_are_counted_by_the_names_of_files(tmp_path: Path) -> None:
    assert seeds_in(tmp_path / "r/tiny") == 0
    for name in ("a-seed-0", "a-seed-4", "b-seed-2", "no-run-of-seed-4294967295"):
        (tmp_path / "r/tiny").mkdir(parents=True, exist_ok=True)
        (tmp_path / "r/tiny" / f"{name}.json.gz").touch()
    assert seeds_in(tmp_path / "r/tiny") == 5


def test_tasks_of_a_recipe_name_their_files(tmp_path: Path) -> None:
    tasks = plan_tasks("quickstart", "tiny", tmp_path, True, seeds=1, evidence=tmp_path / "kept")
    names = [each.kept.relative_to(tmp_path) for each in tasks if each.kept]
    assert [str(name) for name in names] == [
        "kept/quickstart/tiny/fedcluster-m-10-seed-0.json.gz",
        "kept/quickstart/tiny/fedavg-seed-0.json.gz",
    ]


def test_of_further_seeds_a_recipe_has_those_that_are_kept(tmp_path: Path) -> None:
    (tmp_path / "kept/quickstart/tiny").mkdir(parents=True)
    (tmp_path / "kept/quickstart/tiny/fedavg-seed-2.json.gz").touch()
    tasks = plan_tasks("quickstart", "tiny", tmp_path, True, seeds=1, evidence=tmp_path / "kept")
    assert [task.folder.name for task in tasks] == ["fedcluster-m-10-seed-0", "fedavg-seed-0", "fedavg-seed-2"]


def test_of_further_seeds_a_recipe_has_those_that_its_folder_holds(tmp_path: Path) -> None:
    write_run(tmp_path / "r/fedavg-seed-2", make_rows(2))
    tasks = plan_tasks("quickstart", "tiny", tmp_path / "r", True, seeds=1)
    assert [task.folder.name for task in tasks] == ["fedcluster-m-10-seed-0", "fedavg-seed-0", "fedavg-seed-2"]
    begin_tasks(tasks)  # which refuses a folder that holds anything else
    (tmp_path / "r/notes").mkdir()
    with pytest.raises(InputError, match="holds files other than this experiment's runs"):
        begin_tasks(plan_tasks("quickstart", "tiny", tmp_path / "r", True, seeds=1))
