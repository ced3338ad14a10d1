"""FedAvg in pfl with its simulated backend, by `torchrun`: one process a core, or several on a GPU."""

import os
import sys
from typing import Any

import torch
import torch.distributed
from shared import ROUNDS, client_arrays, read_case, work
from torch_models import copies, count, distance, make_model, wait_for


def share_the_card() -> None:
    """Let processes share one GPU: pfl gives each its own, and NCCL refuses to connect several on the same."""
    if "LOCAL_RANK" in os.environ:
        os.environ["LOCAL_RANK"] = "0"
        connect = torch.distributed.init_process_group
        torch.distributed.init_process_group = lambda **_: connect("gloo")


os.environ["PFL_PYTORCH_DEVICE"] = read_case(sys.argv[-1]).device
share_the_card()

from pfl.aggregate.simulate import SimulatedBackend  # noqa: E402
from pfl.aggregate.weighting import WeightByDatapoints  # noqa: E402
from pfl.algorithm.base import NNAlgorithmParams  # noqa: E402
from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: E402
from pfl.callback.base import TrainingProcessCallback  # noqa: E402
from pfl.data.federated_dataset import FederatedDataset  # noqa: E402
from pfl.data.sampling import get_user_sampler  # noqa: E402
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams  # noqa: E402
from pfl.internal.ops.pytorch_ops import to_tensor  # noqa: E402
from pfl.metrics import Metrics, Weighted  # noqa: E402
from pfl.model.pytorch import PyTorchModel  # noqa: E402


def add_loss(module: Any) -> Any:
    """Give the module the two methods that pfl asks for."""
    module.loss = lambda x, y: torch.nn.functional.cross_entropy(module(x), y.long())  # pfl makes all data float
    module.metrics = lambda x, y: {"loss": Weighted(float(module.loss(x, y)) * len(y), len(y))}
    return module


class Paced(TrainingProcessCallback):
    """Ends the run when no further round is asked for; the first process says so to the others, which wait for it."""

    def __init__(self, pace: work.WorkRate, case: work.Case) -> None:
        self.pace = pace
        self.case = case

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Any]:
        wait_for(self.case)
        if not torch.distributed.is_initialized():
            return not self.pace.next_round(), Metrics()
        torch.distributed.barrier()
        due = torch.tensor(torch.distributed.get_rank() > 0 or self.pace.next_round())
        torch.distributed.broadcast(due, src=0)
        return not due, Metrics()


def main() -> None:
    case = read_case(sys.argv[-1])
    torch.manual_seed(0)
    module = add_loss(make_model(case))
    model = PyTorchModel(
        model=module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    users = {number: (to_tensor(x), to_tensor(y)) for number, (x, y) in enumerate(client_arrays(case))}
    data = FederatedDataset.from_slices(users, get_user_sampler("minimize_reuse", list(users)))
    first = copies(module)
    pace = work.WorkRate(count(module), lambda: distance(first, copies(module)))
    pace.next_round()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=ROUNDS,
            evaluation_frequency=ROUNDS,
            train_cohort_size=case.clients,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=case.lr, local_num_epochs=case.epochs, local_batch_size=case.batch_size
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[Paced(pace, case)],
    )


if __name__ == "__main__":
    main()
