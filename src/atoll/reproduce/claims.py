"""What the papers claim, read from ``atoll/claims/*.toml``."""

import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from atoll.runs.columns import rises
from atoll.support.errors import InputError

PAPERS = ("fedcluster", "feduc", "cfl-mgd")

Measure = Literal[
    "last", "best", "mean", "end", "jitter", "fall", "settled", "reach", "stable",
    "emd", "emd-weighted", "emd-norm", "emd-norm-weighted",
    "longest", "size-frequency", "size-links", "size-at-2-links", "size-at-3-links", "size-at-4-links",
]  # fmt: skip
Check = Literal["first", "order", "alike", "close", "within", "ratio", "lead", "gain", "at-least"]

FIRST_PANEL = "no activations"
"""The panel of the first reading in recipes that have no panels besides."""

OF_CLUSTERS = frozenset(get_args(Measure)[9:])
"""Measures of a clustering, which need no training."""


class Claim(BaseModel):
    """One claim of a paper: which runs it is about, what it measures, and when it holds.

    Measures of a run's column: ``last``; ``best``; ``mean`` over its rounds, which tells whose curve is higher;
    ``end``: the mean over the last fifth of its rounds; ``jitter``: the range of the values in its last half;
    ``fall``: the first value over the last; ``settled``: the round of the first probe from which on all values are
    within 0.02 of the last; ``reach``: the value of `along` at the first probe that meets the `target`;
    ``stable``: its value at the first probe from which on all probes meet it. Measures of a clustering: the mean EMD of
    its clusters, ``emd``, as a Euclidean norm, ``emd-norm``, both also weighted by samples (``-weighted``);
    ``longest`` (completion, s); the rank correlations ``size-frequency`` and ``size-links``; and ``size-at-J-links``,
    the mean number of clients at aggregators with J links.

    Checks, all of means over seeds, by the test in `atoll.reproduce.evidence`: ``first``: the first run's value is the
    best; ``order``: the values are in order, best first; ``alike``: no two differ by more than `tolerance` of the
    largest; ``close``: each is within `tolerance` of `stated`; ``within``: each is within a factor of 1 + `tolerance`;
    ``ratio``: so is the second run's value over the first's; ``lead``: the first run's value less the second's is
    within `tolerance` of `stated`; ``gain``: the first run is ahead of the second by a larger factor than in the panel
    `against`; ``at-least``: each is at least `bound`. ``first`` and ``order`` want leads above the share `margin`, and
    take no `tolerance`: a lead within it would stay undecided whatever the number of seeds.

    Attributes:
        source: the figure, table or section.
        says: the claim in a few words.
        quote: the paper's own words; empty if the claim is ours.
        panel: the panel of the runs; empty if the recipe has only one.
        runs: labels of the runs, without seeds.
        column: the column of metrics to measure.
        stated: the paper's numbers, one per run, or one ratio or lead.
        not_at: scales at which the claim cannot be judged, with the reason.
        why: why it fails here, as far as is known.
        reading: the recipe's reading of the paper, if that is ambiguous and the claim depends on it.
        exploratory: whether the reading is not the first, or the measure was chosen after looking; counted apart.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    recipe: str
    source: str
    says: str
    quote: str = ""
    panel: str = ""
    runs: Annotated[tuple[str, ...], Field(min_length=1)]
    column: str = "test_accuracy"
    measure: Measure
    check: Check
    target: float | None = None
    along: Literal["round", "virtual_time"] = "round"
    stated: tuple[float, ...] = ()
    bound: float | None = None
    tolerance: float = 0.0
    margin: float = 0.0
    against: str = ""
    not_at: dict[str, str] = Field(default_factory=dict)
    why: str = ""
    reading: str = ""
    exploratory: bool = False

    @property
    def lower_is_better(self) -> bool:
        """Whether the lower of two values is ahead."""
        costs = ("reach", "stable", "settled", "jitter", "longest")
        return self.measure in costs or self.measure.startswith("emd") or not rises(self.column)


class Paper(BaseModel):
    """A paper and its claims.

    Attributes:
        name: its name on the command line.
        title: its name in headings.
        reference: authors, title and venue.
        claims: in the order of its figures.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str
    reference: str
    claims: tuple[Claim, ...]

    @property
    def recipes(self) -> list[str]:
        """The recipes that its claims are about, in order."""
        return list(dict.fromkeys(claim.recipe for claim in self.claims))


@cache
def read_paper(name: str) -> Paper:
    """Read a paper's claims; an entry with `panels` or `each` stands for several, with a `stated` list for each panel.

    Where an entry has `also`, it stands for others with these keys instead; and where a file has a `second` reading,
    each claim on one of its `recipes` for another, on the panel with that reading's name. Both kinds are exploratory.
    """
    table = tomllib.loads((resources.files("atoll.claims") / f"{name}.toml").read_text(encoding="utf-8"))
    second = table.pop("second", {"recipes": ()})
    table["claims"] = [each for entry in table["claims"] for own in _expand(entry) for each in _read_twice(own, second)]
    try:
        return Paper.model_validate({"name": name, **table})
    except ValidationError as error:
        raise InputError(f"claims of {name}: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from error


def _expand(entry: dict[str, Any]) -> list[dict[str, object]]:
    """Return a claim for each of its `panels` and each of the words in `each`, which replace ``{}``."""
    also = entry.pop("also", None)
    shared = {key: value for key, value in entry.items() if key not in ("panels", "each")}
    panels, words, stated = _texts(entry, "panels"), _texts(entry, "each"), entry.get("stated", ())
    exploratory, against = entry.get("exploratory", False), entry.get("against", "")
    claims = [
        {
            **shared,
            "panel": panel,
            "exploratory": panel in exploratory if isinstance(exploratory, list) else exploratory,
            "against": against[panel] if isinstance(against, dict) else against,
            "stated": stated[panel] if isinstance(stated, dict) else stated,
            "says": str(entry["says"]).replace("{}", word),
            "runs": [label.replace("{}", word) for label in _texts(entry, "runs")],
        }
        for word in words
        for panel in panels
    ]
    return claims + _expand(entry | {"exploratory": True} | also) if also else claims


def _read_twice(claim: dict[str, Any], second: dict[str, Any]) -> list[dict[str, object]]:
    """Return a claim under the first and the second reading of what its runs train, if its recipe has two."""
    if claim["recipe"] not in second["recipes"]:
        return [claim]
    readings = [f"{second[which]}, {claim['reading']}" for which in ("first", "reading")]
    other = second["panel"] if claim["panel"] == FIRST_PANEL else f"{claim['panel']}, {second['panel']}"
    return [claim | {"reading": readings[0]}, claim | {"reading": readings[1], "panel": other, "exploratory": True}]


def _texts(entry: dict[str, object], key: str) -> Sequence[str]:
    value = entry.get(key, [""])
    return [str(text) for text in value] if isinstance(value, list) else [str(value)]


def is_trained(recipe: str, papers: Sequence[Paper]) -> bool:
    """Return whether a recipe's claims need its runs trained, not only its clusterings made; without claims it is."""
    claims = [claim for paper in papers for claim in paper.claims if claim.recipe == recipe]
    return not claims or any(claim.measure not in OF_CLUSTERS for claim in claims)
