"""Flower's strategies, which are its servers' part; clients take plain steps of SGD."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from agree_shared import Case, answer, descend, join, split
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import strategy
from torch import Tensor


def replay(case: Case, made: Any, before: Callable[[int], None] = lambda number: None) -> list[Tensor]:
    """Return the server's model after each round; `before` is told the round's number, from 1."""
    models = [case.start]
    for number, jobs in enumerate(case.events, 1):
        before(number)
        ends = [(descend(case, models[-1], job), job.samples) for job in jobs]
        results = [
            (cast(Any, None), FitRes(Status(Code.OK, ""), ndarrays_to_parameters(split(end)), samples, {}))
            for end, samples in ends
        ]
        merged, _ = made.aggregate_fit(number, results, [])
        models.append(join(parameters_to_ndarrays(merged)))
    return models[1:]


def start_of(case: Case) -> dict[str, Any]:
    return {"initial_parameters": ndarrays_to_parameters(split(case.start))}


def run_adaptive(case: Case, kind: Any, betas: tuple[str, ...]) -> list[Tensor]:
    """Run a strategy of Reddi et al. as it stands, or from v = tau^2 and without Adam's correction of the bias."""
    settings = case.settings
    made = kind(**start_of(case), eta=settings["eta"], tau=settings["tau"], **{name: settings[name] for name in betas})
    if not settings["put_right"]:
        return replay(case, made)
    made.v_t = [np.full_like(array, settings["tau"] ** 2) for array in split(case.start)]

    def uncorrected(number: int) -> None:
        if kind is strategy.FedAdam:
            first, second = (settings[name] ** (number + 1.0) for name in betas)
            made.eta = settings["eta"] * (1 - first) / np.sqrt(1 - second)

    return replay(case, made, uncorrected)


def make_bulyan(byzantine: int, put_right: bool) -> strategy.Bulyan:
    """As it stands it leaves out an argument of the Krum that it runs, `to_keep`."""
    if put_right:
        return strategy.Bulyan(num_malicious_clients=byzantine, to_keep=0)
    return strategy.Bulyan(num_malicious_clients=byzantine)


REPLAYS: dict[str, Callable[[Case], list[Tensor]]] = {
    "fedavg": lambda case: replay(case, strategy.FedAvg()),
    "fedavgm": lambda case: replay(
        case,
        strategy.FedAvgM(
            **start_of(case), server_learning_rate=case.settings["server_lr"], server_momentum=case.settings["momentum"]
        ),
    ),
    "fedadagrad": lambda case: run_adaptive(case, strategy.FedAdagrad, ()),
    "fedadam": lambda case: run_adaptive(case, strategy.FedAdam, ("beta_1", "beta_2")),
    "fedyogi": lambda case: run_adaptive(case, strategy.FedYogi, ("beta_1", "beta_2")),
    "krum": lambda case: replay(case, strategy.Krum(num_malicious_clients=case.settings["byzantine"])),
    "multi-krum": lambda case: replay(
        case, strategy.Krum(num_malicious_clients=case.settings["byzantine"], num_clients_to_keep=case.settings["keep"])
    ),
    "bulyan": lambda case: replay(case, make_bulyan(case.settings["byzantine"], case.settings["put_right"])),
    "median": lambda case: replay(case, strategy.FedMedian()),
    "trimmed-mean": lambda case: replay(case, strategy.FedTrimmedAvg(beta=case.settings["trim"])),
}

if __name__ == "__main__":
    answer(REPLAYS)
