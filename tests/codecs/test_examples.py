"""Small functions of codecs, by example."""

import torch

from atoll.codecs.number_codecs import count_of, raw


def test_bytes_of_a_tensor_and_numbers_that_are_sent() -> None:
    assert raw(torch.tensor([1, 2], dtype=torch.int16)) == b"\x01\x00\x02\x00"
    assert (count_of(10, 0.05), count_of(1000, 0.1)) == (1, 100)
