"""The benchmark: everyone does the same work, operations and memory are counted right, and races are told truly."""

import os
import statistics
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from bench import Case, Contender, RaceResult, as_markdown, count_flops, own_contenders, quick, race, racing
from bench.contenders import (
    EXECUTORS,
    MATRIX_PRODUCT,
    PLAIN,
    ROUNDED,
    contenders_for,
    make_clients,
    make_executor_round,
    make_module,
    make_round,
    make_trainer,
)
from bench.flops import MATRIX_PRODUCT_FLOPS
from bench.peak_memory import can_measure, descendants, peak_bytes
from bench.work import make_pool, samples_of
from torch import Tensor

from atoll.aggregation.reductions import update_norm
from atoll.local.models import Model
from atoll.local.weights import read_model
from atoll.support.errors import RunError
from tests.tiers import thinned

TINY = Case("mlp", clients=3, steps=2, batch_size=4, cohorts=2, clusters=2, lr=0.1)
PARAMETERS = 784 * 200 + 200 + 200 * 10 + 10

linux = pytest.mark.skipif(not can_measure(), reason="this system does not tell what memory processes hold")


def dense_flops(batch: int) -> int:
    first, second = 2 * batch * 784 * 200, 2 * batch * 200 * 10
    return (first + second) + (first + second) + second  # outputs; weights' gradients; the second layer's inputs'


def cnn_flops(batch: int) -> int:
    first, second = 2 * batch * 24 * 24 * 20 * 25, 2 * batch * 8 * 8 * 50 * 20 * 25
    dense = 2 * batch * (800 * 500 + 500 * 10)
    return 2 * first + 3 * second + 3 * dense


def alexnet_flops(batch: int) -> int:
    first, second = 2 * batch * 28 * 28 * 64 * 3 * 25, 2 * batch * 13 * 13 * 64 * 64 * 25
    dense = 2 * batch * (2304 * 384 + 384 * 192 + 192 * 10)
    return 2 * first + 3 * second + 3 * dense


@pytest.mark.parametrize(
    ("case", "a_step"),
    [
        (Case("mlp", 10), dense_flops(30)),
        (Case("mlp", 7, steps=3, batch_size=5, cohorts=2, clusters=2), dense_flops(5)),
        (Case("cnn", 10), cnn_flops(30)),
        (Case("alexnet", 100), alexnet_flops(30)),
    ],
)
def test_operations_are_those_counted_by_hand(case: Case, a_step: int) -> None:
    assert count_flops(case) == a_step * case.steps * case.clients * case.cohorts * case.clusters


def test_the_plain_loop_is_federated_averaging() -> None:
    start = read_model(make_module(TINY))
    train = make_round(PLAIN, TINY, make_module(TINY))
    torch.manual_seed(3)
    found = train(start)
    torch.manual_seed(3)
    one = plain_twin(TINY, range(3), plain_twin(TINY, range(3), start))
    other = plain_twin(TINY, range(3, 6), plain_twin(TINY, range(3, 6), start))
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, (one[name] + other[name]) / 2, rtol=1e-5, atol=1e-7)


def plain_twin(case: Case, clients: range, start: Model) -> Model:
    """One cohort by hand, drawing batches in the plain loop's order."""
    images, labels = make_pool(case)
    ends = []
    for client in clients:
        x, y = images[samples_of(case, client)], labels[samples_of(case, client)]
        w = dict(start)
        for _ in range(case.steps):
            rows = torch.randint(len(x), (case.batch_size,)).numpy()
            w = step_by_hand(w, torch.from_numpy(x[rows] / np.float32(255)), torch.from_numpy(y[rows]), case.lr)
        ends.append(w)
    mean: Model = {name: sum(end[name] for end in ends) / len(ends) for name in start}  # type: ignore[misc]
    return mean


def step_by_hand(model: Model, images: Tensor, labels: Tensor, lr: float) -> Model:
    w = {name: tensor.clone().requires_grad_() for name, tensor in model.items()}
    hidden = (images.flatten(1) @ w["1.weight"].T + w["1.bias"]).relu()
    outputs = hidden @ w["3.weight"].T + w["3.bias"]
    loss = -outputs.log_softmax(dim=1)[torch.arange(len(labels)), labels].mean()
    gradients = torch.autograd.grad(loss, list(w.values()))
    return {name: (w[name] - lr * own).detach() for name, own in zip(w, gradients, strict=True)}


@pytest.mark.parametrize("steps", thinned([1, 2], 1))
def test_executors_do_the_same_work(steps: int) -> None:
    case = replace(TINY, steps=steps)
    start = read_model(make_module(case))
    ends = {PLAIN: make_round(PLAIN, case, make_module(case))(start)}
    for name in contenders_for(case)[1:]:
        with closing(EXECUTORS[name](make_trainer(case, make_module(case)))) as executor:
            ends[name] = make_executor_round(case, executor)(start)
    expected = ends["serial"]
    assert update_norm(expected, start) > 0.01
    for name, found in ends.items():
        if name == PLAIN:  # draws other batches
            assert 0.5 < update_norm(found, start) / update_norm(expected, start) < 2
        else:
            assert update_norm(found, expected) < 1e-5


def test_who_fits() -> None:
    assert contenders_for(Case("lr", 6, steps=1)) == [PLAIN, *EXECUTORS]
    assert contenders_for(Case("mlp", 10)) == [PLAIN, "serial", "cores", "stacked"]
    assert [each.name for each in own_contenders(TINY)] == [*contenders_for(TINY), MATRIX_PRODUCT]
    asked = [each.name for each in own_contenders(TINY, bfloat16=True)]
    assert asked == [*contenders_for(TINY), ROUNDED, MATRIX_PRODUCT]


def test_rounds_in_bfloat16_are_near_those_in_float32() -> None:
    start = read_model(make_module(TINY))
    rounded, exact = (make_round(name, TINY, make_module(TINY))(start) for name in (ROUNDED, "serial"))
    assert 0 < update_norm(rounded, exact) < 0.05 * update_norm(exact, start)


def test_each_client_holds_one_epoch_of_its_steps() -> None:
    case = Case("cnn", clients=12, steps=2, batch_size=5)
    population = make_clients(case)
    assert population.sizes.tolist() == [10] * 12
    assert population.samples(11).tolist() == population.samples(1).tolist()
    assert len(np.unique(population.indices[:100])) == 100


def test_quick_is_the_same_with_fewer_steps() -> None:
    assert quick(Case("mlp", 10)) == Case("mlp", 10, steps=4)
    assert quick(Case("alexnet", 10)) == Case("alexnet", 10, steps=2)
    assert quick(Case("lr", 6, steps=1, cohorts=10)) == Case("lr", 6, steps=1, cohorts=4)
    assert quick(Case("lr", 6, steps=1, cohorts=2)) == Case("lr", 6, steps=1, cohorts=2)


PACED = f"""
import sys, time
sys.path.insert(0, {str(Path(racing.__file__).parent)!r})
import work
parameters, moved, seconds, dies_in = map(float, sys.argv[1:5])
print("a library says hello")
pace, rounds = work.WorkRate(int(parameters), lambda: moved), 0
while pace.next_round():
    if rounds == dies_in:
        sys.exit("what went wrong")
    time.sleep(seconds)
    rounds += 1
"""


def paced(
    name: str, parameters: float = PARAMETERS, moved: float = 1.0, seconds: float = 0.0, dies_in: int = -1
) -> Contender:
    words = (str(parameters), str(moved), str(seconds), str(dies_in))
    return Contender(name, (sys.executable, "-c", PACED, *words))


@pytest.mark.more
def test_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(racing, "PATIENCE_SECONDS", 20.0)
    there = descendants(os.getpid())  # other tests may have left some, such as multiprocessing's resource tracker
    raced = race(
        TINY,
        [
            paced(PLAIN, seconds=0.05),
            paced("slow", seconds=0.2),
            paced(MATRIX_PRODUCT, parameters=0, seconds=0.01),
            paced("dies at once", dies_in=0),
            paced("dies later", dies_in=2),
            paced("other", parameters=5),
            paced("lazy", moved=0.1),
            Contender("missing", ("/no/such/program",)),
        ],
        rounds=3,
    )
    by_name = {result.contender: result for result in raced}
    assert raced[-1].contender == MATRIX_PRODUCT
    plain, slow, product = by_name[PLAIN], by_name["slow"], by_name[MATRIX_PRODUCT]
    assert len(slow.seconds) == 3
    assert min(slow.seconds) >= 0.2
    assert slow.speed == statistics.median(p / s for p, s in zip(plain.seconds, slow.seconds, strict=True))
    assert slow.gflops == pytest.approx(count_flops(TINY) / statistics.median(slow.seconds) / 1e9)
    best = MATRIX_PRODUCT_FLOPS / statistics.median(product.seconds) / 1e9
    assert product.gflops == pytest.approx(best)
    assert (product.share, product.speed) == (1, None)
    assert slow.share == pytest.approx((slow.gflops or 0) / best)
    assert {result.contender: result.failure for result in raced if result.failure} == {
        "dies at once": "it ended without an answer: what went wrong",
        "dies later": "it ended without an answer: what went wrong",
        "other": f"its model has 5 parameters, not {PARAMETERS}",
        "lazy": "its model moved by 0.1 in a round, the plain loop's by 1",
        "missing": "/no/such/program: No such file or directory",
    }
    assert (slow.memory_bytes or 0) > 1e6 or not can_measure()
    assert set(descendants(os.getpid())) <= set(there) or not can_measure()


@pytest.mark.more
def test_a_contender_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(racing, "PATIENCE_SECONDS", 3.0)
    contenders = [paced(PLAIN), paced(MATRIX_PRODUCT, parameters=0), paced("hangs", seconds=60)]
    result = next(each for each in race(TINY, contenders, rounds=1) if each.contender == "hangs")
    assert result.failure == "no answer for 3 s"


def test_without_the_plain_loop_there_is_no_race() -> None:
    with pytest.raises(RunError, match=r"the benchmark's plain loop failed \(it ended without an answer: what went"):
        race(TINY, [paced(PLAIN, dies_in=0), paced(MATRIX_PRODUCT)], rounds=1)


HOLDING = """
import os, sys, time
held = bytearray(os.urandom(1)) * 100_000_000
done, say = os.pipe()
for _ in range(2):
    if os.fork() == 0:
        own = bytearray(os.urandom(1)) * 50_000_000
        os.write(say, b".")
        time.sleep(60)
more = bytearray(os.urandom(1)) * 70_000_000
del more
for _ in range(2):
    os.read(done, 1)
print("ready", flush=True)
time.sleep(60)
"""


@linux
def test_memory_counts_what_is_shared_once_and_what_was_given_back() -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDING], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout
        process.stdout.readline()
        assert len(descendants(process.pid)) == 3
        megabytes = peak_bytes(process.pid) / 1e6
    finally:
        os.killpg(process.pid, 9)
        process.communicate()
    assert 270 < megabytes < 320  # 100 shared, 2 x 50, 70 given back; Python itself takes a little


def test_the_table_says_who_was_skipped() -> None:
    done = RaceResult("mlp, 10 clients", "cores", (0.1, 0.3, 0.2), 2.5, 100.0, 0.75, 450_000_000)
    lines = as_markdown([done, RaceResult("mlp, 10 clients", "Other", failure="not there")]).splitlines()
    assert lines[2:] == ["| mlp, 10 clients | cores | 0.2 | 2.50 | 100.0 | 75% | 450 MB |"]
