"""What a node tells with noise in it: cut, drawn once, and charged in the ledger of its client."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kstest

from atoll import InputError, make_population
from atoll.fleet.agreed.messages import (
    ClientReport,
    DescribeReply,
    DescribeRequest,
    LossesReply,
    LossesRequest,
    Refusal,
    TrainReply,
    TrainRequest,
    decode,
    decode_reply,
    encode,
    pack,
)
from atoll.fleet.agreed.terms import announce
from atoll.fleet.folder.configuration import read_node
from atoll.fleet.node.epsilon_ledger import ClientLedger, read_ledger
from atoll.fleet.node.handlers import answer
from atoll.fleet.node.node import Node, Reporting, open_site
from atoll.fleet.node.noise_added import Hidden
from atoll.fleet.node.shards import write_shards
from atoll.fleet.node.sites import Sites
from atoll.fleet.node.store import FolderStore, Store
from atoll.fleet.node.work_count import WorkBudget
from atoll.privacy.accounting import epsilon_of
from atoll.privacy.mechanism import Cost
from tests.fleets import agreement_of, small
from tests.memory_store import MemoryStore

pytest.importorskip("dp_accounting")

EXPERIMENT = small(method={"name": "ifca", "clusters": 2, "fraction": 1.0}, model={"name": "linear"})
CLIENT = small(privacy={"trust": "client", "clip": 1.0, "noise": 2.0}, model={"name": "linear"})
DRAWS = 4000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(EXPERIMENT, tmp_path_factory.mktemp("data"))[1]


def node(folder: Path, hidden: Hidden | None, made: Any = EXPERIMENT, **more: Any) -> Node:
    budget = more.pop("budget", None)
    return open_site(made.settings, folder, 1, Reporting(hidden=hidden, **more), budget)


def said_by(site: Node, store: Store) -> ClientReport:
    request = DescribeRequest(settings_digest=site.agreement.digest, nonce="ab")
    return decode(answer(site, store, "describe", encode(request)), DescribeReply)[0].clients[0]


@pytest.mark.parametrize(("samples", "cut"), [(30, 30), (5000, 100)])
def test_samples_are_cut_and_have_noise(samples: int, cut: int) -> None:
    hidden = Hidden(noise=0.1, most_samples=100)
    drawn = np.array([hidden.samples(samples) for _ in range(DRAWS)])
    assert drawn.mean() == pytest.approx(cut, abs=5 * 10 / math.sqrt(DRAWS))
    assert drawn.std() == pytest.approx(10, rel=0.05)
    assert min(Hidden(noise=9.0, most_samples=100).samples(1) for _ in range(100)) == 1


def test_class_counts_are_a_vector_of_bounded_length() -> None:
    counts = np.array([3000, 4000, 0])  # of length 5000
    drawn = np.array([Hidden(noise=0.01, most_samples=1000).counts(counts) for _ in range(DRAWS)])
    assert drawn[:, :2].mean(axis=0) == pytest.approx([600, 800], abs=1)
    assert drawn[:, :2].std(axis=0) == pytest.approx([10, 10], rel=0.05)
    assert (drawn >= 0).all()
    assert Hidden(noise=1e-9, most_samples=1000).counts(np.array([0, 0])).tolist() == [1, 1]


def test_with_other_data_counts_may_change_by_the_root_of_two() -> None:
    """Samples of one class, and of another, differ by B on two axes; without the client, by B on one."""
    hidden = Hidden(noise=2.0, most_samples=100)
    apart = np.linalg.norm(np.subtract([100, 0], [0, 100])) / hidden.most_samples
    assert hidden.cost_of_counts("replace").gaussians == pytest.approx([hidden.noise / apart])
    assert hidden.cost_of_counts("zero-out").gaussians == (hidden.noise,)


def test_losses_are_a_vector_of_bounded_length() -> None:
    """Of P losses between 0 and B the length is at most B times the root of P, which the noise is fitted to."""
    hidden = Hidden(noise=2.0, most_samples=1, most_loss=3.0)
    drawn = np.array([hidden.losses(np.array([-1.0, 9.0, np.nan, 1.5])) for _ in range(DRAWS)])
    deviation = 2.0 * 3.0 * 2
    assert drawn.mean(axis=0) == pytest.approx([0, 3, 3, 1.5], abs=5 * deviation / math.sqrt(DRAWS))
    assert kstest((drawn[:, 1] - 3) / deviation, "norm").pvalue > 1e-4


def test_a_report_is_drawn_once_and_charged_once(folder: Path, tmp_path: Path) -> None:
    site = node(folder, hidden := Hidden(noise=2.0, most_samples=50), class_counts=True)
    first = said_by(site, FolderStore(tmp_path))
    assert first.class_counts is not None
    assert first.samples == sum(first.class_counts)
    assert first.epsilon is None, "an estimate needs nothing more"
    assert all(said_by(site, FolderStore(tmp_path)) == first for _ in range(3)), "as after restarts"
    assert read_ledger(FolderStore(tmp_path), 1).epsilon(1e-5) == epsilon_of(hidden.cost, 1, 1e-5)
    assert len({said_by(site, MemoryStore()).class_counts for _ in range(5)}) > 1


def test_what_is_told_of_a_training_says_no_more(folder: Path) -> None:
    """Samples as reported; and samples in batches that follow from these."""
    full = small(model={"name": "linear"}, local={"batch_size": "full"})
    for made in (EXPERIMENT, full):
        site, store = node(folder, Hidden(noise=5.0, most_samples=50), made), MemoryStore()
        told = said_by(site, store).samples
        (start,) = made.training.initial_models()[:1]
        common: dict[str, Any] = {"event": 0, "drawn_as": 0, "round": 0, "repeat": 0, "cluster": 0, "client": 1}
        request = TrainRequest(settings_digest=site.agreement.digest, nonce="ab", **common)
        reply, _ = decode(answer(site, store, "train", encode(request) + pack([start])), TrainReply)
        assert reply.samples == told
        assert reply.passed == 3 * (told if made is full else 30)
        again = said_by(site, store)
        assert again.seconds_per_sample == pytest.approx(reply.seconds / reply.passed)


def test_epochs_count_as_the_steps_that_they_are(folder: Path) -> None:
    """20 steps, were `local.steps` counted, which epochs replace."""
    made = small(local={"epochs": 3.0, "batch_size": 4})
    site = node(folder, None, made)
    samples = int(site.population.sizes[1])
    assert site.agreement.passed_by(samples) == 4 * made.method.rule.steps_of(samples) > 4 * made.method.rule.steps
    assert site.agreement.can_pass(16 * site.agreement.passed_by(samples), samples)
    assert not site.agreement.can_pass(16 * site.agreement.passed_by(samples) + 1, samples)


def losses_of(site: Node, store: Store) -> LossesReply | Refusal:
    request = LossesRequest(settings_digest=site.agreement.digest, nonce="ab", round=0, client=1)
    reply = answer(site, store, "losses", encode(request) + pack(EXPERIMENT.training.initial_models()))
    return decode_reply(reply, LossesReply)[0]


def test_losses_have_new_noise_each_time_and_each_is_charged(folder: Path) -> None:
    hidden = Hidden(noise=2.0, most_samples=50, most_loss=3.0)
    site, store = node(folder, hidden), MemoryStore()
    told = [losses_of(site, store) for _ in range(3)]
    assert len({reply.losses for reply in told if isinstance(reply, LossesReply)}) == 3
    assert read_ledger(store, 1).epsilon(1e-5) == epsilon_of(Cost((2.0,)), 3, 1e-5)
    plain = node(folder, Hidden(noise=2.0, most_samples=50)), MemoryStore()
    assert len({losses_of(*plain), losses_of(*plain)}) == 1
    assert read_ledger(plain[1], 1).charged == 0


def test_randomised_class_counts_are_in_the_same_ledger(folder: Path) -> None:
    """Each of 40 samples is epsilon-private, so the client is 40 epsilon-private; once, however often it is asked."""
    site, store = node(folder, None, class_counts=True, epsilon=0.5), MemoryStore()
    for _ in range(3):
        said_by(site, store)
    assert read_ledger(store, 1).epsilon(1e-5) == 40 * 0.5


HIDDEN = Hidden(noise=2.0, most_samples=50)


@pytest.mark.parametrize(("hidden", "class_counts"), [(HIDDEN, False), (HIDDEN, True), (None, True)])
def test_other_data_are_reported_and_charged_anew(folder: Path, hidden: Hidden | None, class_counts: bool) -> None:
    """The answer that is kept is about the data of then: of half of them it would say twice as many for ever."""
    site, store = node(folder, hidden, class_counts=class_counts, epsilon=None if hidden else 0.5), MemoryStore()
    said_by(site, store)
    half = site.population.samples(1)[::2]
    fewer = make_population(site.population.data, [half if k == 1 else site.population.samples(k) for k in range(4)])
    said_by(replace(site, population=fewer), store)
    assert read_ledger(store, 1).charged == 2
    assert read_ledger(store, 1).pure == (0.0 if hidden else 0.5 * (40 + 20))


def test_reports_that_the_owner_hides_in_another_way_are_drawn_and_charged_anew(folder: Path) -> None:
    """Each was drawn for its own noise, bound and kind, and is charged once, however often it is asked."""
    ways: list[dict[str, Any]] = [
        {"hidden": HIDDEN},
        {"hidden": replace(HIDDEN, noise=4.0)},
        {"hidden": replace(HIDDEN, most_samples=20)},
        {"hidden": HIDDEN, "class_counts": True},
        {"hidden": None, "class_counts": True, "epsilon": 0.5},
        {"hidden": None, "class_counts": True, "epsilon": 0.25},
    ]
    sites, store = [node(folder, **way) for way in ways], MemoryStore()
    assert [charged_for(site, store) for site in sites * 2] == [1, 2, 3, 4, 5, 6] + [6] * 6


def charged_for(site: Node, store: Store) -> int:
    said_by(site, store)
    return read_ledger(store, 1).charged


def test_reports_and_updates_share_a_budget(folder: Path) -> None:
    hidden = Hidden(noise=2.0, most_samples=50)
    enough = epsilon_of(Cost((2.0,)), 2, 1e-5) + 1e-9
    site, store = node(folder, hidden, CLIENT, budget=WorkBudget(epsilon=enough)), MemoryStore()
    said_by(site, store)
    (start,) = CLIENT.training.initial_models()[:1]
    common: dict[str, Any] = {"event": 0, "drawn_as": 0, "round": 0, "repeat": 0, "cluster": 0, "client": 1}
    request = TrainRequest(settings_digest=site.agreement.digest, nonce="ab", **common)
    replies = [answer(site, store, "train", encode(request) + pack([start])) for _ in range(2)]
    assert decode(replies[0], TrainReply)
    assert decode(replies[1], Refusal)[0].code == "over_budget"


@pytest.mark.parametrize("hidden", [Hidden(noise=2.0, most_samples=50), None])
def test_beside_private_reports_trainings_are_limited_by_default(folder: Path, hidden: Hidden | None) -> None:
    """Models without noise say more about the classes with each training, which the reports' epsilon does not count."""
    told: dict[str, Any] = {"class_counts": True, "epsilon": None if hidden else 0.5}
    rounds = EXPERIMENT.settings.rounds
    assert node(folder, hidden, **told).budget.trainings == 3 * rounds
    assert node(folder, hidden, **told, budget=WorkBudget(trainings=10**6)).budget.trainings == 10**6
    assert node(folder, None).budget.trainings is None
    steps = {"method": {"name": "hierarchical", "pattern": "censyn", "intra_rounds": 2}, "local": {"steps": 5}}
    events = small(rounds=20, **steps)
    asked = sum(event.intra_rounds for event in events.method.schedule.events)
    limit = open_site(events.settings, folder, 1, Reporting(**told, hidden=hidden)).budget.trainings
    assert limit == 3 * asked, "rounds are local steps there, which trainings have several of"
    if hidden:
        assert node(folder, hidden, CLIENT).budget.trainings is None  # each is in the ledger
    many = small(
        method={"name": "ifca", "clusters": 2, "fraction": 1.0}, model={"name": "linear"}, rounds=100 * rounds,
        local={"steps": 3, "lr": 0.3},
    )  # fmt: skip
    store, own = MemoryStore(), EXPERIMENT.settings
    sites = Sites([own], folder, 1, store, Reporting(**told, hidden=hidden), allowed=["rounds", "local.lr"])
    request = DescribeRequest(settings_digest=agreement_of(many).digest, nonce="ab", settings=announce(many.settings))
    decode(answer(sites, store, "describe", encode(request)), DescribeReply)
    assert sites.find(agreement_of(many).digest).budget.trainings == 3 * rounds


def test_a_report_that_the_budget_does_not_cover_is_refused(folder: Path) -> None:
    site = node(folder, Hidden(noise=2.0, most_samples=50), CLIENT, budget=WorkBudget(epsilon=0.1))
    request = DescribeRequest(settings_digest=site.agreement.digest, nonce="ab")
    lines = list[str]()
    reply = answer(site, MemoryStore(), "describe", encode(request), lines.append)
    assert decode(reply, Refusal)[0].code == "over_budget"
    assert "client 1's epsilon would be" in lines[0]


def test_what_hides_nothing_is_refused(folder: Path) -> None:
    for values in ({"noise": 0.0}, {"noise": math.inf}, {"most_samples": 0}, {"most_loss": -1.0}):
        with pytest.raises(InputError, match=rf"reports\.{next(iter(values))}"):
            Hidden(**{"noise": 1.0, "most_samples": 10, **values})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"= 0.5: needs class_counts \(--class-counts\), which it randomises$"):
        Reporting(epsilon=0.5)
    with pytest.raises(InputError, match=r"epsilon = 0.5: cannot be used with \[reports\]"):
        Reporting(class_counts=True, epsilon=0.5, hidden=Hidden(1.0, 10))
    with pytest.raises(InputError, match="class_counts = true: tells them exactly"):
        node(folder, None, CLIENT, class_counts=True)


TOML = 'server = "localhost:9092"\nname = "node-0"\nclients = [0]\n'


def test_node_toml_says_it(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    reports = "[reports]\nnoise = 2.0\nmost_samples = 500\nmost_loss = 3.0\n"
    path.write_text(TOML + "most_epsilon = 3.5\ndelta = 1e-5\n" + reports)
    found = read_node(path)
    assert found.reports == Hidden(2.0, 500, 3.0)
    assert (found.budget.epsilon, found.budget.delta) == (3.5, 1e-5)
    path.write_text(TOML + "delta = 1e-7\n")
    assert (read_node(path).budget.epsilon, read_node(path).budget.delta) == (None, 1e-7)


def test_a_delta_in_node_toml_holds_without_an_epsilon_there(folder: Path) -> None:
    """So the owner's copy says how much may be spent, and node.toml at which delta."""
    told = {"trust": "client", "clip": 1.0, "noise": 2.0, "epsilon": 30.0, "delta": 1e-4}
    made = small(privacy=told, model={"name": "linear"})
    for own, used in ((None, 1e-4), (1e-7, 1e-7)):
        budget = node(folder, None, made, budget=WorkBudget(delta=own)).budget
        assert (budget.epsilon, budget.delta) == (30.0, used)
    spent = ClientLedger().plus(Cost((2.0,)), pure=0.0)
    assert spent.epsilon(None) == spent.epsilon(1e-5) != spent.epsilon(1e-4)


@pytest.mark.parametrize(
    "line", ["most_epsilon = 0", "delta = 1.0", "[reports]\nnoise = 0\nmost_samples = 5", "[reports]\nnoise = 1.0"]
)
def test_what_node_toml_may_not_say(line: str, tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text(TOML + line + "\n")
    with pytest.raises(InputError, match=r"node\.toml: (most_epsilon|delta|reports)"):
        read_node(path)
