"""`atoll`, with a clock that is apart or a death at a step on a file: ``python -m tests.chaos.victim ... WORDS``."""

import argparse
import sys
import time
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

from tests.killing import dying_at, watch_files


def main() -> None:
    """Carry out the words of `atoll` that follow the options."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--apart", type=float, default=0.0, help="seconds that the clock is ahead")
    parser.add_argument("--die-in", type=Path, help="the folder whose files are watched")
    parser.add_argument("--die-at", type=int, default=0, help="the step on them")
    parser.add_argument("--kept", type=float, default=1.0, help="the share of a flushed file that reaches the disk")
    given, words = parser.parse_known_args()
    if given.apart:
        set_clock(given.apart)
    if given.die_in:
        watch_files(given.die_in, dying_at(given.die_at, given.kept))
    from atoll.cli import main as atoll

    sys.exit(atoll(words))


def set_clock(apart: float) -> None:
    """Let this process tell another time, also where a node signs it."""
    from atoll.fleet.flower import presence, signing

    right = time.time

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(seconds=apart)

    time.time = lambda: right() + apart
    vars(presence)["datetime"] = vars(signing)["datetime"] = Clock


if __name__ == "__main__":
    main()
