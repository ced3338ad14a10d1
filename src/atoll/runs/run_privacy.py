"""A private run's ledger account, and its entry in the summary."""

from typing import Any

from atoll.experiment.experiment import Experiment
from atoll.privacy.ledger import Account, RunLedger
from atoll.runs.fingerprint import digest


def account_of(experiment: Experiment) -> Account | None:
    """Return the account of the run's ledger; None without privacy."""
    private = experiment.planned.private
    if private is None:
        return None
    return Account(
        run=digest(experiment.settings),
        clients=len(experiment.population),
        mechanism=private.mechanism,
        cost=private.plan.cost,
        most_releases=private.most_releases,
        is_fleet=private.is_fleet,
    )


def spent_in(experiment: Experiment, ledger: RunLedger | None) -> dict[str, Any]:
    """Return the summary's entry of a private run: what was spent, and what was planned for each cluster."""
    private = experiment.planned.private
    if ledger is None or private is None:
        return {}
    return {"privacy": ledger.summary() | {"clusters": private.plan.table()}}
