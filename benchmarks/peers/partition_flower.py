"""Deal out pools by Flower Datasets' partitioners: how many samples of each class each client gets, draw by draw."""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from flwr_datasets import partitioner


def main(folder: Path) -> None:
    for case in sorted(folder.glob("*.case.npz")):
        held = np.load(case)
        told = json.loads(str(held["told"]))
        counts = [deal_out(labels, told, draw) for draw, labels in enumerate(held["labels"])]
        np.savez(case.with_name(case.name.replace(".case", ".answer")), counts=np.array(counts))


def deal_out(labels: Any, told: dict[str, Any], seed: int) -> Any:
    """Return the samples of each class that each client gets of one pool, [clients, classes]."""
    make, settings = getattr(partitioner, told["partitioner"]), told["settings"]
    dealt = make(**settings, **({"seed": seed} if told["seeded"] else {}))
    dealt.dataset = Dataset.from_dict({"label": labels}).with_format("numpy")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of draws that are made again
        parts = load(dealt, settings["num_partitions"])
    return [np.bincount(part, minlength=labels.max() + 1) for part in parts]


def load(dealt: Any, clients: int) -> list[Any]:
    """Return the labels that each client gets; all at once where the partitioner knows whose they are."""
    first = np.array(dealt.load_partition(0)["label"])
    known = getattr(dealt, "_partition_id_to_indices", None)
    if not known:
        return [first, *(np.array(dealt.load_partition(k)["label"]) for k in range(1, clients))]
    pool = np.array(dealt.dataset["label"])  # sorted by now where shards are cut
    parts = [pool[known[k]] for k in range(clients)]
    assert (parts[0] == first).all()
    return parts


if __name__ == "__main__":
    main(Path(sys.argv[1]))
