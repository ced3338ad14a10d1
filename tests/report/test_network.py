"""Figures of networks and clusterings: the map, completion times, grouped bars, size against frequency or links."""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.collections import Collection, LineCollection, PathCollection, PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from atoll.report.figures.before_training import plot_gantt
from atoll.report.figures.comparisons import OVER_COLOR, plot_bars, plot_completion
from atoll.report.figures.network_map import LEFT_OUT_COLOR, MARKERS, cluster_styles, plot_map
from atoll.report.figures.sizes import plot_size_against, rank_correlation
from atoll.report.figures.style import BLUE, PALE_BLUE, PALETTE
from atoll.support.errors import InputError
from tests.report.test_report import legend_texts, render
from tests.tiers import part_of, thinned

CLIENTS = [[1.0, 1.0], [9.0, 1.0], [2.0, 8.0], [5.0, 5.0]]
AGGREGATORS = [[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]]


def grid_of(side: int) -> tuple[np.ndarray[Any, Any], list[list[int]]]:
    """Positions and neighbours of side x side aggregators, 10 m apart."""
    xy = np.array([[10.0 * (j % side), 10.0 * (j // side)] for j in range(side * side)])
    near = [[k for k in range(side * side) if np.isclose(np.abs(xy[j] - xy[k]).sum(), 10)] for j in range(side * side)]
    return xy, near


def points_of(figure: Figure) -> list[tuple[float, float, str, str]]:
    """Every point of the first axes: x, y, face and edge colour."""
    found = []
    for dots in collections_of(figure, PathCollection):
        offsets = np.asarray(dots.get_offsets())
        faces, edges = (np.asarray(colors) for colors in (dots.get_facecolor(), dots.get_edgecolor()))
        for i, (x, y) in enumerate(offsets):
            found.append((float(x), float(y), to_hex(faces[i % len(faces)]), to_hex(edges[i % len(edges)])))
    return found


def collections_of(figure: Figure, kind: type[Any], axes: int = 0) -> list[Any]:
    return [each for each in figure.axes[axes].collections if isinstance(each, kind) and has_points(each)]


def has_points(each: Collection) -> bool:
    return not isinstance(each, PathCollection) or len(np.asarray(each.get_offsets())) > 0


def bars_of(figure: Figure) -> list[Any]:
    return list(figure.axes[0].patches)


def texts_of(figure: Figure, axes: int = 0) -> list[str]:
    return [text.get_text() for text in figure.axes[axes].texts]


class TestMap:
    def test_clients_and_aggregators_have_their_cluster_s_colour(self) -> None:
        figure = plot_map(CLIENTS, AGGREGATORS, [0, 1, 0, -1], title="Three")
        first, second, third = PALETTE[:3]
        grey, dark, white = to_hex(LEFT_OUT_COLOR), to_hex("#222222"), to_hex("white")
        assert sorted(points_of(figure)) == sorted(
            [
                (1, 1, first.lower(), white),
                (9, 1, second.lower(), white),
                (2, 8, first.lower(), white),
                (5, 5, grey, grey),
                (0, 0, first.lower(), dark),
                (10, 0, second.lower(), dark),
                (0, 10, white, third.lower()),  # hollow: it has no client
            ]
        )
        assert legend_texts(figure) == ["Client", "Client left out", "Aggregator", "Empty aggregator"]
        assert texts_of(figure) == ["0", "1", "2"]
        assert render(figure)

    def test_lines_tie_clients_to_aggregators_and_neighbours_once(self) -> None:
        figure = plot_map(CLIENTS, AGGREGATORS, [0, 1, 0, -1], neighbours=[[1, 2], [0], [0]])
        links, spokes = (
            {tuple(map(tuple, np.asarray(segment).tolist())) for segment in lines.get_segments()}
            for lines in collections_of(figure, LineCollection)
        )
        assert links == {((0, 0), (10, 0)), ((0, 0), (0, 10))}
        assert spokes == {((1, 1), (0, 0)), ((9, 1), (10, 0)), ((2, 8), (0, 0))}
        assert legend_texts(figure)[-1] == "Neighbours"

    def test_axes_are_equal_and_in_metres(self) -> None:
        axes = plot_map(CLIENTS, AGGREGATORS, [0, 1, 2, 2], server_xy=[12, 3], title="T").axes[0]
        assert axes.get_aspect() == 1
        assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("x (metres)", "y (metres)", "T")
        assert axes.get_xlim() == pytest.approx((-0.48, 12.48))
        assert axes.get_ylim() == pytest.approx((-0.48, 10.48))

    def test_server_is_marked(self) -> None:
        figure = plot_map(CLIENTS, AGGREGATORS, [0, 1, 2, 2], server_xy=[12, 3])
        assert (12, 3, "#000000", "#ffffff") in points_of(figure)
        assert legend_texts(figure) == ["Client", "Aggregator", "Server"]

    def test_one_client_on_its_aggregator(self) -> None:
        assert render(plot_map([[3, 3]], [[3, 3]], [0], [3, 3], [[]]))

    def test_nobody_belongs_to_a_cluster(self) -> None:
        assert legend_texts(plot_map([[3, 3]], [[4, 4]], [-1])) == ["Client left out", "Empty aggregator"]

    @pytest.mark.more
    def test_many_are_drawn_fast_and_without_numbers(self) -> None:
        rng = np.random.default_rng(0)
        xy, near = grid_of(10)
        start = time.perf_counter()
        figure = plot_map(rng.uniform(0, 100, (2000, 2)), xy, rng.integers(0, 100, 2000), neighbours=near)
        assert render(figure)
        assert time.perf_counter() - start < 10
        assert len(points_of(figure)) == 2100
        assert texts_of(figure) == []

    @pytest.mark.parametrize("side", [2, 3, 4, 5, 10])
    def test_neighbours_on_a_grid_differ_in_colour(self, side: int) -> None:
        xy, near = grid_of(side)
        colors, _ = cluster_styles(xy)
        assert all(colors[j] != colors[k] for j, others in enumerate(near) for k in others)

    @settings(max_examples=part_of(50), deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=49))
    def test_no_two_clusters_look_alike(self, points: list[tuple[int, int]]) -> None:
        colors, markers = cluster_styles(np.array(points, dtype=np.float64))
        assert len(set(zip(colors.tolist(), markers.tolist(), strict=True))) == len(points)
        assert colors.max() < len(PALETTE)
        assert markers.max() < len(MARKERS)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"clients_xy": [1.0, 2.0]}, r"clients_xy must be of shape \[clients, 2\] and not empty"),
            ({"clients_xy": np.empty((0, 2))}, r"not empty, but its shape is \(0, 2\)"),
            ({"clients_xy": np.ones((4, 3))}, r"\(4, 3\)"),
            ({"clients_xy": [["a", "b"]] * 4}, "clients_xy must be numbers"),
            ({"clients_xy": [*CLIENTS[:3], [1.0, math.nan]]}, r"clients_xy\[3, 1\] = nan: must be a finite number"),
            ({"aggregators_xy": [[0.0, math.inf]]}, r"aggregators_xy\[0, 1\] = inf: must be"),
            ({"server_xy": [1.0, 2.0, 3.0]}, r"server_xy must be of shape \[2\]"),
            ({"server_xy": [math.nan, 2.0]}, r"server_xy\[0\] = nan"),
            ({"labels": [0, 1, 3, 0]}, r"labels\[2\] = 3: must be an aggregator from 0 to 2, or -1"),
            ({"labels": [0, 1, -2, 0]}, r"labels\[2\] = -2: must be"),
            ({"labels": [0, 1]}, "labels must be 4 whole numbers, one a client"),
            ({"labels": [0.0, 1.0, 1.0, 1.0]}, "not float64"),
            ({"neighbours": [[1]]}, "neighbours has 1 entries, but there are 3 aggregators"),
            ({"neighbours": [[3], [], []]}, "neighbours: 0 and 3 must be two aggregators from 0 to 2"),
            ({"neighbours": [[0], [], []]}, "neighbours: 0 and 0 must be two"),
        ],
    )
    def test_bad_input(self, change: dict[str, Any], message: str) -> None:
        good: dict[str, Any] = {"clients_xy": CLIENTS, "aggregators_xy": AGGREGATORS, "labels": [0, 1, 2, -1]}
        with pytest.raises(InputError, match=message):
            plot_map(**good | change)


class TestCompletion:
    def test_bars_and_one_limit(self) -> None:
        figure = plot_completion([1.0, 3.5, 0.0, 3.0], 3.0, "Four")
        axes = figure.axes[0]
        assert [bar.get_height() for bar in bars_of(figure)] == [1, 3.5, 0, 3]
        assert [to_hex(bar.get_facecolor()) for bar in bars_of(figure)] == [
            color.lower() for color in (BLUE, OVER_COLOR, BLUE, BLUE)
        ]
        (limit,) = collections_of(figure, LineCollection)
        assert [np.asarray(each).tolist() for each in limit.get_segments()] == [
            [[j - 0.5, 3], [j + 0.5, 3]] for j in range(4)
        ]
        ((x, _, _, _),) = points_of(figure)
        assert x == 2  # the cross of the aggregator without clients
        assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == (
            "Aggregator",
            "Completion time (seconds)",
            "Four",
        )
        assert axes.get_ylim()[0] == 0
        assert legend_texts(figure) == ["Within the limit", "Over the limit", "Limit", "No clients"]
        assert render(figure)

    def test_each_aggregator_s_limit_in_minutes(self) -> None:
        figure = plot_completion([60.0, 120.0, 240.0], [120.0, math.inf, 180.0])
        assert [bar.get_height() for bar in bars_of(figure)] == [1, 2, 4]
        (limit,) = collections_of(figure, LineCollection)
        heights = [(float(np.asarray(s)[:, 0].mean()), float(np.asarray(s)[0, 1])) for s in limit.get_segments()]
        assert heights == [(0, 2), (2, 3)]
        assert figure.axes[0].get_ylabel() == "Completion time (minutes)"

    @pytest.mark.parametrize("limit", [None, math.inf])
    def test_without_a_limit(self, limit: float | None) -> None:
        figure = plot_completion([1.0, 2.0], limit)
        assert figure.legends == []
        assert render(figure)

    def test_limit_is_met_up_to_rounding(self) -> None:
        assert legend_texts(plot_completion([0.1 + 0.2], 0.3)) == ["Within the limit", "Limit"]

    def test_all_aggregators_empty(self) -> None:
        assert legend_texts(plot_completion([0.0, 0.0])) == ["No clients"]

    @pytest.mark.parametrize(
        ("seconds", "limit", "message"),
        [
            ([], None, r"completion_seconds must be of shape \[aggregators\]"),
            ([[1.0]], None, r"its shape is \(1, 1\)"),
            ([1.0, math.nan], None, r"completion_seconds\[1\] = nan: must be a finite number"),
            ([1.0, -2.0], None, r"completion_seconds\[1\] = -2: must not be negative"),
            ([1.0, 2.0], [3.0], r"limit_seconds has shape \(1,\), but there are 2 aggregators"),
            ([1.0], 0.0, "limit_seconds = 0.0: every limit must be positive"),
            ([1.0], [math.nan], "limit_seconds = .nan.: every limit must be positive"),
        ],
    )
    def test_bad_input(self, seconds: Any, limit: Any, message: str) -> None:
        with pytest.raises(InputError, match=message):
            plot_completion(seconds, limit)


class TestBars:
    def test_a_colour_a_series_and_a_place_a_group(self) -> None:
        figure = plot_bars(
            {"CenSyn": {"comaw": 1.0, "feduc": 0.5}, "CenAsy": {"feduc": 0.25}}, "Mean EMD", "T", "Pattern"
        )
        axes = figure.axes[0]
        middles = [round(bar.get_x() + bar.get_width() / 2, 6) for bar in bars_of(figure)]
        assert list(zip(middles, [bar.get_height() for bar in bars_of(figure)], strict=True)) == [
            (-0.2, 1.0),
            (0.2, 0.5),
            (1.2, 0.25),
        ]
        assert [to_hex(bar.get_facecolor()) for bar in bars_of(figure)] == [PALETTE[i].lower() for i in (0, 1, 1)]
        assert texts_of(figure) == ["1.00", "0.500", "0.250"]
        assert [label.get_text() for label in axes.get_xticklabels()] == ["CenSyn", "CenAsy"]
        assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("Pattern", "Mean EMD", "T")
        assert axes.get_ylim()[0] == 0
        assert legend_texts(figure) == ["comaw", "feduc"]
        assert axes.containers
        assert collections_of(figure, LineCollection) == []  # no whiskers
        assert render(figure)

    def test_seeds_give_mean_and_its_interval(self) -> None:
        figure = plot_bars({"a": {"x": [1.0, 2.0, 3.0], "y": [1000.0, 2000.0, 3000.0]}}, "Seconds")
        assert [bar.get_height() for bar in bars_of(figure)] == [2, 2000]
        whiskers = [
            np.asarray(lines.get_segments()[0])[:, 1].tolist() for lines in collections_of(figure, LineCollection)
        ]
        half = 4.302653 / math.sqrt(3)  # Student's t for three seeds; the deviation is 1
        assert whiskers == [pytest.approx([max(0.0, 2 - half), 2 + half]), pytest.approx([0, 1000 * (2 + half)])]
        assert texts_of(figure) == ["2.00", "2,000"]
        assert figure.axes[0].get_xlabel() == "Mean and 95 % t interval over 3 seeds"

    def test_whisker_does_not_go_below_zero(self) -> None:
        (lines,) = collections_of(plot_bars({"a": {"x": [0.0, 4.0]}}, "EMD"), LineCollection)
        assert np.asarray(lines.get_segments()[0])[:, 1].tolist() == pytest.approx([0, 2 + 12.7062 * 2])

    def test_many_bars_carry_no_numbers_and_long_names_lean(self) -> None:
        figure = plot_bars({f"CenSyn to {p} %": dict.fromkeys("abc", 1.0) for p in range(12)}, "Seconds")
        assert len(bars_of(figure)) == 36
        assert texts_of(figure) == []
        assert figure.axes[0].get_xticklabels()[0].get_rotation() == 30

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({}, "nothing to draw"),
            ({"a": {}}, "nothing to draw"),
            ({"a": {"x": []}}, r"values\['a'\]\['x'\] must be of shape \[seeds\] and not empty"),
            ({"a": {"x": math.nan}}, r"values\['a'\]\['x'\]\[0\] = nan: must be a finite number"),
            ({"a": {"x": [1.0, -1.0]}}, r"values\['a'\]\['x'\]\[1\] = -1: must not be negative"),
        ],
    )
    def test_bad_input(self, values: Any, message: str) -> None:
        with pytest.raises(InputError, match=message):
            plot_bars(values, "EMD")


class TestSizeAgainst:
    def test_points_line_and_correlation(self) -> None:
        figure = plot_size_against([0.1, 0.2, 0.3, 0.4], [1, 3, 2, 6], "Frequency", "T")
        axes = figure.axes[0]
        places = [point[:2] for point in points_of(figure)]
        np.testing.assert_allclose(places, [(0.1, 1), (0.2, 3), (0.3, 2), (0.4, 6)])
        assert texts_of(figure) == ["rank correlation 0.80"]
        (line,) = axes.lines
        np.testing.assert_allclose(
            np.asarray(line.get_xydata(), dtype=np.float64), [[0.1, 0.9], [0.4, 5.1]]
        )  # slope 14, mean 3 at 0.25
        assert (axes.get_xlabel(), axes.get_ylabel(), figure.get_suptitle()) == ("Frequency", "Clients", "T")
        assert legend_texts(figure) == ["Least-squares line"]
        assert render(figure)

    def test_equal_points_of_few_columns_stand_side_by_side(self) -> None:
        figure = plot_size_against([2, 3, 3, 2, 4, 3], [1, 5, 5, 3, 9, 5], "Links")
        middle = sorted(x for x, y, *_ in points_of(figure) if y == 5)
        assert middle == pytest.approx([2.91, 3.0, 3.09])
        assert {(round(x, 9), y) for x, y, *_ in points_of(figure) if y != 5} == {(2, 1), (2, 3), (4, 9)}
        (means,) = collections_of(figure, LineCollection)
        assert [np.asarray(each)[0, 1] for each in means.get_segments()] == [2, 5, 9]
        assert figure.axes[0].get_xticks().tolist() == [2, 3, 4]
        assert legend_texts(figure) == ["Mean"]

    def test_few_but_uneven_columns_have_readable_ticks(self) -> None:
        figure = plot_size_against([0.048, 0.049, 0.09] * 3, [1, 2, 9] * 3, "Frequency")
        assert legend_texts(figure) == ["Least-squares line"]
        assert [point[0] for point in points_of(figure)] == pytest.approx([0.048, 0.049, 0.09] * 3)
        figure.canvas.draw()
        texts = [label.get_window_extent() for label in figure.axes[0].get_xticklabels() if label.get_visible()]
        assert all(left.x1 < right.x0 for left, right in itertools.pairwise(texts))

    def test_many_panels_have_room_for_their_titles(self) -> None:
        panels = {f"clock, mu = 0.05, T = 500, {i}": [[0.1, 0.2, 0.3]] * 5 for i in range(8)}
        figure = plot_size_against(panels, {name: [[1, 2, 3]] * 5 for name in panels}, "Frequency")
        figure.canvas.draw()
        words = [text.get_window_extent() for axes in figure.axes for text in (axes.title, *axes.texts)]
        assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in words)
        assert not any(one.overlaps(other) for one, other in itertools.combinations(words, 2))

    def test_columns_stay_apart_however_many_points_are_equal(self) -> None:
        figure = plot_size_against([2] * 50 + [3] * 50, [5] * 100, "Links")
        x = np.array([point[0] for point in points_of(figure)])
        assert x[:50].max() < 2.5 < x[50:].min()
        assert len(np.unique(x)) == 100

    def test_panels_and_seeds(self) -> None:
        rising, falling = [0.1, 0.2, 0.4], [0.4, 0.2, 0.1]
        figure = plot_size_against(
            {"CenAsy": [rising, falling, rising], "DecAsy": rising},
            {"CenAsy": [[1, 2, 3]] * 3, "DecAsy": [3, 2, 1]},
            "f",
        )
        assert [axes.get_title() for axes in figure.axes] == ["CenAsy", "DecAsy"]
        assert texts_of(figure, 0) == ["rank correlation 0.33 (−1.00 to 1.00 over 3 seeds)"]
        assert texts_of(figure, 1) == ["rank correlation −1.00"]
        assert len(points_of(figure)) == 9
        assert [axes.get_ylabel() for axes in figure.axes] == ["Clients", ""]
        assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()

    @pytest.mark.more
    def test_five_panels_make_two_rows(self) -> None:
        names = ["CenSyn", "CenAsy", "DecSyn", "DecAsy", "more"]
        figure = plot_size_against({n: [1.0, 2.0] for n in names}, {n: [1, 2] for n in names}, "x")
        assert [axes.get_title() for axes in figure.axes] == names
        assert render(figure)

    @pytest.mark.parametrize("x", [[0.0625] * 4, [1 / 16, 1 / 16 + 1e-17, 1 / 16 * (1 + 1e-12), 1 / 16]])
    def test_equal_frequencies_have_no_correlation(self, x: list[float]) -> None:
        figure = plot_size_against(x, [1, 2, 3, 4], "Frequency")
        assert texts_of(figure) == ["no rank correlation: all values are equal"]
        assert len(figure.axes[0].get_xticks()) == 1
        assert render(figure)

    def test_an_aggregator_without_frequency_takes_no_part(self) -> None:
        assert rank_correlation(np.array([0.0, 0.1, 0.2, 0.3]), np.array([0.0, 3.0, 2.0, 1.0])) == pytest.approx(-1)
        figure = plot_size_against([0.0, 0.1, 0.2, 0.3], [0, 3, 2, 1], "Frequency")
        assert texts_of(figure) == ["rank correlation −1.00"]
        (points,) = figure.axes[0].collections
        assert len(np.asarray(points.get_offsets())) == 3

    def test_no_clients_at_all(self) -> None:
        assert render(plot_size_against([0.1, 0.2], [0, 0], "Frequency"))

    def test_one_aggregator(self) -> None:
        assert render(plot_size_against([1.0], [7], "Frequency"))

    @settings(max_examples=part_of(60), deadline=None)
    @given(st.lists(st.tuples(st.integers(1, 7), st.integers(0, 6)), min_size=3, max_size=16))
    def test_rank_correlation_is_that_of_average_ranks(self, pairs: list[tuple[int, int]]) -> None:
        x, y = ([float(pair[i]) for pair in pairs] for i in (0, 1))
        if min(len(set(x)), len(set(y))) < 2:
            assert rank_correlation(np.array(x), np.array(y)) is None
            return
        a, b = average_ranks(x), average_ranks(y)
        mean = (len(x) + 1) / 2
        product = sum((p - mean) * (q - mean) for p, q in zip(a, b, strict=True))
        squares = sum((p - mean) ** 2 for p in a) * sum((q - mean) ** 2 for q in b)
        assert rank_correlation(np.array(x), np.array(y)) == pytest.approx(product / math.sqrt(squares))

    @pytest.mark.parametrize(
        ("x", "sizes", "message"),
        [
            ({}, {}, "at least one"),
            ({"a": [1.0]}, {"b": [1]}, r"x has the panels \['a'\] and sizes \['b'\]"),
            ([1.0, 2.0], [1], r"x and sizes must be of one shape, not \(1, 2\) and \(1, 1\)"),
            ({"a": [1.0, 2.0]}, {"a": [1]}, "x and sizes of a must be of one shape"),
            ([], [], r"x must be of shape \[aggregators\] or \[seeds, aggregators\] and not empty"),
            ([1.0, math.nan], [1, 2], r"x\[1\] = nan: must be a finite number"),
            ([1.0, 2.0], [1, -2], r"sizes\[1\] = -2: must not be negative"),
        ],
    )
    def test_bad_input(self, x: Any, sizes: Any, message: str) -> None:
        with pytest.raises(InputError, match=message):
            plot_size_against(x, sizes, "Frequency")


class TestGanttOfAsynchronousEvents:
    def test_colours_alternate_within_each_cluster(self) -> None:
        # Every event is a round of its own, so that a cluster's own rounds may be all even.
        events = [(0, 0.0, 1.0, 0), (1, 0.0, 1.5, 5), (0, 1.0, 2.0, 10), (0, 2.0, 3.0, 20), (1, 1.5, 3.0, 25)]
        (bars,) = collections_of(plot_gantt(events), PolyCollection)
        colors = [to_hex(color) for color in np.asarray(bars.get_facecolor())]
        assert colors == [color.lower() for color in (BLUE, BLUE, PALE_BLUE, BLUE, PALE_BLUE)]

    def test_short_bars_are_lengthened_only_into_free_time(self) -> None:
        events = [(0, 0.0, 0.1, 0), (0, 0.1, 0.2, 1), (0, 500.0, 500.1, 2), (1, 0.0, 1000.0, 3)]
        (bars,) = collections_of(plot_gantt(events), PolyCollection)
        ends = [60 * float(np.asarray(path.vertices)[:, 0].max()) for path in bars.get_paths()]
        assert ends == pytest.approx([0.1, 3.1, 503.0, 1000.0])


def average_ranks(values: Sequence[float]) -> list[float]:
    """The slow way: of equal values each takes the mean of their places."""
    return [sum(w < v for w in values) + (sum(w == v for w in values) + 1) / 2 for v in values]


@pytest.mark.parametrize(
    "draw",
    thinned(
        [
            lambda: plot_map(CLIENTS, AGGREGATORS, [0, 1, 2, 2], [1, 2], [[1], [0], []]),
            lambda: plot_completion([1.0, 2.0], 3.0),
            lambda: plot_bars({"a": {"x": [1.0, 2.0]}}, "EMD"),
            lambda: plot_size_against([1.0, 2.0], [1, 2], "x"),
        ],
        1,
    ),
)
def test_equal_input_gives_equal_pictures(draw: Callable[[], Figure]) -> None:
    assert render(draw()) == render(draw())
