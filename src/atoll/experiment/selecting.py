"""From settings to the selection of cohorts."""

from atoll.data.array_inputs import kind_of
from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.experiment.faults import loses_clients
from atoll.methods.selection import SELECTIONS, Selection, reselect
from atoll.schedules.clock import Clock
from atoll.settings.plugins import call, resolve
from atoll.settings.validation import Settings
from atoll.support.errors import InputError


def choose_clients(settings: Settings, method: Method, population: Population, clock: Clock | None) -> Method:
    """Return the method with the cohorts that `method.select` chooses."""
    wanted = settings.method
    if wanted.select == "uniform":
        return method
    make = resolve("method.select", wanted.select, SELECTIONS)
    given = {**dict(wanted), "population": population, "clock": clock, "seed": settings.seed}
    selection = call("method.select", make, given, wanted.model_extra)
    if not isinstance(selection, Selection):
        raise InputError(f"method.select = {wanted.select!r}: must return an atoll.Selection, not {kind_of(selection)}")
    if selection.by_loss and loses_clients(settings):
        raise InputError(
            f"method.select = {wanted.select!r}: cannot be used with [faults] that lose clients, since it is "
            "known who trains only once losses have been reported"
        )
    return reselect(method, selection, population, clock)
