"""Small functions that all rooms use, by example."""

from pathlib import Path

import numpy as np
import pytest
import torch

from atoll.support.arrays import least
from atoll.support.errors import InputError, blaming, is_full, reading, refusing
from atoll.support.estimates import estimate, estimate_share, holm, paired_p, t_point
from atoll.support.extras import pip_install
from atoll.support.files import seal
from atoll.support.requiring import plain, require
from atoll.support.seeds import layers_drawing_from
from atoll.support.wording import allowed, natural, nearest, show, slug, unknown


def test_the_least_number_of_each_row() -> None:
    assert least(np.array([[np.nan, 2.0, 1.0], [np.nan, np.nan, np.nan]])).tolist() == [2, 0]


def test_errors_say_where(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^network\.clients_file: a has no rows$"), reading("network.clients_file"):
        raise InputError("a has no rows")
    with pytest.raises(InputError, match=r"^a: damaged \(No such file or directory\)$"), refusing("a: damaged"):
        (tmp_path / "missing.csv").read_text()
    with pytest.raises(InputError, match=r"^mine: failed \(ZeroDivisionError: "), blaming("mine: failed", InputError):
        assert 1 / 0
    assert is_full(OSError(28, "No space left on device"))
    assert not is_full(OSError(2, "No such file"))


def test_estimates() -> None:
    assert t_point(5) == pytest.approx(2.776, abs=1e-3)
    assert paired_p([1.0, 2.0, 3.0]) == pytest.approx(0.0742, abs=1e-4)
    assert (paired_p([0.0, 0.0]), paired_p([1.0])) == (1.0, None)
    assert holm([0.04, 0.01, None, 0.03]) == [0.06, 0.03, None, 0.06]
    whole, share = estimate([1.0, 2.0, 3.0]), estimate_share([0.99, 0.999, 0.95])
    assert (whole.n, whole.mean, whole.std) == (3, 2.0, 1.0)
    assert (whole.low, whole.high) == pytest.approx((-0.484, 4.484), abs=1e-3)
    assert (share.mean, share.std, share.low, share.high) == pytest.approx((0.9797, 0.0261, 0.793, 0.998), abs=1e-3)


def test_packages_and_checksums() -> None:
    assert pip_install("privacy") == "pip install 'dp-accounting>=0.6'"
    assert seal(b'{"event": 3}') == b'{"event": 3, "crc32": "51be3ca8"}'


def test_values_as_a_file_holds_them() -> None:
    assert plain({"rounds": np.int64(5), "grid": (2, np.float32(0.5))}) == {"rounds": 5, "grid": [2, 0.5]}
    assert type(require("local.steps", np.int64(3), int)) is int


def test_layers_are_drawn_from_a_seed() -> None:
    drawn = []
    for _ in range(2):
        with layers_drawing_from(0, "model"):
            drawn.append(float(torch.rand(1)))
    assert drawn[0] == drawn[1]


def test_words() -> None:
    assert sorted(["figure-10", "figure-9", "figure"], key=natural) == ["figure", "figure-9", "figure-10"]
    assert unknown("learning_rate", ["lr", "steps"]) == "unknown, did you mean 'lr'? Allowed: lr, steps"
    assert nearest("FedAvg", ["fedavg", "local"]) == "fedavg"
    assert nearest("local_epochs", ["epochs", "lr"]) == "epochs"
    assert nearest("zzz", ["lr"]) is None
    assert (show(True), show(None), show("a")) == ("true", "unset", "'a'")
    assert slug("CFL-MGD, seed 3") == "cfl-mgd-seed-3"
    whole = {"anyOf": [{"type": "integer", "minimum": 1}, {"const": "full"}]}
    assert allowed(whole) == "a whole number of at least 1, or 'full'"
    pair = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
    assert allowed(pair) == "a list of 2, each entry a whole number"
