"""Test which grouping of the flights' clients their gradients support: by airport, carrier, time zone or shift.

Run:  atoll run flights --scale small && python examples/flights_groups.py runs/flights/fedavg

At the run's model, clients' gradients differ from their mean by H_device, of which H_cluster lies between groups. The
share is compared with that of groups of the same sizes whose members are shuffled a thousand times.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.torch import load_file

import atoll
from atoll.evaluation.gradients import client_gradient
from atoll.local.batches import Batches

SHUFFLED = 1000


def main() -> None:
    """Print a line for each grouping."""
    result = atoll.read_result(sys.argv[1])
    run = atoll.Experiment(result.settings)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        atoll.export_model(sys.argv[1], "safetensors", str(file))
        atoll.load_model(run.module, load_file(file))
    clients = run.population
    batches = Batches(clients.data, run.module.eval())
    gradients = np.array([client_gradient(run.module, batches, clients.samples(k)) for k in range(len(clients))])
    shares = clients.sizes / clients.sizes.sum()
    apart = gradients - shares @ gradients
    products = apart @ apart.T
    rng = np.random.default_rng(0)
    for name, labels in groupings(result.settings, clients).items():
        own = between(labels, products, shares)
        others = np.array([between(rng.permutation(labels), products, shares) for _ in range(SHUFFLED)])
        p = (1 + (others >= own).sum()) / (1 + SHUFFLED)
        print(f"{name:9} {labels.max() + 1:2} groups: {own:.1%} of H_device, shuffled {others.mean():.1%}, p = {p:.3f}")


def groupings(settings: atoll.Settings, clients: atoll.Population) -> dict[str, np.ndarray]:
    """Return the clients' labels for each grouping."""
    carriers = [name.partition(" / ")[0] for name in clients.data.names["owners"]]
    zones = {"method": "timezone", "clusters": 2, "local_hour": 6.5}
    wanted = {"time zone": zones, "shift": {"method": "availability", "clusters": 6}}
    made = {
        name: atoll.Experiment(settings, method="fedcluster", clustering=each).clustering.labels
        for name, each in wanted.items()
        if each["clusters"] <= len(clients)
    }
    return {"airport": clients.groups(), "carrier": np.unique(carriers, return_inverse=True)[1], **made}


def between(labels: np.ndarray, products: np.ndarray, shares: np.ndarray) -> float:
    """Return the share of the clients' differences that lies between groups, H_cluster over H_device."""
    held = np.where(labels == np.arange(labels.max() + 1)[:, None], shares, 0)  # [groups, clients]
    return float(
        (np.einsum("gk,kl,gl->g", held, products, held) / held.sum(axis=1)).sum() / (shares @ np.diag(products))
    )


if __name__ == "__main__":
    main()
