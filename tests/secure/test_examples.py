"""How many nodes must answer, by example."""

from atoll.secure.roster import threshold_of


def test_thresholds_are_more_than_half() -> None:
    assert (threshold_of(2 / 3, 2), threshold_of(2 / 3, 6), threshold_of(0.5, 6)) == (2, 4, 4)
