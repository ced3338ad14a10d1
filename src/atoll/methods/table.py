"""The methods by name."""

from collections.abc import Callable

from atoll.engine.engine import Method
from atoll.methods.cfl_mgd import cfl_mgd
from atoll.methods.fedavg import centralized, fedavg
from atoll.methods.fedbcd import fedbcd
from atoll.methods.fedcluster import fedcluster
from atoll.methods.hierarchical import hierarchical
from atoll.methods.ifca import ifca

METHODS: dict[str, Callable[..., Method]] = {
    "fedcluster": fedcluster,
    "fedavg": fedavg,
    "centralized": centralized,
    "hierarchical": hierarchical,
    "ifca": ifca,
    "cfl-mgd": cfl_mgd,
    "fedbcd": fedbcd,
}
