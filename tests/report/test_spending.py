"""The picture of what a private schedule spends."""

import numpy as np
import pytest

from atoll import InputError
from atoll.report.figures.privacy_figure import plot_spending


def test_each_cluster_has_a_line_and_the_worst_client_one_on_top() -> None:
    epsilons = np.array([[0.0, 0.0], [1.0, 2.0], [3.0, 2.5]])
    (ax,) = plot_spending(np.array([0, 1, 2]), epsilons, "tiny").axes
    lines = [np.asarray(line.get_ydata()).tolist() for line in ax.lines]
    assert [0.0, 1.0, 3.0] in lines
    assert [0.0, 2.0, 2.5] in lines
    assert lines[-1] == [0.0, 2.0, 3.0]
    assert ax.get_title() == "tiny"


def test_without_noise_there_is_nothing_to_draw() -> None:
    with pytest.raises(InputError, match="without noise, epsilon is not finite"):
        plot_spending(np.array([0, 1]), np.array([[0.0], [np.inf]]))
