"""Small functions that nodes and server share, by example."""

import time

import numpy as np
import pytest

from atoll.fleet.agreed.randomised_response import answer_odds
from atoll.fleet.agreed.terms import is_allowed, show
from atoll.fleet.agreed.transport import clients_of, samples_of
from atoll.fleet.agreed.waiting import listed, passed
from atoll.fleet.node.versions import name_of, named


def test_odds_of_answers() -> None:
    assert answer_odds(2, np.log(3)) == pytest.approx((0.75, 0.25))


def test_terms() -> None:
    assert is_allowed("method.name", "ifca", ["method.*"])
    assert not is_allowed("method.name", "os:remove", ["method.*"])
    assert show({"local.lr": 0.1}, ["local.lr", "local.steps"]) == "local.lr = 0.1, local.steps unset"


def test_clients_and_samples_of_a_node() -> None:
    assert (clients_of({"client": 3}), clients_of({"clients": "0,4"})) == ((3,), (0, 4))
    assert samples_of({"clients": "0,4", "samples": "40,70"}) == {0: 40, 4: 70}
    assert samples_of({"client": 3}) == {}


def test_times_and_names_in_sentences() -> None:
    assert passed(time.monotonic() - 200) == "200 s"
    assert listed(["b", "a", "c"], most=2) == "a, b and 1 more"
    assert name_of(named("00ff")) == "00ff"
