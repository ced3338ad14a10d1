"""Atoll's executors on any device and model: ``run_atoll.py NAME CASE``."""

import json
import sys
from collections.abc import Callable
from functools import partial

import torch
from bench.contenders import make_executor_round, make_module, make_trainer
from bench.work import Case, WorkRate
from torch_models import MODELS, wait_for

from atoll import Serial, Stacked, Trainer
from atoll.aggregation.reductions import update_norm
from atoll.engine.cohorts import Executor
from atoll.local.models import MODELS as OWN
from atoll.local.weights import read_model
from atoll.support.process import keep_freed_memory

EXECUTORS: dict[str, Callable[[Trainer], Executor]] = {
    "stacked": partial(Stacked, cuda_graphs=False),
    "stacked, CUDA graphs": partial(Stacked, cuda_graphs=True),
    "stacked, four streams": partial(Stacked, cuda_graphs=True, others=3 * ["cuda"]),
    "serial": Serial,
}


def main() -> None:
    name, case = sys.argv[-2], Case(**json.loads(sys.argv[-1]))
    torch.manual_seed(0)
    module = make_module(case) if case.model in OWN else MODELS[case.model]()
    keep_freed_memory()  # as a run does
    trainer = make_trainer(case, module, device=case.device, precision=case.precision)
    train = make_executor_round(case, EXECUTORS[name](trainer))
    first = model = {key: tensor.to(case.device) for key, tensor in read_model(module).items()}
    pace = WorkRate(sum(tensor.numel() for tensor in first.values()), lambda: update_norm(model, first))
    while pace.next_round():
        model = train(model)
        wait_for(case)


if __name__ == "__main__":
    main()
