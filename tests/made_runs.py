"""Run folders written by hand, for tests of what reads them."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

Row = dict[str, Any]


def make_rows(count: int, rate: float = 5.0, **more: Any) -> list[Row]:
    """Return probes of a run that learns; a greater `rate` learns more slowly."""
    return [
        {
            "event": 10 * i,
            "round": i,
            "virtual_time": 60.0 * i,
            "wall_time": 0.5 * i,
            "train_loss": 2.3 * math.exp(-i / rate) + 0.01,
            "test_loss": 2.3 * math.exp(-i / rate) + 0.02,
            "test_accuracy": 1 - 0.9 * math.exp(-i / rate),
            "client_updates": 100 * i,
            "bytes_up": 1000 * i,
            "bytes_down": 2000 * i,
            **more,
        }
        for i in range(count)
    ]


def write_run(folder: Path, rows: Sequence[Row], *, finished: bool = True, **settings: Any) -> Path:
    """Write a run's folder as `atoll run` would, but for its checkpoint and its schedule; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    table = {"name": "made", "label": folder.name, "seed": 0, "rounds": 20, "data": {"dataset": "digits"}, **settings}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        (folder / "summary.json").write_text("{}")
    (folder / "config.toml").write_text(tomli_w.dumps(table))
    return folder


def timeless(line: str) -> Row:
    """Return a row without the wall-clock time, the one value that may differ, and without its checksum."""
    return {key: value for key, value in json.loads(line).items() if key not in ("wall_time", "crc32")}
