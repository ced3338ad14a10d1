"""Every method, many options, resumed runs and fleets on a stand-in for a GPU that refuses what CUDA refuses."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from atoll import Experiment, InputError, run_events
from atoll.executors.stacked import draws, stacked_executor
from tests.fleets import open_sites
from tests.killing import carry_to_end, count_steps, kill_at
from tests.made_runs import timeless
from tests.memory_fleet import MemoryFleet
from tests.methods.test_every_method import CASES, experiment, refusal, rows
from tests.stand_in_gpu import OnGpu, Stream, stand_in_gpu
from tests.stand_in_graphs import captured
from tests.tiers import thinned

GPU = "run.device=cuda"
FEW = ("rounds=2", "run.executor=stacked")
SERIAL = ("rounds=2", "run.executor=serial")
CLIPPED = ("privacy.clip=1.0", "privacy.noise=0.5", "privacy.delta=1e-3")
TRUSTED = ("privacy.trust=server", "privacy.count_noise=0.5", *CLIPPED)
ALL = ("method.fraction=1.0", "data.clients=12", *FEW)
NORMALISED = "model.name=tests.problems:normalised"
FEDUC = ("clustering.method=feduc", "run.executor=stacked")

OPTIONS = {
    "median": ("fedavg", "method.combine=median", *ALL),
    "geometric-median": ("fedavg", "method.combine=geometric-median", *ALL),
    "trimmed-mean": ("fedavg", "method.combine=trimmed-mean", "method.trim=0.2", *ALL),
    "centred-clipping": ("fedavg", "method.combine=centred-clipping", "method.clip_norm=0.1", *ALL),
    "krum": ("fedavg", "method.combine=krum", "method.byzantine=1", *ALL),
    "bulyan": ("fedavg", "method.combine=bulyan", "method.byzantine=1", *ALL),
    "serial": ("fedcluster", *SERIAL),
    "weighted": ("fedcluster", "run.executor=weighted", "local.steps=1"),
    "debug": ("fedcluster", "run.debug=true", "rounds=2"),
    "two devices": ("fedcluster", *FEW),
    "two streams": ("fedcluster", "local.optimizer=momentum", *FEW),
    "small stacks": ("fedavg", "run.stack_bytes=30000", *FEW),
    "momentum": ("fedcluster", "local.optimizer=momentum", *FEW),
    "adam": ("fedcluster", "local.optimizer=adam", *FEW),
    "proximal": ("fedcluster", "local.proximal=0.1", *FEW),
    "bfloat16": ("fedcluster", "run.precision=bfloat16", *FEW),
    "attackers": ("fedcluster", "faults.attackers=0.25", *SERIAL),
    "usual norms": ("fedcluster", "faults.usual_norms=refuse", "data.clients=16", *FEW),
    "noise of clients": ("fedcluster", "privacy.trust=client", *CLIPPED, *SERIAL),
    "noise of the server": ("fedcluster", *TRUSTED, *FEW),
    "secure sums": ("fedcluster", "secure.sums=true", "secure.least_nodes=2", "method.fraction=1.0", *FEW),
    "clip": ("fedcluster", 'travel.stages=["clip"]', "travel.clip_norm=0.1", *SERIAL),
    "codec and moments": ("fedcluster", "travel.codec=int8", "local.optimizer=momentum", *SERIAL),
    "parts that travel": ("fedcluster", 'model.travels=["*[12].*"]', "model.name=mlp", *SERIAL),
    "normalised": ("fedcluster", NORMALISED, *SERIAL),
    "estimated": ("hierarchical", "clustering.mu=estimate", "clustering.smoothness=estimate", *FEDUC),
    "gradients": ("hierarchical", "clustering.xi=gradients", "clustering.warmup_rounds=1", *FEDUC),
}
ON_GPU = {"two devices": "run.device=cuda:0,cpu", "two streams": "run.device=cuda:0,cuda:0"}

GUARDED = {
    "plain": (),
    "longest update": ("faults.max_update_norm=100",),
    "codec": ("travel.codec=int8",),
    "privacy": (
        "privacy.trust=server",
        "privacy.clip=1.0",
        "privacy.noise=1e-6",
        "privacy.count_noise=1e-6",
        "privacy.delta=1e-3",
    ),
}


def last_row(folder: Path) -> dict[str, Any]:
    """Return the numbers in the last row but for seconds, which a fleet measures."""
    row = timeless((folder / "metrics.jsonl").read_text().splitlines()[-1])
    del row["virtual_time"]
    numbers = {name: [each for each in tree_leaves(value) if each is not None] for name, value in row.items()}
    return {f"{name} {i}": each for name, values in numbers.items() for i, each in enumerate(values)}


def same_end(made: Callable[..., Experiment], folder: Path, *there: str) -> None:
    """Compare the last row of a run on the stand-in, where batches are drawn, with that of the same run on the CPU."""
    carry_to_end(made("run.checkpoint_every=1000"), folder / "cpu")
    with stand_in_gpu(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(draws, "_BYTES", 0)  # else not for models as small as these
        carry_to_end(made("run.checkpoint_every=1000", GPU, *there), folder / "gpu")
    assert last_row(folder / "gpu") == pytest.approx(last_row(folder / "cpu"), rel=1e-4)


@pytest.mark.parametrize(
    "mix",
    [
        lambda ours, theirs: ours + theirs,
        lambda ours, theirs: theirs + ours,
        lambda ours, theirs: theirs.add_(ours),
        lambda ours, theirs: theirs.add_(ours[0]),
        lambda ours, theirs: torch.tensor(1.0).add_(ours[0]),
        lambda ours, theirs: torch.stack([ours[0], theirs[0]]),
        lambda ours, theirs: torch.cat([ours, theirs]),
        lambda ours, theirs: ours @ theirs,
        lambda ours, theirs: nn.functional.linear(theirs, ours[None]),
        lambda ours, theirs: nn.Linear(3, 1)(ours),
        lambda ours, theirs: torch._foreach_add([ours], [theirs]),
        lambda ours, theirs: theirs[ours > 0],
        lambda ours, theirs: ours.__setitem__(ours > 0, theirs),
        lambda ours, theirs: torch.randn(2, generator=torch.Generator(), device="cuda"),
        lambda ours, theirs: ours.numpy(),
        lambda ours, theirs: np.asarray(ours),
    ],
)
def test_what_cuda_refuses_is_refused(mix: Callable[..., Any]) -> None:
    with stand_in_gpu(), pytest.raises((RuntimeError, TypeError), match=r"device|numpy"):
        mix(torch.ones(3, device="cuda"), torch.ones(3))


def test_what_cuda_takes_is_taken() -> None:
    with stand_in_gpu():
        ours = torch.arange(3.0).to("cuda")
        mixed = [
            *(ours * torch.tensor(2.0), ours[torch.from_numpy(torch.tensor([0, 2]).numpy())]),
            *(ours.clone().copy_(torch.ones(3)), torch.zeros_like(ours), ours.double().to(torch.float32)),
        ]
        ours[torch.tensor([0])] = torch.tensor(5.0)
        assert all(each.device == ours.device and isinstance(each, OnGpu) for each in mixed)
        assert [each.sum().item() for each in (ours, *mixed)] == [8, 6, 2, 3, 0, 3]


def test_what_comes_back_is_an_ordinary_tensor() -> None:
    with stand_in_gpu():
        ours = torch.ones(3, device="cuda")
        back = [ours.cpu(), ours.to("cpu"), ours.to(torch.zeros(1)), torch.zeros(3).copy_(ours)]
    assert all(type(each) is torch.Tensor and each.device.type == "cpu" and each.sum() == 3 for each in back)


def test_a_module_is_trained_on_it_as_on_the_cpu() -> None:
    weights = []
    with stand_in_gpu():
        for device in ("cuda", "cpu"):
            torch.manual_seed(0)
            module = nn.Linear(3, 1).to(device)
            assert module.weight.device.type == device
            module(torch.ones(2, 3, device=device)).sum().backward()
            torch.optim.SGD(module.parameters(), 0.1).step()
            weights.append(module.weight.detach().cpu())
    assert torch.equal(*weights)


def test_nothing_of_it_stays() -> None:
    def parts() -> list[Any]:
        overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
        cuda = torch.cuda.get_device_properties, torch.cuda.get_device_capability
        depth = torch._C._len_torch_function_stack()
        return [torch.Generator, *cuda, threading.Thread.run, overwrites, depth]

    before = parts()
    with stand_in_gpu():
        assert not any(one == other for one, other in zip(parts(), before, strict=True))
    assert parts() == before
    with pytest.raises(ZeroDivisionError), stand_in_gpu():
        raise ZeroDivisionError
    assert parts() == before


@pytest.mark.parametrize("case", thinned(CASES, ("fedcluster", "scaffold", "codec int8")))
def test_a_run_ends_as_on_the_cpu(tmp_path: Path, case: str) -> None:
    stacked = "run.executor=stacked"
    executor = "run.executor=serial" if refusal(experiment(case, stacked)) else stacked
    same_end(lambda *changes: experiment(case, executor, "rounds=4", *changes), tmp_path)


@pytest.mark.parametrize("device", ["cuda", "cuda:0,cuda:0"])
@pytest.mark.parametrize(("change", "graphs"), thinned([("local.optimizer=momentum", [4]), ("local.lr=0.1", [3])], 1))
def test_a_stack_s_batches_are_drawn_there_and_its_steps_captured(
    change: str, graphs: list[int], device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All steps, of a model in two tensors and what batches are drawn from; or one, of inputs and targets."""
    drawn, rows = [], draws.Draws.rows

    def noted(own: draws.Draws, given: torch.Tensor) -> torch.Tensor:
        drawn.append(given.is_cuda)
        return rows(own, given)

    monkeypatch.setattr(draws.Draws, "rows", noted)
    captured.clear()
    wanted = "fedavg", change, "run.executor=stacked", "rounds=4"
    same_end(lambda *given: experiment(*wanted, *given), tmp_path, f"run.device={device}")
    assert captured == graphs
    assert drawn
    assert all(drawn)


@pytest.mark.parametrize("option", thinned(OPTIONS, ("median", "two devices", "normalised")))
def test_a_run_with_an_option_ends_as_on_the_cpu(tmp_path: Path, option: str) -> None:
    case, *wanted = OPTIONS[option]
    same_end(lambda *changes: experiment(case, *wanted, *changes), tmp_path, ON_GPU.get(option, GPU))


@pytest.mark.parametrize(("clients", "parts"), [(6, 3), (2, 2)])
def test_parts_of_a_stack_are_computed_in_streams_of_their_own(clients: int, parts: int, tmp_path: Path) -> None:
    """All begin after what the GPU was told before, and what it is told next waits for all."""
    Stream.told.clear()
    wanted = "fedavg", "method.fraction=1.0", f"data.clients={clients}", *FEW
    same_end(lambda *given: experiment(*wanted, *given), tmp_path, "run.device=cuda:0,cuda,cuda:0")
    told = [what for what, _ in Stream.told]
    each = ["begin after"] * parts + ["use"] * parts + ["end before"] * parts
    assert told == each * (len(told) // len(each))
    assert len({stream for _, stream in Stream.told}) == parts
    Stream.told.clear()
    same_end(lambda *given: experiment(*wanted, *given), tmp_path / "alone", GPU)
    assert not Stream.told


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork, and /proc to name a descriptor's file")
@pytest.mark.more
@pytest.mark.parametrize("case", ["scaffold", "fedbuff"])
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path, case: str) -> None:
    whole, ours = tmp_path / "whole", tmp_path / "ours"
    with stand_in_gpu():
        steps = count_steps(experiment(case, GPU, "rounds=4"), whole)
        assert kill_at(experiment(case, GPU, "rounds=4"), ours, steps // 2, 0.5)
        carry_to_end(experiment(case, GPU, "rounds=4"), ours)
    assert rows(ours) == rows(whole)
    ends = [max((each / "checkpoint").glob("*.safetensors")) for each in (ours, whole)]
    assert ends[0].read_bytes() == ends[1].read_bytes()


@pytest.mark.more
def test_no_graph_is_tried_unasked_where_a_failed_capture_would_do_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacked_executor, "_FAILS_CLEANLY", False)
    captured.clear()
    same_end(lambda *given: experiment("fedavg", "run.executor=stacked", "rounds=4", *given), tmp_path)
    assert not captured
    same_end(lambda *given: experiment("fedavg", *FEW, *given), tmp_path / "asked", "run.cuda_graphs=true")
    assert captured


def test_a_run_is_resumed_with_the_graphs_that_it_had(tmp_path: Path) -> None:
    with stand_in_gpu():
        steps = run_events(experiment("fedavg", GPU, "run.executor=stacked", "run.checkpoint_every=1"), tmp_path)
        next(step for step in steps if step.events_done == 2)
        steps.close()
        told = r"'stacked', with run.cuda_graphs = false, .* set run.executor = 'stacked', with .* = 'auto'"
        with pytest.raises(InputError, match=told):
            list(
                run_events(
                    experiment("fedavg", GPU, "run.executor=stacked", "run.cuda_graphs=false"), tmp_path, resume=True
                )
            )


@pytest.mark.more
@pytest.mark.parametrize("guard", thinned(GUARDED, 1))
def test_a_fleet_whose_nodes_or_server_have_a_gpu_ends_as_on_the_cpu(tmp_path: Path, guard: str) -> None:
    def end_of(server: str, node: str) -> dict[str, Any]:
        folder = tmp_path / f"{server}-{node}"
        theirs, ours = (
            experiment("fedavg", f"run.device={each}", "run.executor=fleet", "rounds=2", *GUARDED[guard])
            for each in (node, server)
        )
        fleet = MemoryFleet(open_sites(theirs, folder / "data"))
        assert not [each.warnings for each in run_events(ours, folder / "run", fleet=fleet) if each.warnings]
        return last_row(folder / "run")

    expected = pytest.approx(end_of("cpu", "cpu"), rel=1e-4)
    with stand_in_gpu():
        for server, node in (("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda")):
            assert end_of(server, node) == expected
