"""The claims are about runs that there are, and about every figure and table of the papers."""

import re
import warnings

import pytest

from atoll.reproduce.claims import OF_CLUSTERS, PAPERS, is_trained, read_paper
from atoll.reproduce.judging import is_of
from atoll.reproduce.kept_runs import digest_anywhere
from atoll.reproduce.recipe_runs import settings_of
from atoll.runs.titles import without_seed
from atoll.settings.experiment_file import make_runs, read_experiment, recipe_names
from atoll.settings.validation import Settings
from tests.tiers import thinned

CLAIMS = [claim for name in PAPERS for claim in read_paper(name).claims]


def titles(runs: list[Settings]) -> set[tuple[str, str]]:
    return {(run.panel, run.label or run.name) for run in runs}


@pytest.mark.parametrize("recipe", sorted({claim.recipe for claim in CLAIMS}))
def test_runs_and_panels_of_claims_exist(recipe: str) -> None:
    known = titles(make_runs(read_experiment(recipe)))
    for claim in CLAIMS:
        if claim.recipe == recipe:
            for selector in claim.runs:
                for own in filter(None, (claim.panel, claim.against)) if claim.panel else ("",):
                    found = [label for panel, label in known if panel == own and is_of(label, selector)]
                    assert found, (claim.source, claim.says, own, selector)


@pytest.mark.parametrize("name", PAPERS)
def test_a_claim_has_what_its_check_and_measure_need(name: str) -> None:
    for claim in read_paper(name).claims:
        wanted = {"ratio": 1, "lead": 1, "close": len(claim.runs), "within": len(claim.runs)}.get(claim.check)
        assert len(claim.stated) in ({0, len(claim.runs)} if wanted is None else {wanted}), claim
        assert (claim.bound is not None) == (claim.check == "at-least"), claim
        assert (claim.target is not None) == (claim.measure in ("reach", "stable")), claim
        assert len(claim.runs) >= {"first": 2, "order": 2, "alike": 2, "ratio": 2, "lead": 2, "gain": 2}.get(
            claim.check, 1
        ), claim
        assert set(claim.not_at) <= {"tiny", "small"}, claim
        assert "{}" not in claim.says, claim
        assert (claim.against != "") == (claim.check == "gain"), claim
        assert not re.search(r"[\\$]", claim.says + claim.quote + claim.why), claim  # no TeX


def test_every_figure_and_table_of_a_paper_has_a_claim() -> None:
    """The recipes that are called figure or table, and no figure is missing between the first and the last."""
    claimed = {claim.recipe for claim in CLAIMS}
    assert {name for name in recipe_names() if "figure" in name or "table" in name} <= claimed
    for paper, figures in (("fedcluster", range(2, 7)), ("feduc", range(5, 25)), ("cfl-mgd", range(3, 5))):
        assert {f"{paper}-figure-{number}" for number in figures} <= claimed


def test_a_recipes_claims_are_all_of_clusterings_or_none_is() -> None:
    for recipe in {claim.recipe for claim in CLAIMS}:
        kinds = {claim.measure in OF_CLUSTERS for claim in CLAIMS if claim.recipe == recipe}
        assert len(kinds) == 1, recipe


def test_clustering_figures_are_not_trained() -> None:
    papers = list(map(read_paper, PAPERS))
    untrained = {recipe for recipe in {claim.recipe for claim in CLAIMS} if not is_trained(recipe, papers)}
    assert untrained == {f"feduc-figure-{number}" for number in (5, 6, 7, 8)}
    assert is_trained("quickstart", papers), "without claims"


def test_panels_and_words_stand_for_claims_of_their_own() -> None:
    made = [claim for claim in CLAIMS if claim.recipe == "fedcluster-figure-4"]
    assert len(made) == 3 * 4 + 3 * 2
    assert {claim.against for claim in made if claim.panel == "CIFAR-10, rho_device = 0.5"} == {
        "",
        "MNIST, rho_device = 0.5",
    }
    assert {claim.runs for claim in made if "Adam" in claim.says} == {("FedCluster, Adam", "FedAvg, Adam")}
    stated = {claim.panel: claim.stated for claim in CLAIMS if claim.source == "Table VI" and claim.target == 0.8}
    assert stated["DecAsy"] == (3.52,)


@pytest.mark.parametrize("recipe", thinned(recipe_names(), 12))
def test_tiny_runs_are_the_papers_runs(recipe: str) -> None:
    """The tiny scale changes how much is trained, not which runs there are, nor what tells them apart."""
    tiny, paper = settings_of(recipe, "tiny"), settings_of(recipe, "paper")
    assert titles(tiny) == titles(paper)
    assert len({run.seed for run in tiny}) >= 3
    assert all(one.run.workers == 1 for one in tiny)
    for one, other in zip(tiny, paper, strict=True):
        assert (one.method.name, one.clustering, one.seed) == (other.method.name, other.clustering, other.seed)
        assert one.rounds <= other.rounds


def test_figure_22_has_the_runs_of_figure_13_with_16_clusters() -> None:
    """So they are kept as both."""
    once, again = (
        {each.label: digest_anywhere(each) for each in settings_of(recipe, "paper", 1)}
        for recipe in ("feduc-figure-13", "feduc-figure-22")
    )
    for name in ("ComAw", "FedUC"):
        assert once[f"{name}, seed 0"] == again[f"{name}, M = 16, seed 0"] != again[f"{name}, M = 9, seed 0"]


@pytest.mark.parametrize("recipe", recipe_names())
def test_nobody_is_warned_of_a_recipes_own_settings(recipe: str) -> None:
    """Nor of those of the benchmark's suites, which have settings for all methods."""
    for scale in ("tiny", "paper"):
        with warnings.catch_warnings(action="error"):
            assert settings_of(recipe, scale, 1)


@pytest.mark.parametrize("recipe", ["feduc-figure-8", "fedcluster-figure-3"])  # one lists five seeds, one none
def test_every_run_has_as_many_seeds_as_are_asked_for(recipe: str) -> None:
    made = settings_of(recipe, "tiny", 7)
    kinds = {(each.panel, without_seed(each.label)) for each in made}
    assert len(made) == 7 * len(kinds)
    assert titles(made) == {(panel, f"{label}, seed {seed}") for panel, label in kinds for seed in range(7)}
    assert all(each.label.endswith(f", seed {each.seed}") for each in made)


def test_a_recipe_trains_where_it_is_told() -> None:
    ours, theirs = settings_of("feduc-digits", "tiny", 1, "cuda"), settings_of("feduc-digits", "tiny", 1)
    assert {each.run.device for each in ours} == {"cuda"}
    assert [each.model_copy(update={"run": other.run}) for each, other in zip(ours, theirs, strict=True)] == theirs


def test_a_claim_as_printed_has_a_twin_that_differs_in_its_reading_runs_and_reason() -> None:
    other = {"reading", "runs", "why", "exploratory"}
    printed = [claim for claim in CLAIMS if "Algorithm 2 as printed" in claim.reading and "as printed" in claim.runs[0]]
    assert len(printed) > 50
    for claim in printed:
        assert claim.exploratory, claim
        twins = [
            each
            for each in CLAIMS
            if claim.model_dump(exclude=other) == each.model_dump(exclude=other)
            and each.reading == claim.reading.replace("Algorithm 2 as printed", "every cluster has data")
        ]
        assert [twin.runs for twin in twins] == [tuple(run.replace(", as printed", "") for run in claim.runs)], claim
