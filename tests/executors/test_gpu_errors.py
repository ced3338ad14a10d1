"""A GPU that is lost, too small, or lacks a precision, told by stand-ins that raise what PyTorch raises."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from atoll import Experiment, InputError, RunError, make_runs, run_events
from atoll.executors.serial import Serial
from atoll.executors.stacked import stacked_executor
from atoll.executors.stacked.training import train_stack
from atoll.experiment import initial_model
from atoll.experiment.executor_choice import choose_executor
from atoll.local.precision import why_card_lacks
from atoll.local.weights import require_device
from atoll.runs import checkpointer
from atoll.runs.checkpoint import save_checkpoint
from atoll.support.errors import telling_of_gpus
from tests.made_runs import timeless
from tests.tiers import thinned

LOST = (
    "CUDA error: unspecified launch failure\nCUDA kernel errors might be asynchronously reported at some other API call"
)
FULL = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 1.00 GiB.\nSee documentation"
LOST_TOLD = (
    "run.device = 'cuda': CUDA error: unspecified launch failure; once the GPU answers, give the same command "
    "with --resume"
)
TOO_SMALL = "the GPU is too small: lower run.stack_bytes, or take a smaller model, fewer samples or another GPU"
TABLE: dict[str, Any] = {
    "rounds": 6,
    "data": {"clients": 6, "samples": 12},
    "model": {"name": "linear"},
    "local": {"lr": 0.2, "steps": 2, "batch_size": 4},
    "clustering": {"clusters": 2},
    "method": {"fraction": 0.5},
    "run": {"executor": "stacked", "checkpoint_every": 2, "evaluate_samples": 50},
}


def experiment(**run: Any) -> Experiment:
    return Experiment(make_runs({**TABLE, "run": {**TABLE["run"], **run}})[0])


def accelerator_error(told: str) -> RuntimeError:
    """Return what this version of PyTorch raises for a GPU's error."""
    kind: type[RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)
    return kind(told)


def fails_after(calls: int, real: Callable[..., Any], lost: list[bool], told: str) -> Callable[..., Any]:
    """Return the function that works for some calls, and then notes that the GPU is lost and raises."""
    left = iter(range(calls))

    def call(*given: Any, **named: Any) -> Any:
        if next(left, None) is None:
            lost.append(True)
            raise accelerator_error(told)
        return real(*given, **named)

    return call


@pytest.mark.parametrize("where", thinned(["in a stack", "one by one", "in an evaluation"], 1))
def test_a_lost_card_ends_the_run_in_a_sentence_and_it_resumes_to_the_same_bits(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = "serial" if where == "one by one" else "stacked"
    list(run_events(experiment(executor=executor), tmp_path / "whole"))
    lost: list[bool] = []
    with monkeypatch.context() as patched:
        if where == "in a stack":
            real = train_stack
            patched.setattr(stacked_executor, "train_stack", fails_after(7, real, lost, LOST))
        elif where == "one by one":
            patched.setattr(Serial, "_train", fails_after(17, Serial._train, lost, LOST))
        else:
            from atoll.evaluation.scores import Evaluator

            patched.setattr(Evaluator, "train_loss", fails_after(4, Evaluator.train_loss, lost, LOST))
        real_save = save_checkpoint

        def save(*given: Any) -> None:
            """Models on a GPU that is lost cannot be read."""
            if lost:
                raise accelerator_error(LOST)
            real_save(*given)

        patched.setattr(checkpointer, "save_checkpoint", save)
        with pytest.raises(RunError) as raised:
            list(run_events(experiment(executor=executor), tmp_path / "cut"))
        assert str(raised.value) == LOST_TOLD
    assert not (tmp_path / "cut" / "summary.json").exists()
    assert list((tmp_path / "cut" / "checkpoint").iterdir())
    list(run_events(experiment(executor=executor), tmp_path / "cut", resume=True))
    ours, theirs = (
        {path.name: load_file(path) for path in (tmp_path / name / "checkpoint").glob("*.safetensors")}
        for name in ("cut", "whole")
    )
    last = max(theirs)
    assert all(torch.equal(ours[last][name], theirs[last][name]) for name in theirs[last])
    cut, whole = (
        [timeless(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("cut", "whole")
    )
    assert cut == whole


@pytest.mark.parametrize("place", ["the model", "the data"])
def test_a_card_without_room_for_the_model_or_the_data_is_told_before_anything_is_written(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError(FULL)

    if place == "the model":
        monkeypatch.setattr(initial_model, "place", full)
    else:
        monkeypatch.setattr("atoll.local.trainer.Batches", full)
    with pytest.raises(RunError) as raised:
        experiment().check()
    assert str(raised.value).startswith("run.device = 'cuda': CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0")
    assert str(raised.value).endswith(f"; {TOO_SMALL}")


def test_no_room_for_a_single_client_is_told_with_what_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError(FULL)

    monkeypatch.setattr(stacked_executor, "train_stack", full)
    with pytest.warns(RuntimeWarning, match="out of memory"), pytest.raises(RunError, match=TOO_SMALL):
        list(run_events(experiment(), tmp_path / "run"))


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (RunError("run.cuda_graphs = true: the model's step cannot be captured"), True),
        (InputError("run.device = 'cuda': is not available here"), True),
        (RunError("event 3, cluster 1, client 0: training failed"), False),
    ],
)
def test_sentences_about_settings_stay_though_a_card_is_their_cause(error: Exception, kept: bool) -> None:
    with pytest.raises(type(error)) as raised, telling_of_gpus():
        raise error from accelerator_error(LOST)
    assert str(raised.value) == (str(error) if kept else LOST_TOLD)


@pytest.mark.parametrize("error", [ValueError("CUDA error: of a user's own"), RuntimeError("shapes do not match")])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, telling_of_gpus():
        raise error
    assert raised.value is error


@pytest.mark.parametrize("device", ["cuda:64", "meta", "tpu", "none"])
def test_a_device_that_is_not_there_or_holds_no_numbers_is_refused(device: str) -> None:
    with pytest.raises(InputError, match=rf"run.device = '{device}': is not available here \(.+\); use 'cpu'"):
        require_device(device)


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_a_precision_that_the_card_lacks_is_refused(precision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")
    made = experiment(precision=precision, executor="serial")
    for found, refused in (((7, 0), True), ((7, 5), True), ((8, 0), False), ((9, 0), False)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=found: found)
        assert bool(why_card_lacks(precision, "cuda")) == refused
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    told = rf"run.precision = '{precision}': Tesla V100 has no such products \(compute capability 8.0"
    with pytest.raises(InputError, match=told):
        choose_executor(made.settings.run, made.method, made.training.trainer().for_executors(), {}, 1000, "cuda")
    cards = {"cuda:0": (9, 0), "cuda:1": (7, 0)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", cards.get)
    wanted = made.settings.run.model_copy(update={"device": "cuda:0, cuda:1"})
    with pytest.raises(InputError, match=told):
        choose_executor(wanted, made.method, made.training.trainer().for_executors(), {}, 1000, "cuda:0")
    assert why_card_lacks("float32", "cuda") == why_card_lacks(precision, "cpu") == ""
