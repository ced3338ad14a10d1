"""Compare FedAvg and FedCluster on scikit-learn's digits, at the same number of client updates.

python examples/compare_fedavg_fedcluster.py --rounds 20 --out runs/compare
"""

import argparse
from pathlib import Path

import atoll
from atoll.report.tables.writing import table_of

SETTINGS = {
    "name": "compare",
    "data": {"dataset": "digits", "partition": "major-class", "clients": 100, "samples": 100, "rho_device": 0.9},
    "clustering": {"method": "random", "clusters": 10},
    "method": {"fraction": 0.1},
    "runs": [
        # FedCluster's server model moves ten times a round, so its learning rate is a tenth of FedAvg's.
        {"label": "FedCluster", "method": {"name": "fedcluster"}, "local": {"lr": 0.01}},
        {"label": "FedAvg", "method": {"name": "fedavg"}, "local": {"lr": 0.1}},
    ],
}


def main(rounds: int, out: Path) -> None:
    """Run both, print a table and draw the curves."""
    atoll.run_all(SETTINGS, out, rounds=rounds, overwrite=True, progress=True)
    runs = atoll.find_runs([out])
    print(table_of(atoll.rounds_to_target(runs)).as_markdown())
    for file in atoll.save_figure(atoll.plot_curves(runs, "client_updates"), out / "curves"):
        print(file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("runs/compare"))
    main(**vars(parser.parse_args()))
