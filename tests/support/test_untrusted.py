"""Files from elsewhere: what is read of them takes as much memory as they have, not as much as they may have."""

from pathlib import Path

import pytest

from atoll.support.untrusted import parse_json, read_bytes


def test_a_high_limit_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"abc")
    assert read_bytes(tmp_path / "small", most=2**62) == b"abc"


@pytest.mark.parametrize("length", [0, 3, 4])
def test_a_file_is_read_up_to_the_limit(length: int, tmp_path: Path) -> None:
    (tmp_path / "some").write_bytes(b"x" * length)
    if length <= 3:
        assert read_bytes(tmp_path / "some", most=3) == b"x" * length
    else:
        with pytest.raises(OSError, match="is longer than"):
            read_bytes(tmp_path / "some", most=3)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "-Infinity"])
def test_a_number_that_is_not_finite_is_refused(number: str) -> None:
    with pytest.raises(ValueError, match=f"it has the number {number}, which is not finite"):
        parse_json(f'{{"a": [0.5, {number}]}}'.encode())
    assert parse_json(b"[0.1, 1e308, 1e-999]") == [0.1, 1e308, 0.0]
