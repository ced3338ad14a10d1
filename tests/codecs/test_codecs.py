"""Codecs: their bytes against loops by hand, runs against twins that keep what is lost, and what they refuse."""

import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atoll
from atoll import Experiment, InputError, generator, init, make_runs, run_events, train
from atoll.codecs.codec_stage import code_updates, send_clipped
from atoll.codecs.coding import Coding, Undecodable, as_sent
from atoll.codecs.named_codecs import CODECS
from atoll.codecs.number_codecs import count_of, decode_bfloat16, decode_int8, decode_topk, encode_topk
from atoll.local.models import Form, Model, form_of
from atoll.local.task import ClientTask

BASE = {
    "rounds": 4,
    "data": {"clients": 6, "samples": 20},
    "model": {"name": "linear"},
    "local": {"steps": 2, "batch_size": 4},
    "clustering": {"clusters": 2},
    "method": {"name": "fedavg", "fraction": 0.5},
    "run": {"executor": "serial", "evaluate_samples": 20},
}
ERROR = "codec@"
"""What names of a client's state begin with that hold what its updates have lost."""

SETTINGS: dict[str, tuple[str, ...]] = {
    "bfloat16": ("travel.codec=bfloat16",),
    "int8": ("travel.codec=int8",),
    "stochastic": ("travel.codec=int8", "travel.rounding=stochastic"),
    "topk": ("travel.codec=topk", "travel.share=0.1"),
    "without feedback": ("travel.codec=topk", "travel.feedback=false"),
}


def experiment(*changes: str) -> Experiment:
    return Experiment(make_runs(BASE, changes=list(changes))[0])


def states(made: Experiment) -> list[atoll.State]:
    executor = made.execution.make_executor()
    try:
        return [step.state for step in train(made.method, executor, init(made.method, *made.training.initial_models()))]
    finally:
        executor.close()


def drawn(seed: int = 0, dtype: torch.dtype = torch.float32) -> Model:
    """Return an update of tensors of several shapes, one a single number, one empty."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"a": (3, 4), "b": (7,), "c": (), "d": (0,)}
    return {name: torch.tensor(rng.standard_normal(shape)).to(dtype) for name, shape in shapes.items()}


def nearest_bfloat16(value: float) -> float:
    """Round to the nearest of float32's numbers whose last 16 bits are zero, of two the even one."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    bits += 0x7FFF + (bits >> 16 & 1)
    return float(struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0])


def by_hand(name: str, values: list[float], rng: np.random.Generator) -> list[float]:
    """Return what is decoded of a tensor's numbers, one number at a time."""
    one = np.float32
    if name == "bfloat16":
        return [nearest_bfloat16(value) for value in values]
    if name in ("int8", "stochastic"):
        scale = one(max(map(abs, values), default=0.0)) / one(127)
        found = []
        for value in values:
            level = one(value) / scale if scale else one(0)
            added = one(rng.random(dtype=np.float32)) if name == "stochastic" else one(0)
            whole = math.floor(level + added) if name == "stochastic" else round(float(level))
            found.append(float(one(max(-127, min(127, whole))) * scale))
        return found
    share = 0.1 if name == "topk" else 0.05
    order = sorted(range(len(values)), key=lambda place: (-abs(values[place]), place))
    sent = set(order[: math.ceil(share * len(values))])
    return [value if place in sent else 0.0 for place, value in enumerate(values)]


def coding_of(*changes: str) -> Coding:
    (stage,) = experiment(*changes).method.stages
    half: Any = stage.send
    coding: Coding = half.__self__.coding
    return coding


@pytest.mark.parametrize("name", SETTINGS)
def test_bytes_are_those_of_loops_by_hand(name: str) -> None:
    coding, update = coding_of(*SETTINGS[name]), drawn()
    payload = coding.encode(update, np.random.default_rng(3))
    decoded = coding.decode(payload, form_of(update))
    rng = np.random.default_rng(3)
    for key, tensor in update.items():
        assert decoded[key].flatten().tolist() == by_hand(name, tensor.flatten().tolist(), rng)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_is_its_twin_that_keeps_what_is_lost(name: str) -> None:
    """FedAvg with loops over clients and numbers, the codec by hand, and what it loses added to the next update."""
    made = experiment(*SETTINGS[name])
    plain = experiment()
    (server,) = made.training.initial_models()
    trainer = plain.training.make_trainer(plain.method.rule, plain.population, False)
    lost: dict[int, Model] = {}
    for event, state in zip(made.method.schedule.events, states(made), strict=True):
        total = {key: torch.zeros_like(tensor) for key, tensor in server.items()}
        for client in event.cohort.tolist():
            trained = trainer.train(ClientTask(event.index, event.round, 0, 0, client, server)).model
            rng = generator(0, "codec", event.index, 0, client)
            kept: Model = {}
            for key, own in trained.items():
                wanted = own - server[key]
                if client in lost:
                    wanted = wanted + lost[client][key]
                sent = torch.tensor(by_hand(name, wanted.flatten().tolist(), rng)).reshape(own.shape)
                kept[key] = wanted - sent
                total[key].add_(server[key] + sent, alpha=20.0)  # samples
            if name != "without feedback":
                lost[client] = kept
        server = {key: tensor / (20.0 * len(event.cohort)) for key, tensor in total.items()}
        assert state.server is not None
        for key, tensor in server.items():
            assert torch.equal(state.server[key], tensor)
        assert state.clients.keys() == lost.keys()
        for client, kept in lost.items():
            assert all(torch.equal(state.clients[client][ERROR + key], tensor) for key, tensor in kept.items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", sorted(CODECS.keys() - {"none"}))
def test_other_types_come_back_as_they_were(name: str, dtype: torch.dtype) -> None:
    coding, update = coding_of(f"travel.codec={name}"), drawn(dtype=dtype)
    decoded = coding.decode(coding.encode(update, np.random.default_rng(0)), form_of(update))
    assert form_of(decoded) == form_of(update)
    assert [*decoded] == [*update]
    if name != "topk":
        assert all(torch.allclose(decoded[key].double(), own.double(), atol=0.02) for key, own in update.items())


def test_counters_are_sent_as_they_are() -> None:
    update = {"n": torch.tensor(7), "w": torch.ones(3), "m": torch.tensor([True, False])}
    coding = coding_of("travel.codec=int8")
    payload = coding.encode(update, np.random.default_rng(0))
    assert len(payload) == coding.bytes_of(form_of(update)) == 4 + 3 + 8 + 2
    decoded = coding.decode(payload, form_of(update))
    assert [*decoded] == ["n", "w", "m"]
    assert all(torch.equal(decoded[key], own) for key, own in update.items())


def test_of_counters_nothing_is_lost_or_kept() -> None:
    """Booleans, which have no difference, travel like numbers that count."""
    stage = code_updates(coding_of("travel.codec=topk", "travel.share=0.5"), True, 0)
    assert stage.send is not None
    assert stage.receive is not None
    start = {"w": torch.zeros(2), "n": torch.tensor(3), "m": torch.tensor([True, False])}
    model = {"w": torch.tensor([1.0, 4.0]), "n": torch.tensor(7), "m": torch.tensor([False, False])}
    sent = stage.send(ClientTask(0, 0, 0, 0, 0, start), atoll.ClientUpdate(model, 0.0))
    assert sent.state is not None
    assert {name: tensor.tolist() for name, tensor in sent.state.items()} == {"w": [1.0, 0.0]}
    received = stage.receive(sent.model, start, form_of(start))
    assert {name: tensor.tolist() for name, tensor in received.items()} == {"w": [0, 4], "n": 7, "m": [False, False]}


def test_stochastic_rounding_is_right_in_the_mean() -> None:
    coding = coding_of(*SETTINGS["stochastic"])
    update = {"w": torch.tensor([1.0, 0.3, -0.0123])}
    draws = torch.stack(
        [
            coding.decode(coding.encode(update, np.random.default_rng(seed)), form_of(update))["w"]
            for seed in range(2000)
        ]
    )
    assert torch.allclose(draws.mean(dim=0), update["w"], atol=4 * 0.5 / 127 / math.sqrt(2000))
    assert len(set(draws[:, 1].tolist())) == 2


def test_the_largest_number_keeps_its_sign_however_high_the_draw() -> None:
    """127 and almost 1 are 128 in single precision, which a signed byte takes for -128."""

    class Highest:
        def random(self, shape: tuple[int, ...], dtype: Any) -> Any:
            return np.full(shape, np.nextafter(dtype(1), dtype(0)))

    coding, highest = coding_of(*SETTINGS["stochastic"]), Highest()
    for value in (1.0, 0.3, -1.7):
        update = {"w": torch.tensor([value])}
        decoded = coding.decode(coding.encode(update, highest), form_of(update))  # type: ignore[arg-type]
        assert decoded["w"].tolist() == pytest.approx([value])


@pytest.mark.parametrize("name", sorted(CODECS.keys() - {"none"}))
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_number_that_is_not_finite_stays_one(name: str, bad: float) -> None:
    """So that screening sees it, and nothing of it is taken for good."""
    coding, update = coding_of(f"travel.codec={name}"), {"w": torch.tensor([1.0, bad, 2.0, -3.0])}
    decoded = coding.decode(coding.encode(update, np.random.default_rng(0)), form_of(update))
    assert not decoded["w"].isfinite().all()


def test_what_was_lost_of_a_variance_does_not_make_it_negative() -> None:
    """Others have lowered it meanwhile, and a model with a variance below 0 gives NaN."""
    stage = code_updates(coding_of("travel.codec=topk", "travel.share=0.5"), True, 0)
    assert stage.send is not None
    assert stage.receive is not None
    start, state = {"1.running_var": torch.ones(2)}, None
    for event, trained in enumerate(([0.25, 0.5], [0.25, 0.25])):
        model = {"1.running_var": torch.tensor(trained)}
        sent = stage.send(ClientTask(event, event, 0, 0, 0, start, state=state), atoll.ClientUpdate(model, 0.0))
        received = stage.receive(sent.model, start, form_of(start))["1.running_var"]
        start, state = model, sent.state
        assert received.tolist() == ([0.25, 1.0] if event == 0 else [0.25, 0.0])


def test_clipping_shortens_the_model_and_neither_moments_nor_counters() -> None:
    start = {"w": torch.ones(4), "w@u": torch.zeros(4), "n": torch.tensor(3)}
    model = {"w": torch.full((4,), 6.0), "w@u": torch.full((4,), 8.0), "n": torch.tensor(7)}
    task = ClientTask(0, 0, 0, 0, 0, start)
    sent = send_clipped(2.0, task, atoll.ClientUpdate(model, 0.5))  # of length 10
    assert {name: tensor.tolist() for name, tensor in sent.model.items()} == {"w": [2.0] * 4, "w@u": [8.0] * 4, "n": 7}
    assert sent.loss == 0.5
    assert send_clipped(10.0, task, atoll.ClientUpdate(model, 0.5)).model == model


def test_feedback_sends_all_in_the_end() -> None:
    """Of an update that is the same each time, what arrived after many rounds is all but what is kept."""
    coding, wanted = coding_of("travel.codec=topk", "travel.share=0.1"), torch.arange(1.0, 21.0)

    class Same:
        keeps_state, precision = False, "float32"
        losses = sample_losses = identity_rows = samples_a_step = None

        def train(self, task: ClientTask) -> atoll.ClientUpdate:
            return atoll.ClientUpdate({"w": task.start["w"] + wanted}, 0.0)

    def arrived(feedback: bool) -> torch.Tensor:
        same: Any = Same()
        trainer, state, total = atoll.Chain(same, [code_updates(coding, feedback, 0)]), None, torch.zeros(20)
        for event in range(200):
            update = trainer.train(ClientTask(event, event, 0, 0, 0, {"w": torch.zeros(20)}, state=state))
            state, total = update.state, total + update.model["w"]
        return total / 200

    assert torch.allclose(arrived(True), wanted, rtol=0.25)
    assert (arrived(False) == 0).sum() == 18


def test_bytes_and_seconds_are_those_of_what_is_sent(tmp_path: Path) -> None:
    whole, coded = experiment("rounds=2"), experiment("rounds=2", "travel.codec=int8")
    numbers, tensors = 64 * 10 + 10, 2
    assert (whole.traffic.update_bytes, coded.traffic.update_bytes) == (4 * numbers, numbers + 4 * tensors)
    assert coded.traffic.message_bytes == whole.traffic.message_bytes == 4 * numbers
    for each in (whole, coded):
        *_, last = run_events(each, tmp_path / str(each.traffic.update_bytes))
        assert last.row is not None
        assert last.row["bytes_up"] == 6 * each.traffic.update_bytes
        assert last.row["bytes_down"] == 6 * 4 * numbers
    share = coded.traffic.update_bytes / whole.traffic.update_bytes
    assert np.allclose(coded.plan.clock.upload_seconds, share * whole.plan.clock.upload_seconds)
    assert coded.method.schedule.events[-1].seconds < whole.method.schedule.events[-1].seconds


HIERARCHICAL = ("method.name=hierarchical", "method.fraction=", "rounds=8", "method.intra_rounds=2", "local.steps=1")


def test_clients_upload_less_to_their_aggregators_which_send_models() -> None:
    """FedUC: the network's uploads shrink, transfers and exchanges do not; times and clusterings see it."""
    given = (*HIERARCHICAL, "method.pattern=cenasy", "data.clients=12", "network.bandwidth_hz=1e3")
    whole, coded = experiment(*given), experiment(*given, "travel.codec=int8")
    share = coded.traffic.update_bytes / coded.traffic.message_bytes
    one, other = whole.conditions.networks[0], coded.conditions.networks[0]
    assert np.allclose(other.upload_seconds, share * one.upload_seconds)
    assert np.array_equal(other.transfer_seconds, one.transfer_seconds)
    assert np.array_equal(other.exchange_seconds, one.exchange_seconds)
    assert coded.method.schedule.events[0].seconds < whole.method.schedule.events[0].seconds
    event = coded.method.schedule.events[0]
    models = event.models_up - event.client_updates
    assert models == 1  # of the aggregator
    expected = event.client_updates * coded.traffic.update_bytes + models * coded.traffic.message_bytes
    assert coded.traffic.bytes_up(event.models_up, event.client_updates) == expected
    clustered = (*given, "clustering.method=comaw", "method.pattern=censyn")
    plans = [experiment(*clustered, *more).plan.problem for more in ((), ("travel.codec=topk", "travel.share=0.01"))]
    assert (plans[1].network.upload_seconds < plans[0].network.upload_seconds).all()


def test_measured_uploads_are_of_models_and_shrink_too(tmp_path: Path) -> None:
    links = [f"{client},a{aggregator},1\n" for client in range(6) for aggregator in range(2)]
    links += [f"a{aggregator},server,1\n" for aggregator in range(2)]
    (tmp_path / "links.csv").write_text("from,to,up_seconds\n" + "".join(links))
    file = f"network.file={tmp_path / 'links.csv'}"
    made = experiment(*HIERARCHICAL, "method.pattern=cenasy", file, "travel.codec=bfloat16")
    assert (made.conditions.networks[0].upload_seconds == 0.5).all()
    assert (made.conditions.networks[0].transfer_seconds == 1.0).all()


def test_moments_are_coded_too() -> None:
    given = ("method.name=cfl-mgd", "method.clusters=2", "data.partition=rotated", "data.rotations=2")
    made = experiment(*given, "travel.codec=int8")
    assert made.traffic.update_bytes == 2 * (650 + 2 * 4)
    last = states(made)[-1]
    kept = next(iter(last.clients.values()))
    assert {name.removeprefix(ERROR) for name in kept} == set(last.starts[0])
    assert any("@momentum_buffer" in name for name in kept)


@pytest.mark.parametrize("combine", ["median", "geometric-median", "krum"])
def test_robust_rules_bear_attackers_whose_updates_are_coded(combine: str) -> None:
    """An attacker's update is coded as any other: with `topk` even noise arrives at a few places only."""
    given = ["faults.attackers=0.2", "data.clients=10", "method.fraction=1.0", f"method.combine={combine}"]
    given += ["method.byzantine=2"] if combine == "krum" else []
    made = experiment(*given, "faults.attack=noise", "travel.codec=topk", "travel.share=0.1")
    trainer = made.training.trainer()
    assert [stage.name for stage in trainer.stages] == ["attack", "codec"]
    attacker = int(atoll.draw_attackers(0.2, 10, made.settings.seed)[0])
    (start,) = made.training.initial_models()
    sent = trainer.train(ClientTask(0, 0, 0, 0, attacker, start)).model
    assert sum(int((sent[key] != start[key]).sum()) for key in start) <= 64 + 1
    attacked = states(made)[-1].server
    assert attacked is not None
    assert all(tensor.isfinite().all() for tensor in attacked.values())


def test_results_that_are_not_finite_are_left_out() -> None:
    made = experiment("faults.attackers=0.34", "faults.attack=not-finite", "faults.tolerate=true", "travel.codec=int8")
    last = states(made)[-1]
    assert last.refused["not_finite"] > 0
    assert last.server is not None
    assert all(tensor.isfinite().all() for tensor in last.server.values())
    assert all(tensor.isfinite().all() for kept in last.clients.values() for tensor in kept.values())


@pytest.mark.parametrize("method", ["fedper", "ditto", "scaffold", "fedbuff"])
def test_what_clients_keep_else_is_kept_beside(method: str, tmp_path: Path) -> None:
    own = ", 'personal_model_accuracy'" if method == "ditto" else ""
    probes = f"run.probes=['client_accuracy', 'trained_client_accuracy'{own}]"
    needed = ["method.fraction=", "method.buffer=2", "method.concurrency=4"] if method == "fedbuff" else []
    made = experiment(f"method.name={method}", "model.name=mlp", "travel.codec=int8", probes, "rounds=2", *needed)
    *_, last = run_events(made, tmp_path / "run")
    assert last.row is not None
    assert 0 <= last.row["trained_client_accuracy"] <= 1
    kept = next(iter(states(made)[-1].clients.values()))
    assert any(name.startswith(ERROR) for name in kept)
    assert any(not name.startswith(ERROR) for name in kept) == (method != "fedbuff")


def test_off_nothing_is_kept_and_nothing_wrapped() -> None:
    made = experiment("travel.feedback=false")
    assert made.method.trainer is None
    assert made.method.stages == ()
    assert not made.method.keeps_state
    assert made.traffic.update_bytes == made.traffic.message_bytes


def half(share: float = 0.5) -> atoll.Codec:
    """Send every number as float16."""

    def encode(update: Model, rng: np.random.Generator) -> bytes:
        return b"".join(tensor.half().numpy().tobytes() for tensor in update.values())

    def decode(payload: bytes, form: Form) -> Model:
        sizes = [shape.numel() for shape, _ in form.values()]
        pieces = np.split(np.frombuffer(payload, np.float16).copy(), np.cumsum(sizes)[:-1])
        return {name: torch.from_numpy(piece).reshape(form[name][0]) for name, piece in zip(form, pieces, strict=True)}

    return atoll.Codec(encode, decode)


def codec(encode: Callable[..., Any] | None = None, decode: Callable[..., Any] | None = None) -> atoll.Codec:
    good = half()
    return atoll.Codec(encode or good.encode, decode or good.decode)


def no_codec() -> int:
    return 3


def no_bytes() -> atoll.Codec:
    return codec(encode=lambda update, rng: [1])


def failing() -> atoll.Codec:
    return codec(encode=lambda update, rng: 1 / 0)


def growing() -> atoll.Codec:
    return codec(encode=lambda update, rng: bytes(int(sum(each.count_nonzero() for each in update.values()))))


def forgetful() -> atoll.Codec:
    return codec(decode=lambda payload, form: {})


def lost() -> atoll.Codec:
    return codec(decode=lambda payload, form: {name: torch.zeros(1) for name in form})


def test_ones_own_codec_has_settings_of_its_own() -> None:
    made = experiment(f"travel.codec={__name__}:half", "travel.share=0.3")
    assert made.traffic.update_bytes == 2 * 650
    server, exact = states(made)[-1].server, states(experiment())[-1].server
    assert server is not None
    assert exact is not None
    assert all(torch.allclose(server[name], exact[name], atol=1e-4) for name in exact)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["travel.codec=int4"], r"travel\.codec = 'int4': unknown, did you mean 'int8'\?"),
        (["travel.codec=topk", "travel.share=0"], r"travel\.share = 0"),
        (["travel.codec=topk", "travel.share=1.5"], r"travel\.share = 1\.5"),
        (["travel.codec=topk", "travel.share=nan"], r"travel\.share"),
        (["travel.codec=int8", "travel.share=0.5"], r"travel\.share.*taken by travel\.codec = 'topk'"),
        (["travel.codec=int8", "travel.rounding=up"], r"travel\.rounding = 'up'"),
        (["travel.codec=int8", "travel.feedback=maybe"], r"travel\.feedback"),
        (["travel.codec=int8", "method.name=centralized", "method.fraction="], r"whose one client holds all data"),
        (["travel.codec=int8", "method.name=local"], r"'local': clients send nothing"),
        (["travel.codec=int8", "method.name=fesem"], r"'fesem': clusters are found from what clients train"),
        (
            ["travel.codec=int8", "run.executor=stacked"],
            r"run\.executor = 'stacked': travel\.codec = 'int8' changes each",
        ),
        (["travel.codec=int8", "run.executor=weighted", "local.steps=1"], r"run\.executor = 'weighted': travel\.c"),
        ([f"travel.codec={__name__}:no_codec"], r"must return an atoll\.Codec, it returned 'int'"),
        ([f"travel.codec={__name__}:no_bytes"], r"encode must return bytes, it returned 'list'"),
        ([f"travel.codec={__name__}:failing"], r"encode failed \(ZeroDivisionError"),
        ([f"travel.codec={__name__}:growing"], r"must not depend on the numbers"),
        (
            [f"travel.codec={__name__}:forgetful"],
            r"^travel\.codec = '[\w.]+:forgetful': decode failed \(KeyError: '[\w.]+'\)$",
        ),
        ([f"travel.codec={__name__}:lost"], r"decode returned tensors with other names or shapes"),
    ],
)
def test_bad_settings_are_told_before_anything_is_written(changes: list[str], told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told):
        for _ in run_events(experiment(*changes), tmp_path / "run"):
            pass
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "payload",
    [
        struct.pack("<II", 0, 0) + bytes(8),
        struct.pack("<II", 2, 1) + bytes(8),
        struct.pack("<II", 1, 12) + bytes(8),
        struct.pack("<II", 1, 2**32 - 1) + bytes(8),
        bytes(15),
        bytes(17),
        b"",
    ],
)
def test_places_that_a_tensor_does_not_have_are_refused(payload: bytes) -> None:
    coding, form = coding_of("travel.codec=topk", "travel.share=0.15"), form_of({"w": torch.zeros(3, 4)})
    assert coding.bytes_of(form) == 16
    with pytest.raises(Undecodable, match=r"travel\.codec = 'topk'"):
        coding.decode(payload, form)
    good = struct.pack("<IIff", 1, 11, 0.5, -2.0)
    assert coding.decode(good, form)["w"].flatten()[[1, 11]].tolist() == [0.5, -2.0]
    assert as_sent(good)["coded"].dtype == torch.uint8


def test_a_share_that_rounding_puts_above_a_whole_number_is_that_number() -> None:
    assert 0.07 * 100 > 7
    assert count_of(100, 0.07) == 7


def test_of_equal_numbers_the_first_are_sent() -> None:
    update, form = {"w": torch.tensor([1.0, -1.0, 1.0])}, {"w": (torch.Size([3]), torch.float32)}
    sent = encode_topk(update, np.random.default_rng(0), 1 / 3)
    assert decode_topk(sent, form, 1 / 3)["w"].tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(("decode", "size"), [(decode_bfloat16, 4), (decode_int8, 6)])
def test_bytes_behind_the_last_number_are_refused(decode: Any, size: int) -> None:
    form = {"w": (torch.Size([2]), torch.float32)}
    with pytest.raises(ValueError, match=f"has {size + 1} bytes, expected {size}"):
        decode(bytes(size + 1), form)
