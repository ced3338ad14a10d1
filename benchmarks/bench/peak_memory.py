"""Memory of a process and all processes below it, on Linux."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def can_measure() -> bool:
    """Return whether this system reports how much memory processes hold."""
    return (_PROC / "self/smaps_rollup").is_file()


def peak_bytes(root: int) -> int:
    """Return an upper bound on the peak memory, in bytes, of a process and its living descendants.

    It adds each process's private pages, the largest shared part of any of them, and what each has released since its
    own peak. Libraries, and what workers share with the process that forked them, thus count once, and other programs
    that map the same libraries do not matter. If processes peaked at different times, the bound exceeds the true peak.
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
