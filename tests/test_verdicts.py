"""The page of verdicts has a row for each claim, shows what the files have, and refuses claims that are gone."""

import re
from pathlib import Path
from typing import Any

import pytest

from atoll.reproduce.claims import PAPERS, read_paper
from tests.hooks import hook_of

ROOT = Path(__file__).parents[1]
CLAIM = read_paper("fedcluster").claims[0]


def make_file(scale: str = "small", **fields: Any) -> dict[str, Any]:
    claim = {
        **{name: getattr(CLAIM, name) for name in ("source", "panel", "says")},
        "reading": CLAIM.reading,
        "runs": list(CLAIM.runs),
        "stated_in_words": [],
        "ours_in_words": ["0.5 ± 0.1", "0.7 ± 0.1"],
        "needs": ["lead of A | B"],
        "seeds": 3,
        "status": "holds",
        "reason": "",
    }
    return {"scale": scale, "seeds": 3, "recipes": [{"recipe": CLAIM.recipe, "claims": [claim | fields]}]}


def tables(files: list[dict[str, Any]]) -> str:
    """Return the hook's tables without the spaces that make their columns as wide as their longest cells."""
    return re.sub(" +", " ", hook_of("verdicts").tables(files))


def test_every_claim_has_a_row_and_a_measured_one_its_numbers() -> None:
    text = tables([make_file(), make_file("paper", status="fails", reason="so it is")])
    known = (claim for name in PAPERS for claim in read_paper(name).claims)
    claims = len({(c.recipe, c.source, c.panel, c.says, c.reading) for c in known})
    sections = [part for part in text.split("\n\n") if part.startswith("| Claim")]
    assert sum(len(part.splitlines()) - 2 for part in sections) == claims + 1
    assert f"`atoll reproduce {CLAIM.recipe} --scale small`" in text
    assert f"`atoll reproduce {CLAIM.recipe} --scale paper`" in text
    for words in (
        "Reading: no activations, pixels in 0..1, every cluster has data",
        "FedCluster 0.5\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}0.1<br>FedAvg 0.7",
        r"lead of A \| B",
        "**fails**<br>so it",
    ):
        assert words in text
    assert f"| [{CLAIM.source}](#{CLAIM.recipe}) | 1 | 7 |" in text  # it fails at the largest scale; counted once
    assert f"### {CLAIM.source} {{ #{CLAIM.recipe} }}" in text


def test_a_verdict_on_a_claim_that_is_gone_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no claim is called fedcluster-figure-2, .*something else"):
        hook_of("verdicts").tables([make_file(says="something else")])


def test_what_was_not_run_says_so() -> None:
    text = tables([make_file(status="not run")])
    assert "| Figure or table | not run |" in text
    assert f"`atoll reproduce {CLAIM.recipe}`" in text
    assert hook_of("verdicts").on_page_markdown("no mark") == "no mark"


@pytest.mark.more  # it judges all evidence
def test_the_page_has_the_verdicts_in_place_of_their_mark() -> None:
    page = hook_of("verdicts").on_page_markdown("before <!-- the verdicts --> after")
    assert page.startswith("before ## FedCluster")


@pytest.mark.more  # it judges eighty runs
def test_the_page_of_fedcluster_has_the_verdicts_numbers_for_figures_5_and_6(tmp_path: Path) -> None:
    for recipe in ("fedcluster-figure-5", "fedcluster-figure-6"):
        (tmp_path / recipe).mkdir()
        (tmp_path / recipe / "small").symlink_to(ROOT / "evidence" / recipe / "small")
    number = re.compile(r"(\d\.\d{3})\s±\s(\d\.\d{3})")
    judged = set(number.findall(tables(hook_of("verdicts").judge_kept(tmp_path))))
    page = (ROOT / "docs/papers/fedcluster.md").read_text(encoding="utf-8")
    begin, end = page.index("Figure 6 with ten of 20 clients"), page.index("**The figures at tiny scale")
    losses = number.findall(page[begin:end])
    assert len(losses) > 40
    assert [loss for loss in losses if loss not in judged] == []
