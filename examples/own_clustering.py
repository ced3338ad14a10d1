"""Your own clustering, in one function: deal the clients of each major class out to all clusters in turn.

Every cluster then sees nearly the same classes, which lowers H_cluster and with it FedCluster's bound.

python examples/own_clustering.py --rounds 10
"""

import argparse

import numpy as np
import numpy.typing as npt

import atoll


def dealt(population: atoll.Population, clusters: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return each client's cluster, [clients]."""
    major = population.class_counts().argmax(axis=1)
    shuffled = rng.permutation(len(population))
    order = shuffled[np.argsort(major[shuffled], kind="stable")]  # class by class, in random order within a class
    labels = np.empty(len(population), np.int64)
    labels[order] = np.arange(len(population)) % clusters
    return labels


EXPERIMENT = {
    "name": "own-clustering",
    "data": {"partition": "major-class", "clients": 100, "samples": 100, "rho_device": 0.9},
    "local": {"lr": 0.01},
    "run": {"evaluate_every": 1000},
}


def main(rounds: int) -> None:
    """Compare it with the random clustering: H_cluster at the initial model, and the loss at the end."""
    for name in ("random", "own_clustering:dealt"):
        settings = atoll.make_runs({**EXPERIMENT, "rounds": rounds, "clustering": {"method": name, "clusters": 10}})[0]
        e = atoll.Experiment(settings)
        measured = atoll.heterogeneity(e.population, e.clustering, e.module, atoll.read_model(e.module))
        state = atoll.init(e.method, atoll.read_model(e.module))
        for step in atoll.train(e.method, e.execution.make_executor(), state):
            state = step.state
        score = e.execution.make_evaluator().score(e.method.global_model(state))
        print(
            f"{name:21} H_cluster {measured.cluster:.4f} of H_device {measured.device:.4f}, "
            f"training loss after {rounds} rounds {score.train_loss:.4f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    main(**vars(parser.parse_args()))
