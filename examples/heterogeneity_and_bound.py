"""Theorem 1 of FedCluster on a regression problem whose constants are known.

40 clients of four kinds each fit their own line; local SGD runs as the theorem requires: full participation, batch size
1, learning rate (T M E)^(-1/2). Clusters of equal clients have a large H_cluster, mixed ones a small H_cluster. The
script prints, for both, H_device, H_cluster, the mean squared gradient norm at the starts of rounds, and the theorem's
bound on it. The constants are the largest values met at those models.

python examples/heterogeneity_and_bound.py --rounds 100
"""

import argparse

import numpy as np
import torch
from bounds import fedcluster_bound

import atoll

CLIENTS, SAMPLES, KINDS, DIMENSIONS, STEPS = 40, 10, 4, 5, 5
SCALE = 0.04  # of the inputs: L is small enough for the theorem's condition M E <= C / (8 L G^2)


def make_population(rng: np.random.Generator) -> atoll.Population:
    """Client k belongs to kind ``k * KINDS // CLIENTS``; each kind has its own parameters."""
    kinds = np.repeat(np.arange(KINDS), CLIENTS // KINDS * SAMPLES)
    planted = rng.normal(size=(KINDS, DIMENSIONS))
    inputs = SCALE * rng.normal(size=(CLIENTS * SAMPLES, DIMENSIONS))
    targets = (inputs * planted[kinds]).sum(axis=1) + 0.01 * rng.normal(size=len(inputs))
    data = atoll.Dataset("planted", inputs, targets, inputs, targets, classes=0, loss="squared")
    return atoll.make_population(data, np.arange(len(inputs)).reshape(CLIENTS, SAMPLES))


def measure(population: atoll.Population, clustering: atoll.Clustering, rounds: int) -> str:
    """Run FedCluster; return a line that compares the measurement with the bound."""
    inputs, targets = population.data.inputs, population.data.targets
    lr = (rounds * clustering.clusters * STEPS) ** -0.5
    rule = atoll.LocalRule(atoll.optimizers.sgd, lr, STEPS, batch_size=1)
    method = atoll.fedcluster(population, clustering, rule, rounds, fraction=1.0)
    module = torch.nn.Linear(DIMENSIONS, 1, bias=False).double()
    torch.nn.init.zeros_(module.weight)
    executor = atoll.Serial(atoll.Trainer(module, population, rule, seed=0))
    state = atoll.init(method, atoll.read_model(module))

    squared_norms, h_device, h_cluster, spread, largest = [], 0.0, 0.0, np.zeros(CLIENTS), 0.0
    while True:
        model = method.global_model(state)
        w = model["weight"].numpy()[0]
        gradients = (inputs @ w - targets)[:, None] * inputs  # one a sample
        squared_norms.append(float(np.sum(gradients.mean(axis=0) ** 2)))
        by_client = gradients.reshape(CLIENTS, SAMPLES, DIMENSIONS)
        centred = by_client - by_client.mean(axis=1, keepdims=True)
        spread = np.maximum(spread, (centred**2).sum(axis=2).mean(axis=1))  # s_k^2
        largest = max(largest, float((by_client**2).sum(axis=2).mean(axis=1).max()))  # G^2
        at_model = atoll.heterogeneity(population, clustering, module, model)
        h_device, h_cluster = max(h_device, at_model.device), max(h_cluster, at_model.cluster)
        if len(squared_norms) == rounds:
            break
        for step in atoll.train(method, executor, state):  # one round
            state = step.state
            if state.events_done % clustering.clusters == 0:
                break

    optimum = np.linalg.lstsq(inputs, targets, rcond=None)[0]
    theorem = fedcluster_bound(
        population,
        clustering,
        rounds=rounds,
        steps=STEPS,
        smoothness=float((inputs**2).sum(axis=1).max()),
        gradient_bound=largest**0.5,
        gap=float(np.mean(targets**2) - np.mean((inputs @ optimum - targets) ** 2)) / 2,
        h_cluster=h_cluster,
        variances=spread.tolist(),
    )
    condition = "; ".join(theorem.unmet) or "conditions met"
    return (
        f"H_device {h_device:.2e}  H_cluster {h_cluster:.2e}  "
        f"measured {np.mean(squared_norms):.2e}  bound {theorem.bound:.2e}  {condition}"
    )


def main(rounds: int) -> None:
    """Compare clusters of equal clients with mixed ones."""
    population = make_population(atoll.generator(0, "example"))
    kind = np.arange(CLIENTS) * KINDS // CLIENTS
    for name, labels in (("equal", kind), ("mixed", np.arange(CLIENTS) % KINDS)):
        print(f"{name}:  {measure(population, atoll.Clustering(labels, KINDS), rounds)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    main(**vars(parser.parse_args()))
