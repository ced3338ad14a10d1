"""k-ary response and epsilon, by example."""

import math

import pytest

from atoll.privacy.mechanism import response_epsilon, response_noise
from atoll.privacy.privacy_plan import finite


def test_noise_of_a_response() -> None:
    assert response_noise(2, math.log(3)) == pytest.approx(0.5, abs=1e-12)
    assert response_epsilon(response_noise(4, 1.5), 4) == pytest.approx(1.5, abs=1e-12)


def test_epsilon_as_json() -> None:
    assert (finite(math.inf), finite(1.5)) == (None, 1.5)
