"""How a checkpoint stores a state: a list of distinct models, and where each of them belongs."""

from typing import Any

import numpy as np

from atoll.aggregation.usual_norms import Norms
from atoll.engine.run_state import State
from atoll.local.models import Model
from atoll.runs.spilling import SpilledStates


def lay_out(state: State) -> tuple[list[Model], dict[str, Any]]:
    """Return the distinct models of a state, and the index of the model at each place."""
    models: list[Model] = []
    seen: dict[int, int] = {}

    def number(model: Model) -> int:
        if id(model) not in seen:
            seen[id(model)] = len(models)
            models.append(model)
        return seen[id(model)]

    kept = {} if isinstance(state.clients, SpilledStates) else state.clients
    return models, {
        "events_done": state.events_done,
        "server": None if state.server is None else number(state.server),
        "starts": [number(model) for model in state.starts],
        "published": [number(model) for model in state.published],
        "refused": dict(state.refused),
        "server_state": None if state.server_state is None else number(state.server_state),
        "clients": {str(client): number(model) for client, model in kept.items()},
        "labels": None if state.labels is None else state.labels.tolist(),
        "norms": _lay_out_norms(state),
    }


def _lay_out_norms(state: State) -> dict[str, Any]:
    """Return the distinct lists of norms, and which of them is the latest and each cluster's."""
    numbers: dict[Norms, int] = {}
    for each in (state.norms, *state.usual):
        numbers.setdefault(each, len(numbers))
    return {"lists": [list(each) for each in numbers], "usual": [numbers[each] for each in state.usual]}


def restore(layout: dict[str, Any], tensors: Model) -> State:
    """Return the state with this layout, given its tensors as ``index/name``."""
    models: dict[int, Model] = {}  # without those that have no tensors, such as a rule's empty state
    for key, tensor in tensors.items():
        number, _, name = key.partition("/")
        models.setdefault(int(number), {})[name] = tensor
    server, server_state = layout["server"], layout.get("server_state")
    norms = [tuple((norm, client) for norm, client in each) for each in layout["norms"]["lists"]]
    return State(
        events_done=layout["events_done"],
        server=None if server is None else models[server],
        starts=tuple(models[i] for i in layout["starts"]),
        published=tuple(models[i] for i in layout["published"]),
        refused=layout["refused"],
        server_state=None if server_state is None else models.get(server_state, {}),
        clients={int(client): models.get(i, {}) for client, i in layout.get("clients", {}).items()},
        labels=None if layout.get("labels") is None else np.array(layout["labels"], np.int64),
        norms=norms[0],
        usual=tuple(norms[number] for number in layout["norms"]["usual"]),
    )
