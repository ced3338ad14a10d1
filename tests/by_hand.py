"""What the slow twins of methods with learned clusters share: training and clusterings by hand."""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product
from statistics import fmean

import numpy as np

from atoll import Executor, Method, Serial, State, Trainer, read_model
from atoll.local.task import ClientTask
from atoll.schedules.events import Event
from atoll.support.arrays import Floats, Ids
from tests.methods.running import SEED, states_of, trainer_of
from tests.methods.twins import LR, RULE
from tests.problems import as_vector, linear_module, quadratics

POPULATION = quadratics(clients=8, noise=2.0, seed=3)
FIRST = as_vector(read_model(linear_module()))


def make_trainer(method: Method) -> Trainer:
    return trainer_of(method, linear_module(), POPULATION)


def run(method: Method, executor: Executor | None = None) -> list[State]:
    return states_of(method, executor or Serial(make_trainer(method)), linear_module())


def starts(state: State) -> list[Floats]:
    return [as_vector(model) for model in state.starts]


def trained(event: Event, client: int, w: Floats) -> Floats:
    """Take the local steps of plain SGD on least squares."""
    draws = Trainer(linear_module(), POPULATION, RULE, SEED)
    for rows in draws.draw_rows(ClientTask(event.index, event.round, 0, 0, client, {})):
        x, y = POPULATION.data.inputs[rows], POPULATION.data.targets[rows]
        w = w - LR * 0.9**event.round * (x.T @ (x @ w - y) / len(rows))
    return w


def mean_of(models: dict[int, Floats]) -> Floats:
    """Return the mean by samples."""
    total = sum(POPULATION.sizes[k] for k in models)
    return np.asarray(sum(POPULATION.sizes[k] / total * w for k, w in models.items()))


def groups_of(labels: Ids) -> set[frozenset[int]]:
    """Return labels as sets of clients, whatever the clusters' numbers."""
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in np.unique(labels)}


def best_means(rows: Floats, clusters: int) -> set[frozenset[int]]:
    """Return the grouping of least squared distances to the means, of all that there are."""

    def scatter(labels: Ids) -> float:
        parts = [rows[labels == c] for c in range(clusters)]
        return sum(float(((part - part.mean(axis=0)) ** 2).sum()) for part in parts if len(part))

    return groups_of(min((np.array(each) for each in product(range(clusters), repeat=len(rows))), key=scatter))


def agglomerated(distances: Floats, clusters: int, linkage: str, threshold: float = -1.0) -> set[frozenset[int]]:
    """Merge the two nearest clusters until so many are left, or they are too far apart; [clients, clients]."""
    parts = [frozenset([k]) for k in range(len(distances))]
    kinds: dict[str, Callable[[list[float]], float]] = {"complete": max, "single": min, "average": fmean}
    of = kinds[linkage]

    def distance(pair: tuple[frozenset[int], frozenset[int]]) -> float:
        return of([float(distances[i, j]) for i in pair[0] for j in pair[1]])

    while len(parts) > 1 and (len(parts) > clusters or threshold >= 0):
        nearest = min(combinations(parts, 2), key=distance)
        if len(parts) <= clusters and distance(nearest) > threshold:
            break
        parts = [part for part in parts if part not in nearest] + [nearest[0] | nearest[1]]
    return set(parts)


def rounds_by_hand(events: Sequence[Event], labels: Ids, models: list[Floats]) -> Iterator[list[Floats]]:
    """Yield the clusters' models after each event of FedAvg in fixed clusters."""
    for event in events:
        for cluster in range(len(models)):
            own = [k for k in event.cohort.tolist() if labels[k] == cluster]
            if own:
                models[cluster] = mean_of({k: trained(event, k, models[cluster]) for k in own})
        yield list(models)
