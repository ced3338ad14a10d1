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
    dealt.dataset = Dataset.from_dict({"label": labels})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of draws that are made again
        parts = [np.array(dealt.load_partition(k)["label"]) for k in range(settings["num_partitions"])]
    return [np.bincount(part, minlength=labels.max() + 1) for part in parts]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
