"""FedAvg by hand with `torch.func`, as a skilled user would write it: all clients' models as one stack of tensors."""

import sys

import torch
from shared import read_case, work
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch_models import count, distance, make_model, pool, wait_for


def main() -> None:
    case = read_case(sys.argv[-1])
    torch.manual_seed(0)
    module = make_model(case)
    inputs, targets = pool(case)
    lows = torch.tensor([[work.samples_of(case, client).start] for client in range(case.clients)], device=case.device)
    first = model = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}

    def loss(own: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(module, own, (x,)), y)

    gradients = vmap(grad(loss), randomness="different")

    @torch.no_grad()
    def train() -> dict[str, Tensor]:
        stack = {name: tensor.repeat(case.clients, *[1] * tensor.ndim) for name, tensor in model.items()}
        for _ in range(case.steps):
            rows = lows + torch.randint(case.samples, (case.clients, case.batch_size), device=case.device)
            steps = gradients(stack, inputs[rows], targets[rows])
            torch._foreach_add_(list(stack.values()), [steps[name] for name in stack], alpha=-case.lr)
        return {name: tensor.mean(dim=0) for name, tensor in stack.items()}

    pace = work.WorkRate(count(module), lambda: distance(list(first.values()), list(model.values())))
    while pace.next_round():
        model = train()
        wait_for(case)


if __name__ == "__main__":
    main()
