"""What is spent and left, by hand."""

import json
from pathlib import Path

import pytest

from atoll.experiment.experiment import Experiment
from atoll.reproduce import kept_runs, recipe_plans
from atoll.reproduce import reproduce_progress as progress
from atoll.reproduce.kept_runs import PLANS, unpack_plans
from atoll.reproduce.recipe_plans import make_plans
from atoll.reproduce.recipe_runs import RecipeTask, carry_out_task, settings_of
from atoll.reproduce.reproduce_progress import ReproduceProgress
from atoll.settings.validation import Settings

WORK = {"fast": 10.0, "slow": 20.0, "timed": None}


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[RecipeTask]:
    """Two runs of a recipe, one of another, one of which nobody knows the length, and clusterings."""
    (settings, *_) = settings_of("quickstart", "tiny")
    titles = ["fast", "slow", "fast", "timed"]
    made = [settings.model_copy(update={"label": title}) for title in titles]
    monkeypatch.setattr(progress, "work_of", lambda settings: WORK[settings.label])
    recipes = ["one", "one", "two", "three"]
    return [
        *(
            RecipeTask(recipe, "", tmp_path / str(i), (each,))
            for i, (recipe, each) in enumerate(zip(recipes, made, strict=True))
        ),
        RecipeTask("four", "", tmp_path / "4", (settings,), is_trained=False),
    ]


def write(task: RecipeTask, seconds: float, finished: bool = True) -> None:
    task.folder.mkdir(exist_ok=True)
    (task.folder / "metrics.jsonl").write_text(json.dumps({"wall_time": seconds}) + '\n{"wall_ti')
    if finished:
        (task.folder / "summary.json").touch()


def test_what_is_left_follows_the_rates_so_far(tasks: list[RecipeTask]) -> None:
    first, second, other, timed, _ = tasks
    told = ReproduceProgress(tasks, 2)
    assert (told.spent, told.left) == (0, 40)
    assert str(told) == "0 s spent, about 20 s left with 2 at a time, and 1 of unknown length"
    write(first, 30.0)  # three times its work, as the others will be
    told.take(first)
    assert (told.spent, told.left) == (30, 90)
    write(second, 15.0, finished=False)
    write(other, 20.0)
    again = ReproduceProgress(tasks, 1)  # as after a stop
    assert (again.spent, again.left) == (65, 60 - 15)
    write(second, 60.0)
    write(timed, 7.0)
    for task in tasks:
        again.take(task)
    assert str(again).endswith("spent, nothing left")


@pytest.mark.more
def test_clusterings_go_on_where_they_were_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of("feduc-digits", "tiny", 3)
    task = RecipeTask("feduc-digits", "", tmp_path, tuple(settings), is_trained=False)
    made: list[int] = []

    def experiment(settings: Settings) -> Experiment:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(settings.seed)
        return Experiment(settings)

    with monkeypatch.context() as patch:
        patch.setattr(recipe_plans, "Experiment", experiment)
        with pytest.raises(KeyboardInterrupt):
            make_plans(task.folder, task.settings)
    assert len(json.loads((tmp_path / PLANS).read_bytes())["plans"]) == 2
    assert make_plans(task.folder, task.settings) == (False, "")
    plans = json.loads((tmp_path / PLANS).read_bytes())["plans"]
    assert [(plan["label"], plan["seed"]) for plan in plans] == [(each.label, each.seed) for each in settings]
    assert make_plans(task.folder, task.settings) == (True, "")
    assert str(ReproduceProgress([task], 1)) == "nothing is trained"


@pytest.mark.more
def test_an_impossible_clustering_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_runs, "describe_environment", lambda threads: {"git": "0123456"})
    settings = [each for each in settings_of("feduc-digits", "tiny", 1) if each.panel == "CenSyn"]
    first, second = (settings[-1].but("clustering", time_limit=limit) for limit in (0.01, 0.02))
    wanted = (first, *settings, second)
    task = RecipeTask("feduc-digits", "", tmp_path / "run", wanted, is_trained=False, kept=tmp_path / "kept.json.gz")
    outcome = carry_out_task(task)
    assert outcome.problem.startswith(f"feduc-digits, {first.panel}, {first.label}: clustering.time_limit = 0.01: ")
    assert outcome.problem.endswith(" (1 more cannot be made)")
    assert not outcome.was_finished
    plans = json.loads((task.folder / PLANS).read_bytes())["plans"]
    assert [plan["label"] for plan in plans] == [each.label for each in settings]
    unpack_plans(tmp_path / "kept.json.gz", tmp_path / "again")
    assert (tmp_path / "again" / PLANS).read_bytes() == (task.folder / PLANS).read_bytes()


def test_runs_of_unknown_length_are_like_those_of_their_recipe(tasks: list[RecipeTask]) -> None:
    other = RecipeTask("three", "", tasks[3].folder.with_name("5"), tasks[3].settings)
    write(tasks[3], 50.0)
    assert ReproduceProgress([tasks[3], other], 1).left == 50
