"""What clients hold, drawn."""

import numpy as np

import atoll
from atoll import Experiment, make_population
from atoll.data.feature_means import MOST, feature_means
from atoll.report.figures.holdings import plot_holdings
from atoll.settings.validation import validate


def test_features_tell_turned_images_apart() -> None:
    wanted = {"clients": 8, "skew": "rotation", "skew_levels": 2, "angle": 180.0}
    population = Experiment(validate({"data": wanted})).clients.dealt
    found = feature_means(population, range(8))
    assert found.names[:2] == ("brightness", "contrast")
    assert found.names[-1] == "block 3, 3"
    side = found.values[:, found.names.index("block 2, 3")]  # which a quarter turn makes darker or brighter
    low, high = sorted((side[:4], side[4:]), key=np.mean)
    assert low.max() < high.min()


def test_features_of_tables_are_their_columns_in_deviations() -> None:
    inputs = np.array([[0.0, 5], [0, 5], [2, 5], [2, 5]])
    targets = np.array([0, 1, 0, 1])
    data = atoll.Dataset("own", inputs, targets, inputs, targets, 2, names={"inputs": ("age", "dose")})
    found = feature_means(make_population(data, np.array([[0, 1], [2, 3]])), [0, 1])
    assert found.names == ("age", "dose")
    np.testing.assert_allclose(found.values, [[-1, 0], [1, 0]])


def test_of_many_features_those_are_told_in_which_clients_differ_most() -> None:
    inputs = np.random.default_rng(0).normal(size=(400, 200))
    inputs[:200, 17] += 3
    data = atoll.Dataset("wide", inputs, np.arange(400) % 2, inputs, np.arange(400) % 2, 2)
    found = feature_means(make_population(data, [np.arange(200), np.arange(200, 400)]), [0, 1])
    assert len(found.names) == MOST
    assert found.names[np.abs(found.values[0]).argmax()] == "input 17"


def test_samples_classes_and_features_stand_below_each_other() -> None:
    figure = plot_holdings([[3, 1], [0, 5]], [[1, -2, 0], [0, 1, 0]], ["a", "b", "c"], "Two", ["no", "yes"])
    sizes, shares, features = figure.axes[:3]
    assert [bar.get_height() for bar in sizes.patches] == [4, 5]  # type: ignore[attr-defined]
    np.testing.assert_allclose(np.asarray(shares.images[0].get_array()), [[0.75, 0], [0.25, 1]])
    np.testing.assert_allclose(np.asarray(features.images[0].get_array()), [[1, 0], [-2, 1], [0, 0]])
    assert features.images[0].get_clim() == (-2, 2)
    assert [[label.get_text() for label in ax.get_yticklabels()] for ax in (shares, features)] == [
        ["no", "yes"],
        ["a", "b", "c"],
    ]


def test_numbers_to_predict_have_no_classes_to_share() -> None:
    figure = plot_holdings([[3], [5]], [[1, -2], [0, 1]], ["a", "b"])
    sizes, features = (ax for ax in figure.axes if ax.get_label() != "<colorbar>")
    assert [bar.get_height() for bar in sizes.patches] == [3, 5]  # type: ignore[attr-defined]
    assert [label.get_text() for label in features.get_xticklabels()] == ["0", "1"]


def test_labels_beside_low_panels_do_not_overlap() -> None:
    figure = plot_holdings([[3, 1], [0, 5]], [[1, -2], [0, 1]], ["a", "b"])
    figure.canvas.draw()
    bars = [ax for ax in figure.axes if ax.get_label() == "<colorbar>"]
    boxes = [bar.yaxis.label.get_window_extent() for bar in bars]
    assert len(boxes) == 2
    assert boxes[0].y0 > boxes[1].y1
    assert min(box.y0 for box in boxes) >= 0
