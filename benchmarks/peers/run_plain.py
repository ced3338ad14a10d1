"""FedAvg as a user would write it in plain PyTorch: one client after the other, the data on the device."""

import sys

import torch
from shared import read_case, work
from torch import Tensor, nn
from torch_models import count, distance, make_model, pool, wait_for


def main() -> None:
    case = read_case(sys.argv[-1])
    torch.manual_seed(0)
    module = make_model(case)
    inputs, targets = pool(case)
    first = model = {name: tensor.clone() for name, tensor in module.state_dict().items()}

    def train_client(client: int) -> dict[str, Tensor]:
        own = work.samples_of(case, client)
        x, y = inputs[own], targets[own]
        module.load_state_dict(model)
        optimizer = torch.optim.SGD(module.parameters(), lr=case.lr)
        for _ in range(case.steps):
            batch = torch.randint(len(x), (case.batch_size,), device=x.device)
            loss = nn.functional.cross_entropy(module(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return {name: tensor.clone() for name, tensor in module.state_dict().items()}

    pace = work.WorkRate(count(module), lambda: distance(list(first.values()), list(model.values())))
    while pace.next_round():
        trained = [train_client(client) for client in range(case.clients)]
        model = {name: torch.stack([each[name] for each in trained]).mean(dim=0) for name in model}
        wait_for(case)


if __name__ == "__main__":
    main()
