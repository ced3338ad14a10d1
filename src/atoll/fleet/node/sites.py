"""A node's side of every run that its owner has a copy of, with the changes that the owner lets the server make."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from atoll.fleet.agreed.messages import Refused, Token
from atoll.fleet.agreed.terms import Terms, change, differences, is_allowed, show
from atoll.fleet.node.node import Node, Reporting, open_site
from atoll.fleet.node.store import Store
from atoll.fleet.node.versions import Versions
from atoll.fleet.node.work_count import RUNS, WorkBudget
from atoll.secure.participant import Identity
from atoll.settings.validation import Settings
from atoll.support.errors import InputError
from atoll.support.limits import StrictRecord

KEPT = 4
"""Number of a server's choices that survive a restart, with their client states; older ones are dropped."""

_READY = 2  # nodes in memory, each with the clients' samples
_STORED = "chosen"
_OTHERS = "the server's settings are others than this node's"


class _Chosen(StrictRecord):
    """Settings that a server sent, their digest, and whether they differ from all of the owner's runs."""

    digest: Token
    told: Terms
    is_changed: bool


_CHOSEN = TypeAdapter(tuple[_Chosen, ...])


@dataclass(frozen=True)
class _Offer:
    """One of the owner's runs with a server's changes: those that are allowed, and those that are not."""

    own: Settings
    changed: list[str]
    refused: list[str]


class Sites:
    """Makes the node for the run that a server announces: one of the owner's, with the server's allowed changes.

    Other settings keep the owner's values. The digest decides whether both sides mean the same work, so settings that
    do not affect clients' work may differ. Whatever the server sets, work counts toward the owner's own run, and the
    default limit on losses follows that run's rounds.
    """

    def __init__(
        self,
        runs: Sequence[Settings],
        folder: Path,
        client: int | Sequence[int],
        store: Store,
        reporting: Reporting | None = None,
        budget: WorkBudget | None = None,
        allowed: Sequence[str] = (),
        identity: Identity | None = None,
    ) -> None:
        """Offer these runs; the server chooses, and sets what is allowed (`terms.is_allowed`); the store keeps it.

        The other arguments are those of `open_site`.
        """
        self.clients = (client,) if isinstance(client, int) else tuple(client)
        self._runs, self._store, self._allowed = tuple(runs), store, tuple(allowed)
        self._folder, self._client, self._reporting, self._budget = folder, client, reporting, budget or WorkBudget()
        self._identity = identity
        self._ready: dict[str, Node] = {}
        self._first: Node | None = None
        self._first = self._keep_ready(self._open(self._runs[0]))

    def find(self, digest: str, told: Mapping[str, Any] | None = None) -> Node:
        """Return the node whose settings have this digest, made from what the server sends, or sent before.

        Not thread-safe.
        """
        if digest in self._ready:
            return self._ready[digest]
        chosen = self._chosen()
        if told is None:
            told = next((each.told for each in chosen if each.digest == digest), None)
        if told is None:
            raise Refused("wrong_settings", _OTHERS)
        node = self._negotiate(digest, dict(told))
        self._remember(chosen, _Chosen(digest=digest, told=dict(told), is_changed=bool(node.told)))
        return self._keep_ready(node)

    def _negotiate(self, digest: str, told: dict[str, Any]) -> Node:
        """Return the node of the first run that agrees, of those with the fewest differences first."""
        offers = [self._offer(own, told) for own in self._runs]
        offers.sort(key=lambda offer: len(offer.changed) + len(offer.refused))
        why = ""
        for offer in offers:
            try:
                node = self._take(offer, told)
            except InputError as error:
                why = why or f": {error}"
                continue
            if node.agreement.digest == digest:
                return node
        if refused := offers[0].refused:
            raise Refused("not_allowed", f"{_OTHERS}, and node.toml does not allow {show(told, refused)}")
        raise Refused("wrong_settings", f"{_OTHERS}{why}")

    def _offer(self, own: Settings, told: dict[str, Any]) -> _Offer:
        others = differences(own, told)
        changed = [key for key in others if is_allowed(key, told.get(key), self._allowed)]
        return _Offer(own, changed, [key for key in others if key not in changed])

    def _take(self, offer: _Offer, told: dict[str, Any]) -> Node:
        """Return the node of a run with the server's allowed changes."""
        if not offer.changed:
            return self._open(offer.own)
        node, own = self._open(change(offer.own, told, offer.changed)), self._open(offer.own)
        budget = own.budget
        if self._budget.losses is None:
            budget = replace(budget, losses=RUNS * offer.own.rounds * node.measures)
        return replace(node, budget=budget, counted_as=own.agreement.digest, told=show(told, offer.changed))

    def _open(self, settings: Settings) -> Node:
        if settings is self._runs[0] and self._first is not None:
            return self._first
        return open_site(settings, self._folder, self._client, self._reporting, self._budget, self._identity)

    def _keep_ready(self, node: Node) -> Node:
        self._ready[node.agreement.digest] = node
        for digest in list(self._ready)[:-_READY]:
            del self._ready[digest]
        return node

    def _chosen(self) -> tuple[_Chosen, ...]:
        """Return what servers have chosen before; none if the record is damaged."""
        try:
            return _CHOSEN.validate_json(self._store.get(_STORED) or b"[]")
        except ValidationError:
            return ()

    def _remember(self, before: Sequence[_Chosen], chosen: _Chosen) -> None:
        """Record the latest choice; drop old ones of its kind, changed or not, together with their client states."""
        others = [each for each in before if each.digest != chosen.digest]
        left = [each for each in others if each.is_changed == chosen.is_changed][: 1 - KEPT]
        for each in left:
            for client in self.clients if each.is_changed else ():
                Versions(self._store, client, each.digest).clear()
        kept = (*(each for each in others if each not in left), chosen)
        self._store.put(_STORED, _CHOSEN.dump_json(kept))
