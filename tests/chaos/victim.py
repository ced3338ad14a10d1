"""`atoll`, with a clock that is apart or a death at a step: ``python -m tests.chaos.victim ... WORDS``."""

import argparse
import os
import signal
import sys
import time
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

from tests.killing import dying_at, watch_files


def main() -> None:
    """Carry out the words of `atoll` that follow the options."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--apart", type=float, default=0.0, help="seconds that the clock is ahead")
    parser.add_argument("--die-in", type=Path, help="the folder whose files are watched")
    parser.add_argument("--die-at", type=int, default=0, help="the step on them")
    parser.add_argument("--kept", type=float, default=1.0, help="the share of a flushed file that reaches the disk")
    parser.add_argument("--die-call", help="a server's call of the superlink while nodes train, as PullObject:after")
    given, words = parser.parse_known_args()
    if given.apart:
        set_clock(given.apart)
    if given.die_in:
        watch_files(given.die_in, dying_at(given.die_at, given.kept))
    if given.die_call:
        die_in(*given.die_call.split(":"))
    from atoll.cli import main as atoll

    sys.exit(atoll(words))


def set_clock(apart: float) -> None:
    """Let this process tell another time, also where a node signs it."""
    from atoll.fleet.flower import presence

    right = time.time

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(seconds=apart)

    time.time = lambda: right() + apart
    vars(presence)["datetime"] = Clock


def die_in(step: str, when: str) -> None:
    """Kill this server before or after its first call of this name in which it can get something of a training."""
    from atoll.fleet.flower import flower_fleet
    from atoll.fleet.flower.calls import runtime_client

    ask, tasks = flower_fleet.FlowerFleet.call, list[str]()

    class Fatal:
        def __init__(self, client: Any) -> None:
            self.client = client

        def __getattr__(self, name: str) -> Any:
            method = getattr(self.client, name)
            if name != step:
                return method

            def call(request: Any) -> Any:
                is_training = tasks[-1:] == ["train"]
                if is_training and when == "before":
                    os.kill(os.getpid(), signal.SIGKILL)
                answer = method(request)
                if is_training and (name != "PullMessages" or answer.messages_list):
                    os.kill(os.getpid(), signal.SIGKILL)
                return answer

            return call

    def noted(self: Any, heads: Any, task: str, *words: Any) -> Any:
        tasks.append(task)
        return ask(self, heads, task, *words)

    vars(flower_fleet)["runtime_client"] = lambda *words: Fatal(runtime_client(*words))
    setattr(flower_fleet.FlowerFleet, "call", noted)  # noqa: B010


if __name__ == "__main__":
    main()
