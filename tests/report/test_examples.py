"""Small functions of figures, pages and tables, by example."""

import numpy as np

from atoll.report.figures.assignments import _matched_order
from atoll.report.figures.before_training import evenly
from atoll.report.figures.ranks import cliques, pareto
from atoll.report.figures.sizes import rank_correlation
from atoll.report.figures.style import lay_out_legend
from atoll.report.page.render import _json
from atoll.report.page.results import _seeds, count, plain, seconds, size, write_mean
from atoll.report.page.scenes import _names_code
from atoll.report.reading.groups import Group, _common_label, differences_of
from atoll.report.tables.formats import TextTable, _latex, show_p, upright
from atoll.report.tables.frames import settings_that_differ
from atoll.report.tables.run_tables import first_met


def test_figures() -> None:
    assert _matched_order(np.array([[0, 1, 9], [7, 0, 0]])).tolist() == [2, 0, 1]
    assert evenly(5, 3).tolist() == [0, 2, 4]
    assert cliques([1.0, 2.0, 2.5, 4.0], 1.6) == [(0, 2), (2, 3)]
    assert pareto([("a", 0.5, 2.0), ("b", 0.4, 3.0), ("c", 0.3, 1.0)]) == [("c", 0.3, 1.0), ("a", 0.5, 2.0)]
    assert rank_correlation(np.array([0.1, 0.2, 0.0, 0.4]), np.array([2.0, 3.0, 0.0, 9.0])) == 1.0
    names = ["FedAvg", "FedProx", "SCAFFOLD"]
    assert lay_out_legend(names, 3.5) == (3, names, 1)


def test_numbers_on_a_page() -> None:
    assert write_mean([60.0, 180.0, 210.0], seconds) == "2.5 ± 3.3 min"
    assert [write_mean(values, count) for values in ([7.0, 7.0], [], [1234.0], [2.0, 3.0])] == [
        "7", "–", "1,234", "2.5 ± 6.4",
    ]  # fmt: skip
    assert write_mean([2.0503, 2.0504, 2.0505], plain) == "2.05040 ± 0.00025"
    assert write_mean([31_234.0], plain) == "31,234"
    assert write_mean([1_234_000], size) == "1.23 MB"


def test_texts_on_a_page() -> None:
    assert _json({"label": "</script>"}) == '{"label":"\\u003c/script>"}'
    assert _seeds(Group("", "", "", ())) == ""
    assert [_names_code(text) for text in ("mine:factory", "random", "10.0.0.1:6379")] == [True, False, False]


def test_what_tells_runs_apart() -> None:
    assert differences_of([{"local.lr": 0.1, "local.steps": 5}, {"local.steps": 5}]) == ["lr = 0.1", "lr = unset"]
    assert _common_label(["CFL-MGD, seed 10", "CFL-MGD, seed 11"]) == "CFL-MGD"
    configs = [{"seed": 1, "local": {"lr": 0.1}}, {"seed": 1, "local": {"lr": 0.2}}]
    assert settings_that_differ(configs) == [{"local.lr": 0.1}, {"local.lr": 0.2}]


def test_tables() -> None:
    table = [["run", "mean", "worst"], ["a", "0.5", "0.2"]]
    assert upright(table) == [["run", "a"], ["mean", "0.5"], ["worst", "0.2"]]
    assert [show_p(0.0123), show_p(1e-5), show_p(None), show_p(0.2, "p")] == ["0.012", "< 0.001", "–", "p = 0.200"]
    assert (_latex("[a_b] & μ = 5 %"), _latex("*")) == (r"{[}a\_b] \& $\mu$ = 5 \%", "{*}")
    latex = TextTable([["Run", "Best"], ["a_b", "50 %"]], 1).as_latex()
    assert latex == (
        "\\begin{tabular}{lr}\n\\toprule\nRun & Best \\\\\n\\midrule\n"
        "a\\_b & 50 \\% \\\\\n\\bottomrule\n\\end{tabular}\n"
    )


def test_when_a_target_is_met() -> None:
    values = np.array([0.1, 0.6, 0.5, np.nan, 0.7])
    assert (first_met(values, 0.6), first_met(values, 0.6, stable=True), first_met(values, 0.8)) == (1, 4, None)
