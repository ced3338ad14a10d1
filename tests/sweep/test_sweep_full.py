"""A full disk ends a sweep's run with one sentence that says how to go on."""

import errno
from multiprocessing import Pipe
from pathlib import Path

import pytest

from atoll.settings.validation import Settings
from atoll.support.errors import RunError
from atoll.sweep import sweep_worker
from atoll.sweep.sweep_worker import Job, News, work

FULL = OSError(errno.ENOSPC, "No space left on device", "runs/a/metrics.jsonl")


def caused(error: OSError) -> RunError:
    made = RunError("runs/a: a checkpoint cannot be written (No space left on device)")
    made.__cause__ = error
    return made


@pytest.mark.parametrize("error", [FULL, caused(FULL)], ids=["raw", "told"])
def test_a_full_disk_is_a_sentence(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(job: Job, pipe: object) -> News:
        raise error

    monkeypatch.setattr(sweep_worker, "_carry_out", fail)
    monkeypatch.setattr("os.dup2", lambda *_: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    monkeypatch.chdir(tmp_path)
    here, there = Pipe()
    work(Job("a", Settings(), tmp_path / "a", (), 1), tmp_path, there)
    news = here.recv()
    assert (news.state, news.trace) == ("failed", "")
    assert news.error.endswith("; free some space and give the same command with --resume")
    assert "No space left on device" in news.error
