"""Generators for many keys at once are, to the bit, those made one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.support.many_seeds import generators
from atoll.support.seeds import generator

KEYS = st.lists(st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=2), min_size=1, max_size=5)


@given(st.integers(0, 2**130), st.text("abcåé-", max_size=9), KEYS)
def test_they_draw_what_those_made_one_by_one_draw(seed: int, purpose: str, keys: list[list[int]]) -> None:
    for key, ours in zip(keys, generators(seed, purpose, np.array(keys)), strict=True):
        theirs = generator(seed, purpose, *key)
        for draws in (ours, theirs):
            draws.integers(9)  # leaves half of 64 bits, which the next generator must not have
        assert ours.integers(2**63) == theirs.integers(2**63)
        assert ours.random() == theirs.random()


@pytest.mark.parametrize(("purpose", "key"), [("", (0,)), ("x", ()), ("batches", (1, 2, 3, 4, 5))])
def test_keys_of_any_length_do(purpose: str, key: tuple[int, ...]) -> None:
    (ours,) = generators(7, purpose, np.array([key], dtype=np.int64).reshape(1, -1))
    assert ours.integers(2**63) == generator(7, purpose, *key).integers(2**63)
