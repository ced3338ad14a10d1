"""FedAvg in Flower's simulation: a ClientApp for every node, and a ServerApp with the strategy FedAvg."""

import sys
from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from shared import ROUNDS, read_case, work
from torch import Tensor
from torch.utils.data import DataLoader
from torch_models import count, datasets, distance, make_model


def make_client_app(text: str) -> ClientApp:
    """Return the client app; it takes the case as text, since other processes load it."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        case = read_case(text)
        module = make_model(case)
        arrays = message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        module.load_state_dict(arrays.to_torch_state_dict())
        data = datasets(case)[int(context.node_config["partition-id"])]
        optimizer = torch.optim.SGD(module.parameters(), lr=case.lr)
        loader = DataLoader(data, case.batch_size, shuffle=True)
        for _ in range(case.epochs):
            for x, y in loader:
                outputs = module(x.to(case.device))
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(outputs, y.to(case.device)).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        metrics = MetricRecord({"num-examples": len(data)})
        content = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    return app


class Paced(FedAvg):
    """Starts a round when asked to."""

    def __init__(self, pace: work.WorkRate, arrays: dict[str, list[Tensor]], **settings: Any) -> None:
        super().__init__(**settings)
        self.pace = pace
        self.arrays = arrays

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.arrays["now"] = list(arrays.to_torch_state_dict().values())
        if not self.pace.next_round():
            raise SystemExit
        return super().configure_train(server_round, arrays, config, grid)


def make_server_app(case: work.Case) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        torch.manual_seed(0)
        module = make_model(case).cpu()
        first = list(module.state_dict().values())
        arrays: dict[str, list[Tensor]] = {}
        pace = work.WorkRate(count(module), lambda: distance(first, arrays["now"]))
        strategy = Paced(pace, arrays, fraction_evaluate=0.0, min_available_nodes=case.clients)
        strategy.start(grid=grid, initial_arrays=ArrayRecord(module.state_dict()), num_rounds=ROUNDS)

    return app


def resources(case: work.Case) -> dict[str, Any]:
    """Return what a client takes: a core, and on a GPU a fifth of it."""
    if case.device == "cpu":
        return {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    return {"client_resources": {"num_cpus": 1, "num_gpus": 0.2}, "init_args": {"num_gpus": 1}}


def main() -> None:
    text = sys.argv[-1]
    case = read_case(text)
    run_simulation(
        server_app=make_server_app(case),
        client_app=make_client_app(text),
        num_supernodes=case.clients,
        backend_config=resources(case),
    )


if __name__ == "__main__":
    main()
