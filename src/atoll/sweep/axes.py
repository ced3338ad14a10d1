"""What `--over` says: settings, and the values that each takes."""

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atoll.settings.experiment_file import parse_changes
from atoll.support.errors import InputError

MOST = 10_000  # runs of a sweep; more than that is a mistyped range
_FORM = "must have the form section.key=value,value or section.key=first..last"
_NAMING = ("name", "label", "panel", "description")
_RANGE = re.compile(r"(?P<low>[^.].*?)\.\.(?P<high>.+?)(?P<log>:log)?")
_PART = re.compile(r"(?P<number>\d{1,9})/(?P<parts>\d{1,9})", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_WHOLE = re.compile(r"[+-]?\d+")


@dataclass(frozen=True)
class Axis:
    """A setting and its values, written as `--set` takes them."""

    name: str
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Interval:
    """A setting and the range to search, both ends included.

    Attributes:
        is_whole: whether the values are whole numbers.
        is_log: whether values are sampled evenly on a logarithmic scale.
    """

    name: str
    low: float
    high: float
    is_whole: bool
    is_log: bool


def parse_axes(texts: Iterable[str]) -> list[Axis]:
    """Read ``section.key=value,value`` texts; ``first..last`` stands for all whole numbers between them."""
    axes = [_read_axis(name, given) for name, given in _split_all(texts)]
    if (count := math.prod(len(axis.texts) for axis in axes)) > MOST:
        raise InputError(f"--over: makes {count:,} combinations; at most {MOST:,} are allowed")
    return axes


def parse_space(texts: Iterable[str]) -> list[Axis | Interval]:
    """Read a search space: lists of values as in `parse_axes`, or ``low..high`` ranges, with ``:log`` if wanted."""
    space: list[Axis | Interval] = []
    for name, given in _split_all(texts):
        if name == "seed":
            raise InputError(
                "--over seed: a search would pick a lucky seed; fix one with --set seed=..., then run the best "
                "setting with several seeds"
            )
        found = _RANGE.fullmatch(given)
        if found and _NUMBER.fullmatch(found["low"]) and _NUMBER.fullmatch(found["high"]):
            space.append(_read_interval(name, given, found["low"], found["high"], bool(found["log"])))
        else:
            space.append(_read_axis(name, given))
    return space


def parse_part(text: str) -> slice:
    """Read I/N as a slice: every N-th run, starting with the I-th, so that all parts take about as long."""
    found = _PART.fullmatch(text.strip())
    if found is None or not 1 <= int(found["number"]) <= int(found["parts"]) <= MOST:
        form = f"the form I/N, such as 2/8, with I from 1 to N and N at most {MOST:,}"
        raise InputError(f"--part {text}: must have {form}")
    return slice(int(found["number"]) - 1, None, int(found["parts"]))


def combinations(axes: Sequence[Axis]) -> Iterator[tuple[str, ...]]:
    """Yield the texts of every combination; the last axis varies fastest."""
    return itertools.product(*(axis.texts for axis in axes))


def short_names(names: Sequence[str]) -> list[str]:
    """Return the last part of each setting's name where that is unique, else the whole name."""
    last = [name.rpartition(".")[2] for name in names]
    return [end if last.count(end) == 1 else name for name, end in zip(names, last, strict=True)]


def file_part(text: str) -> str:
    """Return a value as part of a folder's name, without characters that a file system or shell might misread."""
    bare = re.sub(r"[\[\]{}'\"\s]", "", text)
    return re.sub(r"[^\w.+-]+", "-", bare)[:60] or "empty"


def require_folders(named: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Refuse two combinations of values that give their folders the same name."""
    seen: dict[str, Mapping[str, Any]] = {}
    for name, values in named:
        if name in seen:
            told = f"{dict(seen[name])} and {dict(values)} have the same folder name {name!r}"
            raise InputError(f"--over: {told}; sweep over each in a folder of its own, with --out")
        seen[name] = values


def parse_value(name: str, text: str) -> Any:
    """Return the value that `parse_changes` reads from a text."""
    table: Any = parse_changes([f"{name}={text}"])
    for part in name.split("."):
        table = table[part.strip()]
    return table


def around(axes: Sequence[Axis]) -> list[list[str]]:
    """Return the first combination as changes, and those with another function in one place."""
    first = [f"{axis.name}={axis.texts[0]}" for axis in axes]
    texts = ((place, text) for place, axis in enumerate(axes) for text in axis.texts[1:])
    others = (pair for pair in texts if not _NUMBER.fullmatch(pair[1]))
    return [first, *([*first[:i], f"{axes[i].name}={text}", *first[i + 1 :]] for i, text in others)]


def _split_all(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for text in texts:
        name, equals, given = text.partition("=")
        name = ".".join(part.strip() for part in name.split("."))
        if not equals or not given.strip() or not all(name.split(".")):
            raise InputError(f"--over {text!r}: {_FORM}")
        if name in _NAMING:
            raise InputError(f"--over {name}: names runs, which the sweep does itself")
        if name in seen:
            raise InputError(f"--over {name}: is given twice; put all its values in one --over")
        seen.add(name)
        yield name, given.strip()


def _read_axis(name: str, given: str) -> Axis:
    texts = [text for part in _split(given) for text in _expand(name, part)]
    seen: dict[str, str] = {}
    for text in texts:
        value = parse_value(name, text)
        key = json.dumps(float(value) if isinstance(value, int) and not isinstance(value, bool) else value, default=str)
        if key in seen:
            raise InputError(f"--over {name}: the value {text} is repeated")
        seen[key] = text
    return Axis(name, tuple(texts))


def _expand(name: str, part: str) -> list[str]:
    """Return the value, or the whole numbers of a range."""
    if not part:
        raise InputError(f"--over {name}: has an empty value; {_FORM}")
    found = _RANGE.fullmatch(part)
    if not found or not all(_NUMBER.fullmatch(found[end]) for end in ("low", "high")):
        return [part]
    if found["log"] or not all(_WHOLE.fullmatch(found[end]) for end in ("low", "high")):
        raise InputError(
            f"--over {name}={part}: the range of a grid needs whole numbers, such as 0..4; list the values, or search "
            "the range with --tune"
        )
    low, high = int(found["low"]), int(found["high"])
    if low > high:
        raise InputError(f"--over {name}={part}: is empty; the first number must be at most the last")
    if high - low >= MOST:
        raise InputError(f"--over {name}={part}: has {high - low + 1:,} values; at most {MOST:,} runs are allowed")
    return [str(number) for number in range(low, high + 1)]


def _read_interval(name: str, given: str, low: str, high: str, is_log: bool) -> Interval:
    is_whole = bool(_WHOLE.fullmatch(low) and _WHOLE.fullmatch(high))
    interval = Interval(name, float(low), float(high), is_whole, is_log)
    if interval.low >= interval.high:
        raise InputError(f"--over {name}={given}: is empty; the first number must be less than the last")
    if is_log and interval.low <= 0:
        raise InputError(f"--over {name}={given}: a logarithmic range must start above 0")
    return interval


def _split(given: str) -> list[str]:
    """Split at the commas that are not inside brackets or quotes."""
    parts, depth, quote = [""], 0, ""
    for char in given:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"" and (depth or not parts[-1].strip()):  # else it is an apostrophe
            quote = char
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += char
    return [part.strip() for part in parts]
