"""FedAvg in pfl with its simulated backend, started by `torchrun`: one process a core."""

import sys
from typing import Any

import torch
import torch.distributed
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.pytorch_ops import to_tensor
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from shared import ROUNDS, client_arrays, read_case, work
from torch_models import MODELS, copies, count, distance


def add_loss(module: Any) -> Any:
    """Give the module the two methods that pfl asks for."""
    module.loss = lambda x, y: torch.nn.functional.cross_entropy(module(x), y.long())  # pfl makes all data float
    module.metrics = lambda x, y: {"loss": Weighted(float(module.loss(x, y)) * len(y), len(y))}
    return module


class Paced(TrainingProcessCallback):
    """Ends the run when no further round is asked for; the first process says so to the others, which wait for it."""

    def __init__(self, pace: work.WorkRate) -> None:
        self.pace = pace

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Any]:
        torch.distributed.barrier()
        due = torch.tensor(torch.distributed.get_rank() > 0 or self.pace.next_round())
        torch.distributed.broadcast(due, src=0)
        return not due, Metrics()


def main() -> None:
    case = read_case(sys.argv[-1])
    torch.manual_seed(0)
    module = add_loss(MODELS[case.model]())
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
            local_learning_rate=case.lr, local_num_epochs=1, local_batch_size=case.batch_size
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[Paced(pace)],
    )


if __name__ == "__main__":
    main()
