"""Units of times, bytes and counts."""

from typing import NamedTuple


class TimeUnit(NamedTuple):
    """A unit of time: its length in seconds, its name and its symbol."""

    seconds: float
    name: str
    symbol: str


_LONG = TimeUnit(86400.0, "days", "d"), TimeUnit(3600.0, "hours", "h"), TimeUnit(60.0, "minutes", "min")


def time_unit(span_seconds: float) -> TimeUnit:
    """Return the largest unit that fits at least twice into the span."""
    return next((unit for unit in _LONG if span_seconds >= 2 * unit.seconds), TimeUnit(1.0, "seconds", "s"))


def format_seconds(seconds: float) -> str:
    """Format a time in a suitable unit, to three digits."""
    unit = time_unit(seconds)
    return f"{format_number(seconds / unit.seconds, 3)} {unit.symbol}"


def format_number(value: float, digits: int = 4) -> str:
    """Format a number to so many digits, and in full where it has more before the point."""
    return f"{value:.{digits}g}" if abs(value) < 10**digits - 0.5 else f"{value:,.0f}"


def format_bytes(size: float) -> str:
    """Format a number of bytes, to three digits."""
    length, symbol = byte_unit(size)
    return f"{format_number(size / length, 3)} {symbol}"


def byte_unit(size: float) -> tuple[float, str]:
    """Return the largest unit that fits at least once: its bytes and its symbol."""
    units = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
    return next((each for each in units if float(f"{size:.3g}") >= each[0]), units[-1])


def format_count(value: float, _position: object = None) -> str:
    """Format a count in short form, as for tick labels (Matplotlib also passes the position)."""
    for size, symbol in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= (1e4 if symbol == "k" else size):
            return f"{value / size:.4g}{symbol}"
    return f"{value:g}"
