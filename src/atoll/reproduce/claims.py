"""What the papers claim, read from ``atoll/claims/*.toml``."""

import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from atoll.report.tables.run_tables import falls
from atoll.support.errors import InputError

PAPERS = ("fedcluster", "feduc", "cfl-mgd")

Measure = Literal[
    "last", "best", "mean", "end", "jitter", "fall", "reach", "stable",
    "emd", "emd-weighted", "emd-norm", "emd-norm-weighted",
    "longest", "size-frequency", "size-links", "size-at-2-links", "size-at-3-links", "size-at-4-links",
]  # fmt: skip
Check = Literal["first", "order", "alike", "close", "within", "ratio", "at-least"]

OF_CLUSTERS = frozenset(Measure.__args__[8:])  # type: ignore[attr-defined]
"""Measures of a clustering, for which nothing is trained."""


class Claim(BaseModel):
    """One claim of a paper: which runs it is about, what it measures, and when it holds.

    Measures of a run's column: ``last``; ``best``; ``mean`` over its rounds, which tells whose curve runs higher;
    ``end``: the mean over the last fifth of its rounds; ``jitter``: how far apart the largest and the least value of
    its last half are; ``fall``: the first value over the last; ``reach``: the `along` of the first probe that meets the
    `target`; ``stable``: that of the first probe from which on all meet it. Measures of a clustering: its
    clusters' mean ``emd``, as a Euclidean norm ``emd-norm``, both also by samples (``-weighted``), ``longest``
    (completion, s), the rank correlations ``size-frequency`` and ``size-links``, and ``size-at-J-links``, the mean
    number of clients at aggregators with J links.

    Checks, all of means over seeds, by the test in `atoll.reproduce.evidence`: ``first``: the first run's value is the
    best; ``order``: all are in order, best first; ``alike``: no two differ by more than `tolerance` of the largest;
    ``close``: each differs from `stated` by at most `tolerance`; ``within``: by at most the factor 1 + `tolerance`;
    ``ratio``: the same of the second run's value over the first's; ``at-least``: each is `bound` or more. ``first`` and
    ``order`` hold only for runs that are ahead; they fail only where one is behind by more than the share `tolerance`.

    Attributes:
        recipe: the recipe's name.
        source: the figure, table or section.
        says: the claim in a few words.
        quote: the paper's own words; empty where the claim is ours.
        panel: the panel of the runs; empty where the recipe has but one.
        runs: labels of the runs, without seeds.
        column: the column of metrics that is measured.
        measure: see above.
        check: see above.
        target: of ``reach`` and ``stable``.
        along: what ``reach`` and ``stable`` count.
        stated: the paper's numbers, one a run, or one ratio.
        bound: of ``at-least``.
        tolerance: see above.
        not_at: scales at which the claim cannot be judged, with the reason.
        why: what is known of why it fails here.
        reading: how the recipe reads the paper where that is open and the claim depends on it.
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
    not_at: dict[str, str] = Field(default_factory=dict)
    why: str = ""
    reading: str = ""

    @property
    def lower_is_better(self) -> bool:
        """Whether of two values the lower one is ahead."""
        costs = ("reach", "stable", "jitter", "longest")
        return self.measure in costs or self.measure.startswith("emd") or falls(self.column)


class Paper(BaseModel):
    """A paper, and what it claims.

    Attributes:
        name: its name on the command line.
        title: its name in words.
        reference: authors, title, place.
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
    """Read a paper's claims; one with `panels` or `each` stands for several, `stated` being one list for each panel.

    Raises:
        InputError: the file is not what it should be.
    """
    text = (resources.files("atoll.claims") / f"{name}.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    table["claims"] = [claim for entry in table["claims"] for claim in _expand(entry)]
    try:
        return Paper.model_validate({"name": name, **table})
    except ValidationError as error:
        raise InputError(f"claims of {name}: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from error


def _expand(entry: dict[str, object]) -> list[dict[str, object]]:
    """Return a claim for each of its `panels` and each of the words in `each`, which take the place of ``{}``."""
    shared = {key: value for key, value in entry.items() if key not in ("panels", "each")}
    panels, words, stated = _texts(entry, "panels"), _texts(entry, "each"), entry.get("stated", ())
    return [
        {
            **shared,
            "panel": panel,
            "stated": stated[panel] if isinstance(stated, dict) else stated,
            "says": str(entry["says"]).replace("{}", word),
            "runs": [label.replace("{}", word) for label in _texts(entry, "runs")],
        }
        for word in words
        for panel in panels
    ]


def _texts(entry: dict[str, object], key: str) -> Sequence[str]:
    value = entry.get(key, [""])
    return [str(text) for text in value] if isinstance(value, list) else [str(value)]


def needs_training(claims: Sequence[Claim]) -> bool:
    """Return whether a recipe must be trained for these claims; without claims it must."""
    return not claims or any(claim.measure not in OF_CLUSTERS for claim in claims)
