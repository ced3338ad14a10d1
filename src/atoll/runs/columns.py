"""Built-in columns of ``metrics.jsonl``; all others are of custom probes."""

import re

LOSSES = ("absent", "dropped", "late")
"""Counts of lost clients in an `Event`."""

SPENT = "epsilon"
"""Epsilon spent by the worst client, in private runs; shown like a probe's column."""

_BUILT_IN = {
    *("event", "round", "virtual_time", "wall_time", "train_loss", "test_loss", "test_accuracy", "local_loss"),
    *("learning_rate", "client_updates", "bytes", "bytes_up", "bytes_down", *LOSSES),
    *("ari", "confusion", "cluster_clients", "cluster_accuracy", "mean_cluster_accuracy", "worst_cluster_accuracy"),
    *("cluster_perplexity", "parameter_error", "h_device", "h_cluster", "crc32"),
    *("run", "panel", "folder", "seed", "rounds"),  # in tables for other programs
}


def is_built_in(column: str) -> bool:
    """Return whether a column is built in."""
    return column in _BUILT_IN or column.startswith("refused_")


def is_share(column: str) -> bool:
    """Return whether a column's values are shares, shown in per cent: accuracies and their deviations over clients."""
    return column.removesuffix("_std").endswith("accuracy")


def rises(column: str) -> bool:
    """Return whether higher values of a column are better, as of accuracies, scores and the adjusted Rand index."""
    return column.endswith(("accuracy", "score", "ari"))


def column_title(column: str) -> str:
    """Return the title of a probe's column in figures and tables."""
    name = re.sub(r"^p([1-9]0)_", r"\1th percentile of ", column)
    return re.sub(r"^(.+)_std$", r"standard deviation of \1", name).replace("_", " ").capitalize()
