"""Async-HFL's association of devices with gateways: useful clients for all, and no gateway with too much to receive.

Yu et al. 2023, "Async-HFL: efficient and robust asynchronous federated learning in hierarchical IoT networks", with the
objective of the authors' code: ``min_j sum_{i at j} u_i - phi * max_j sum_{i at j} R_ij / R_j`` is largest. A client's
utility u_i is the dot product of its gradient and that of all clients, less the mean one with the other clients. What
it takes of its gateway's throughput is here the share of time in which it uploads, if it trains and uploads in turn.

The authors use clients' latest gradients, which are not there before training. These are of the classes' biases at a
model that takes all classes for equally likely: ``1 / C - share of the class``.

python examples/async_hfl.py
"""

import argparse

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp

import atoll

Floats = npt.NDArray[np.float64]


def by_utility(population: atoll.Population, network: atoll.Network, phi: float = 1.0) -> npt.NDArray[np.int64]:
    """Return each client's aggregator, [clients]; a cluster of [clustering] is an aggregator of [network]."""
    counts = population.class_counts()
    gradients = 1 / counts.shape[1] - counts / counts.sum(axis=1, keepdims=True)
    upload = np.asarray(network.upload_seconds)
    loads = upload / (network.compute_seconds[:, None] + upload)
    return associate(utilities(gradients, counts.sum(axis=1)), loads, phi)


def utilities(gradients: Floats, samples: Floats) -> Floats:
    """Return u_i, [clients]: how well a gradient agrees with the mean of all, and how little with others'."""
    mean = samples @ gradients / samples.sum()
    products = gradients @ gradients.T
    np.fill_diagonal(products, 0)
    return np.asarray(gradients @ mean - products.sum(axis=1) / (len(gradients) - 1))


def associate(utility: Floats, loads: Floats, phi: float) -> npt.NDArray[np.int64]:
    """Return the gateway of each client, by the integer program; `loads` are R_ij / R_j, [clients, gateways]."""
    clients, gateways = loads.shape
    each, least = np.eye(gateways), np.ones((gateways, 1))
    one = np.kron(np.eye(clients), np.ones(gateways))  # x is [clients, gateways], row by row; then the slacks s and t
    useful, load = np.kron(utility, each), np.hstack([np.diag(row) for row in loads])
    rows = np.block([[one, np.zeros((clients, 2))], [useful, -least, 0 * least], [load, 0 * least, -least]])
    low = np.concatenate([np.ones(clients), np.zeros(gateways), np.full(gateways, -np.inf)])
    high = np.concatenate([np.ones(clients), np.full(gateways, np.inf), np.zeros(gateways)])
    free = clients * gateways
    found = milp(
        np.concatenate([np.zeros(free), [-1, phi]]),
        integrality=np.concatenate([np.ones(free), [0, 0]]),
        bounds=Bounds(np.concatenate([np.zeros(free), [-np.inf, 0]]), np.concatenate([np.ones(free), [np.inf] * 2])),
        constraints=LinearConstraint(rows, low, high),
        options={"time_limit": 100, "mip_rel_gap": 0.1},  # as in the authors' code
    )
    assert found.x is not None, found.message
    return np.asarray(found.x[:free].reshape(clients, gateways).argmax(axis=1), np.int64)


EXPERIMENT = {
    "name": "async-hfl",
    "data": {"partition": "one-label", "clients": 40},
    "local": {"steps": 1},
    "method": {"name": "hierarchical", "pattern": "cenasy"},
}


def main(rounds: int) -> None:
    """Compare it with the shortest uploads: the accuracy, and the seconds until then."""
    for name in ("comaw", "async_hfl:by_utility"):
        clustering = {"method": name, "clusters": 4}
        history = atoll.run({**EXPERIMENT, "rounds": 5 * rounds, "clustering": clustering}).history
        accuracy, seconds = history["test_accuracy"][-1], history["virtual_time"][-1]
        print(f"{name:21} accuracy {accuracy:.3f} after {seconds:.1f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    main(**vars(parser.parse_args()))
