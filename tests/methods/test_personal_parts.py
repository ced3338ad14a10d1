"""FedBN, FedPer, FedRep and `model.travels`: against loops by hand that keep whole models, and their limits."""

import math
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from atoll import (
    Experiment,
    InputError,
    LocalRule,
    Method,
    Serial,
    State,
    Trainer,
    fedavg,
    fedbn,
    fedper,
    fedrep,
    ifca,
    init,
    make_runs,
    read_model,
    train,
)
from atoll.local.models import Model
from atoll.local.rule import sgd
from atoll.local.task import ClientTask
from atoll.local.travel import frozen, staying
from atoll.local.weights import count_bytes, trained_of
from atoll.methods.parts.personal_trainer import HeadFirstTrainer
from tests.killing import carry_to_end, count_steps, kill_at
from tests.methods.running import SEED, equal, same_bits, states_of, trainer_of
from tests.problems import classification, network
from tests.tiers import thinned

POPULATION, LR, STEPS, ROUNDS = classification(clients=6), 0.1, 4, 6
RULE = LocalRule(sgd, LR, STEPS, batch_size=4, lr_decay=0.9)
HEAD = ("2.weight", "2.bias")


def with_norm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double()


def serial(method: Method, make_module: Callable[[], nn.Module] = network) -> list[State]:
    return states_of(method, Serial(trainer_of(method, make_module(), POPULATION)), make_module())


def forward(w: Model, x: Tensor, norm: bool) -> Tensor:
    """Compute a network's outputs by hand, and the running statistics of its normalisation."""
    hidden = x @ w["0.weight"].T + w["0.bias"]
    if norm:
        mean, variance = hidden.mean(dim=0), hidden.var(dim=0, unbiased=False)
        with torch.no_grad():
            w["1.running_mean"] = 0.9 * w["1.running_mean"] + 0.1 * mean.detach()
            w["1.running_var"] = 0.9 * w["1.running_var"] + 0.1 * hidden.detach().var(dim=0)
        hidden = (hidden - mean) / (variance + 1e-5).sqrt() * w["1.weight"] + w["1.bias"]
    last = 3 if norm else 2
    return hidden.tanh() @ w[f"{last}.weight"].T + w[f"{last}.bias"]


def step_by_hand(w: Model, rows: Any, lr: float, names: set[str], norm: bool) -> Model:
    """Return the model after a step of SGD in these tensors alone."""
    data = POPULATION.data
    leaves = {n: t.clone().requires_grad_() for n, t in w.items() if n in names and "running" not in n}
    whole = dict(w) | leaves
    x, y = torch.tensor(data.inputs[rows]), torch.tensor(data.targets[rows])
    loss = -forward(whole, x, norm).log_softmax(dim=1)[torch.arange(len(y)), y].mean()
    slopes = torch.autograd.grad(loss, list(leaves.values()))
    moved = {n: t.detach() - lr * g for (n, t), g in zip(leaves.items(), slopes, strict=True)}
    return {n: t.detach() for n, t in whole.items()} | moved


def by_hand(method: Method, make_module: Callable[[], nn.Module], own: set[str], head_steps: int = 0) -> Any:
    """Yield the server's part and all clients' own parts after each round."""
    norm, first = make_module is with_norm, read_model(make_module())
    first.pop("1.num_batches_tracked", None)
    w, kept = first, [first] * len(POPULATION)
    draws = Trainer(make_module(), POPULATION, RULE, SEED)
    for event in method.schedule.events:
        models = []
        for k in event.cohort.tolist():
            local = {n: kept[k][n] if n in own else w[n] for n in w}
            for number, rows in enumerate(draws.draw_rows(ClientTask(event.index, event.round, 0, 0, k, {}))):
                part = set(w)
                if head_steps:
                    part = own if number < head_steps else part - own
                local = step_by_hand(local, rows, LR * 0.9**event.round, part, norm)
            kept[k] = local
            models.append(local)
        shares = event.weights / event.weights.sum()
        sent = [name for name in w if name not in own]
        w = w | {n: sum(s * m[n] for s, m in zip(shares, models, strict=True)) for n in sent}
        yield {n: w[n] for n in sent}, {k: {n: kept[k][n] for n in own} for k in range(len(POPULATION))}


METHODS: dict[str, tuple[Callable[[], Method], Callable[[], nn.Module], set[str], int]] = {
    "fedbn": (
        lambda: fedbn(POPULATION, RULE, ROUNDS, with_norm(), 0.5),
        with_norm,
        {"1.weight", "1.bias", "1.running_mean", "1.running_var"},
        0,
    ),
    "fedper": (lambda: fedper(POPULATION, RULE, ROUNDS, network(), 1, 0.5), network, set(HEAD), 0),
    "fedrep": (lambda: fedrep(POPULATION, RULE, ROUNDS, network(), 1, 1, 0.5), network, set(HEAD), STEPS - 1),
}


@pytest.mark.parametrize("name", METHODS)
def test_it_is_the_loop_by_hand(name: str) -> None:
    make_method, make_module, own, head_steps = METHODS[name]
    method = make_method()
    for state, (server, kept) in zip(
        serial(method, make_module), by_hand(method, make_module, own, head_steps), strict=True
    ):
        assert state.server is not None
        assert state.server.keys() == server.keys()
        for n, tensor in server.items():
            np.testing.assert_allclose(state.server[n], tensor, rtol=0, atol=1e-10)
        for client, part in state.clients.items():
            assert set(part) - {"1.num_batches_tracked"} == own
            for n, tensor in kept[client].items():
                np.testing.assert_allclose(part[n], tensor, rtol=0, atol=1e-10)


def test_fedper_that_keeps_nothing_is_fedavg_to_the_bit() -> None:
    same_bits(
        serial(fedper(POPULATION, RULE, ROUNDS, network(), 0, 0.5)), serial(fedavg(POPULATION, RULE, ROUNDS, 0.5))
    )


def test_the_body_of_one_client_alone_is_fedavgs_to_the_bit() -> None:
    """With one client in all, what stays and what travels make up FedAvg's model."""
    alone = classification(clients=1)
    method, plain = fedper(alone, RULE, 3, network(), 1, 1.0), fedavg(alone, RULE, 3, 1.0)
    ours = states_of(method, Serial(trainer_of(method, network(), alone)), network())
    theirs = states_of(plain, Serial(trainer_of(plain, network(), alone)), network())
    for one, other in zip(ours, theirs, strict=True):
        assert one.server is not None
        assert equal(one.server | dict(one.clients[0]), other.server)


class LoRA(nn.Module):
    """A frozen dense layer, and beside it a trained product of two thin ones (Hu et al. 2022)."""

    def __init__(self, inputs: int, outputs: int, rank: int = 2) -> None:
        super().__init__()
        self.frozen = nn.Linear(inputs, outputs)
        self.frozen.requires_grad_(False)
        self.down = nn.Linear(inputs, rank, bias=False)
        self.up = nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.frozen(x) + self.up(self.down(x))
        return outputs


def adapted(shape: tuple[int, ...] = (64,), classes: int = 10) -> nn.Module:
    """A frozen network whose layers have adapters: an own model of the experiments below."""
    inputs = int(np.prod(shape))
    return nn.Sequential(nn.Flatten(), LoRA(inputs, 32), nn.ReLU(), LoRA(32, classes))


WANTED: dict[str, Any] = {
    "rounds": 4,
    "data": {"clients": 6, "samples": 12},
    "local": {"steps": 3, "batch_size": 4},
    "method": {"name": "fedavg", "fraction": 0.5},
    "run": {"checkpoint_every": 1, "evaluate_samples": 20, "executor": "serial"},
}


def experiment(*changes: str) -> Experiment:
    return Experiment(make_runs(WANTED, changes=list(changes))[0])


def states(each: Experiment) -> list[State]:
    with closing(each.execution.make_executor()) as executor:
        method = each.method
        return [step.state for step in train(method, executor, init(method, *each.training.initial_models()))]


ADAPTED = f"model.name={__name__}:adapted"


@pytest.mark.parametrize("executor", thinned(["serial", "cores", "stacked"], 1))
def test_of_an_adapted_model_only_the_adapters_travel(executor: str) -> None:
    """To the same end as whole models that are sent, whose frozen parameters are averaged to themselves."""
    thin = experiment(ADAPTED, "model.travels=trainable", f"run.executor={executor}")
    whole = experiment(ADAPTED, f"run.executor={executor}")
    adapters = 4 * 2 * (64 + 32 + 32 + 10)
    assert thin.traffic.message_bytes == thin.traffic.model_bytes == adapters
    assert whole.traffic.message_bytes == adapters + 4 * (64 * 32 + 32 + 32 * 10 + 10)
    for one, other in zip(states(thin), states(whole), strict=True):
        assert one.server is not None
        assert other.server is not None
        assert one.clients == {}
        assert {name.rpartition(".")[0].rpartition(".")[2] for name in one.server} == {"down", "up"}
        for name, tensor in one.server.items():
            torch.testing.assert_close(tensor, other.server[name], rtol=0, atol=2e-6)


@pytest.mark.parametrize(("name", "numbers"), [("pacfl", 64), ("fmcl", 2)])
def test_what_is_sent_before_training_is_counted_in_what_travels(name: str, numbers: int) -> None:
    """PACFL's vectors are as long as an input, FMCL's prototypes as the last adapter's input; both come by class."""
    chosen = [f"method.name={name}", "method.clusters=2", *(["method.vectors=1"] if name == "pacfl" else [])]
    each = experiment(ADAPTED, "model.travels=trainable", *chosen)
    population = each.clients.population
    held = sum(np.unique(population.data.labels_of(population.samples(i))).size for i in range(len(population)))
    first, second, *_ = each.method.schedule.events
    assert first.models_up == second.models_up + math.ceil(4 * held * numbers / each.traffic.model_bytes)


def test_patterns_say_what_travels_under_any_method_of_a_schedule() -> None:
    """FedPer inside a hierarchy: the networks' seconds are those of what travels."""
    hierarchical = (
        "method.name=hierarchical",
        "clustering.clusters=4",
        "method.fraction=",
        "rounds=12",
        "method.intra_rounds=2",
    )
    part = experiment(*hierarchical, 'model.travels=["1.*"]', "model.name=mlp", "method.pattern=cenasy")
    whole = experiment(*hierarchical, "model.name=mlp", "method.pattern=cenasy")
    assert part.traffic.model_bytes == 4 * (64 * 200 + 200) < whole.traffic.model_bytes
    assert part.conditions.networks[0].upload_seconds.mean() < whole.conditions.networks[0].upload_seconds.mean()
    last = states(part)[-1]
    assert all(set(kept) == {"3.weight", "3.bias"} for kept in last.clients.values())
    assert all(set(model) == {"1.weight", "1.bias"} for model in last.starts)


def test_fedper_by_patterns_is_fedper() -> None:
    by_name = experiment("method.name=fedper", "method.personal_layers=1")
    same_bits(states(by_name), states(experiment('model.travels=["1.*"]')))
    assert by_name.traffic.message_bytes == by_name.traffic.model_bytes == 4 * (64 * 200 + 200)


def test_frozen_parameters_go_with_a_method_that_keeps_a_head() -> None:
    both = experiment(ADAPTED, "method.name=fedper", "method.personal_layers=3", "model.travels=trainable")
    last = states(both)[-1]
    assert last.server is not None
    assert set(last.server) == {"1.down.weight", "1.up.weight"}
    assert all("frozen" not in name for kept in last.clients.values() for name in kept)


@pytest.mark.more
@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
def test_killed_and_resumed_an_adapted_model_has_the_same_bits(tmp_path: Path) -> None:
    each = experiment(ADAPTED, "model.travels=trainable")
    each.check()
    carry_to_end(each, tmp_path / "whole")
    steps = count_steps(each, tmp_path / "counted")
    for number in range(steps // 3, steps, 11):
        kill_at(each, tmp_path / "killed", number, 0.5)
    carry_to_end(each, tmp_path / "killed")
    last = "checkpoint/event-00000004.safetensors"
    assert (tmp_path / "killed" / last).read_bytes() == (tmp_path / "whole" / last).read_bytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["method.name=fedbn"], "'fedbn'.*no normalisation layer"),
        (["method.name=fedper", "method.personal_layers=2"], r"method\.personal_layers = 2.*less than the model's 2"),
        (["method.name=fedrep", "method.body_steps=3"], r"body_steps = 3: must be less than .*may be 3"),
        (["method.name=fedrep", "method.personal_layers=0"], r"method\.personal_layers"),
        (['model.travels=["body.*"]'], r"model\.travels: 'body\.\*' matches none.*1\.weight, 1\.bias"),
        (["model.travels=[]"], r"model\.travels = \[\].*some must be communicated"),
        (["model.travels=some"], r"model\.travels = 'some'"),
        (['model.travels=["1.*"]', "method.name=bcd"], r"model\.travels.*'bcd': clients already keep state"),
        (['model.travels=["1.*"]', "method.name=fedper"], r"model\.travels.*'fedper' itself says what"),
        (['model.travels=["1.*"]', "method.name=ifca", "method.fraction=1.0"], r"'ifca': clients would choose"),
        (["method.name=fedper", "run.executor=stacked"], r"'stacked': method\.personal_layers = 1 changes"),
        (["method.name=fedper", "run.executor=weighted"], r"'weighted': method\.personal_layers = 1 changes"),
    ],
)
def test_what_does_not_go_with_it_is_refused(changes: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        experiment(*changes).check()


def test_names_of_one_tensor_stay_together() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    module[2].weight = module[0].weight
    with pytest.raises(InputError, match=r"'0\.weight' and '2\.weight' are one tensor"):
        fedper(POPULATION, RULE, 1, module, 1)
    module[0].weight.requires_grad_(False)  # which nobody changes, so that it need not travel
    assert fedper(POPULATION, RULE, 1, module, 1).stays == ("2.weight", "2.bias")


def test_layers_without_parameters_are_not_counted_and_go_with_those_before_them() -> None:
    first, middle, last = (nn.BatchNorm1d(3, affine=False) for _ in range(3))
    ends = nn.Sequential(first, nn.Linear(3, 3), middle, nn.Linear(3, 3), last)
    statistics = [name.rpartition(".")[2] for name in last.state_dict()]
    assert len(statistics) == 3
    assert fedper(POPULATION, RULE, 1, ends, 1).stays == ("3.weight", "3.bias", *(f"4.{each}" for each in statistics))
    shared = ifca(POPULATION, RULE, 1, 2, shared_layers=1, module=ends).shared
    assert shared == tuple(name for name in ends.state_dict() if name[0] in "012")
    with pytest.raises(
        InputError, match=r"personal_layers = 2: must be less than the model's 2 layers with parameters"
    ):
        fedper(POPULATION, RULE, 1, ends, 2)


@pytest.mark.parametrize("make", [fedbn, fedper, fedrep])
def test_frozen_layers_alone_are_no_personal_part(make: Callable[..., Method]) -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    assert len(make(POPULATION, RULE, 1, module).stays) == 2
    module[1].requires_grad_(False)
    with pytest.raises(InputError, match=r"'1\.weight', are frozen, so this would be FedAvg"):
        make(POPULATION, RULE, 1, module)


def test_what_travels_by_name() -> None:
    module = adapted((4,), 3)
    assert staying(module, "all") == ()
    assert staying(module, "trainable") == frozen(module)
    assert len(frozen(module)) == 4
    assert set(staying(module, ["*.up.*", "*.down.*"])) == set(frozen(module))
    assert count_bytes(read_model(module)) > count_bytes(read_model(module, {"1.up.weight"})) == 4 * 2 * 32


def test_the_loss_of_a_head_and_then_a_body_is_the_mean_over_all_steps() -> None:
    """At a rate so small that each step has the same loss."""
    population, module = classification(), network()
    rule, start = LocalRule(sgd, 1e-9, 4, "full"), read_model(module)
    task = ClientTask(0, 0, 0, 0, 0, start)
    plain = Trainer(network(), population, rule, 0).train(task)
    head = [*trained_of(module)][-2:]
    ours = HeadFirstTrainer(module, population, rule, 0, head=head, body_steps=1).train(task)
    assert ours.loss == pytest.approx(plain.loss)
