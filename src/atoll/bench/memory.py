"""Memory of a process and all processes below it, on Linux."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def can_measure() -> bool:
    """Return whether this system shows how much memory processes hold."""
    return (_PROC / "self/smaps_rollup").is_file()


def peak_bytes(root: int) -> int:
    """Return the most bytes that a process and its living descendants have held in memory, at most.

    These are the pages that each has for itself now, the largest part that one of them shares, and what each has
    given back since its own peak. Libraries, and what workers share with the process that forked them, so count once,
    and other programs that map the same library change nothing. Where processes had their peaks at different times,
    it is more than they held at any one time.
    """
    private = returned = shared = 0
    for pid in descendants(root):
        with suppress(OSError, KeyError):  # it has ended
            held, status = _read(pid, "smaps_rollup"), _read(pid, "status")
            private += held["Private_Clean"] + held["Private_Dirty"]
            shared = max(shared, held["Shared_Clean"] + held["Shared_Dirty"])
            returned += max(0, status["VmHWM"] - status["VmRSS"])
    return 1024 * (private + shared + returned)


def descendants(root: int) -> list[int]:
    """Return the process and all processes below it."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    tree = [root]
    for pid in tree:
        tree += children.get(pid, [])
    return tree


def _parents() -> Iterator[tuple[int, int]]:
    for folder in _PROC.iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):  # it has ended
                words = (folder / "stat").read_text().rpartition(")")[2].split()  # a command may have any name
                yield int(folder.name), int(words[1])


def _read(pid: int, name: str) -> dict[str, int]:
    """Return the lines ``NAME: NUMBER kB`` of a process's file."""
    lines = (line.split() for line in (_PROC / str(pid) / name).read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) == 3 and words[2] == "kB"}
