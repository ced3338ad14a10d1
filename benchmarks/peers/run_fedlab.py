"""FedAvg in FedLab's standalone pipeline: a server handler, a serial trainer and the loop between them."""

import sys
from unittest.mock import MagicMock

# FedLab imports torchvision for data sets that are not used here, and it has no build for every PyTorch.
sys.modules["torchvision"] = MagicMock()

import torch  # noqa: E402
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler  # noqa: E402
from fedlab.contrib.dataset.basic_dataset import FedDataset  # noqa: E402
from shared import ROUNDS, read_case, work  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from torch_models import MODELS, copies, count, datasets, distance  # noqa: E402


class Clients(FedDataset):
    """Each client's samples, shuffled into batches."""

    def __init__(self, case: work.Case) -> None:
        super().__init__()
        self.num = case.clients
        self.datasets = datasets(case)

    def get_dataset(self, id: int, type: str = "train") -> TensorDataset:
        return self.datasets[id]

    def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.get_dataset(id), batch_size, shuffle=True)


def main() -> None:
    case = read_case(sys.argv[-1])
    torch.manual_seed(0)
    module = MODELS[case.model]()
    handler = FedAvgServerHandler(module, global_round=ROUNDS, sample_ratio=1.0)
    trainer = FedAvgSerialClientTrainer(module, num_clients=case.clients)
    trainer.setup_dataset(Clients(case))
    trainer.setup_optim(epochs=1, batch_size=case.batch_size, lr=case.lr)
    handler.num_clients = trainer.num_clients
    first = copies(handler.model)
    pace = work.WorkRate(count(module), lambda: distance(first, copies(handler.model)))
    while pace.next_round():  # as StandalonePipeline.main does
        sampled_clients = handler.sample_clients()
        trainer.local_process(handler.downlink_package, sampled_clients)
        for package in trainer.uplink_package:
            handler.load(package)


if __name__ == "__main__":
    main()
