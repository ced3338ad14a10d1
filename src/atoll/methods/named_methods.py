"""The methods by name.

A custom method is a function that returns a `Method`. It may request `population`, `rule`, `rounds`, `seed`, `clock`,
`clustering`, `network`, `phases` and `module` by parameter name; its other parameters are settings of ``[method]``.
"""

from collections.abc import Callable

from atoll.engine.method import Method
from atoll.methods.papers.alone import alone
from atoll.methods.papers.apfl import apfl
from atoll.methods.papers.bcd import bcd
from atoll.methods.papers.cfl import cfl
from atoll.methods.papers.cfl_mgd import cfl_mgd
from atoll.methods.papers.ditto import ditto
from atoll.methods.papers.fedamp import fedamp
from atoll.methods.papers.fedasync import fedasync
from atoll.methods.papers.fedat import fedat
from atoll.methods.papers.fedavg import centralized, fedavg, pooled
from atoll.methods.papers.fedbuff import fedbuff
from atoll.methods.papers.fedcluster import fedcluster
from atoll.methods.papers.feddrift import feddrift
from atoll.methods.papers.feddyn import feddyn
from atoll.methods.papers.fedem import fedem, fedrc
from atoll.methods.papers.fedgroup import fedgroup
from atoll.methods.papers.fednova import fednova
from atoll.methods.papers.fedopt import fedadagrad, fedadam, fedavgm, fedyogi
from atoll.methods.papers.fedsoft import fedsoft
from atoll.methods.papers.fesem import fesem
from atoll.methods.papers.flhc import flhc
from atoll.methods.papers.fmcl import fmcl
from atoll.methods.papers.hierarchical import hierarchical
from atoll.methods.papers.hierfavg import hierfavg
from atoll.methods.papers.ifca import ifca
from atoll.methods.papers.lcfed import lcfed
from atoll.methods.papers.moon import moon
from atoll.methods.papers.pacfl import pacfl
from atoll.methods.papers.perfedavg import perfedavg
from atoll.methods.papers.personal_parts import fedbn, fedper, fedrep
from atoll.methods.papers.pfedme import pfedme
from atoll.methods.papers.scaffold import scaffold
from atoll.methods.papers.stocfl import stocfl
from atoll.methods.parts.kind import MethodKind
from atoll.methods.parts.learned import SENDING
from atoll.methods.parts.together import mixture, mixture_by_class, own_and_centres

METHODS: dict[str, Callable[..., Method] | MethodKind] = {
    "fedcluster": fedcluster,
    "fedavg": fedavg,
    "centralized": MethodKind(centralized, population=pooled, why_one_place="whose one client holds all data"),
    "fedavgm": fedavgm,
    "fedadagrad": fedadagrad,
    "fedadam": fedadam,
    "fedyogi": fedyogi,
    "scaffold": scaffold,
    "fednova": MethodKind(fednova, steps_from_samples=True),
    "feddyn": feddyn,
    "fedasync": MethodKind(
        fedasync, why_one_place="whose events are one client's: lost, it would pull the server back to what it was sent"
    ),
    "fedbuff": fedbuff,
    "fedat": fedat,
    "hierarchical": MethodKind(hierarchical, rounds_are_local_steps=True),
    "hierfavg": MethodKind(hierfavg, rounds_are_local_steps=True),
    "ifca": ifca,
    "cfl-mgd": cfl_mgd,
    **{each.__name__: MethodKind(each, why_one_place=SENDING) for each in (cfl, flhc, fedgroup, fesem, stocfl, lcfed)},
    "feddrift": MethodKind(feddrift, why_one_place=SENDING, sudden_data="whose time steps are whole phases"),
    "pacfl": MethodKind(pacfl, fixed_data="whose clusters are found from clients' data before training"),
    "fmcl": MethodKind(fmcl, fixed_data="whose clusters are found from clients' data before training"),
    "fedem": MethodKind(fedem, together=mixture, untested="clients' shares of the models"),
    "fedrc": MethodKind(fedrc, together=mixture_by_class, untested="clients' shares of the models"),
    "fedsoft": MethodKind(fedsoft, together=own_and_centres, untested="all that clients learn"),
    "bcd": bcd,
    "ditto": ditto,
    "pfedme": pfedme,
    "apfl": apfl,
    "perfedavg": perfedavg,
    "fedamp": MethodKind(fedamp, why_one_place=SENDING),
    "moon": moon,
    "local": MethodKind(alone, untested="all that clients learn"),
    "fedbn": MethodKind(fedbn, untested="clients' normalisation layers"),
    "fedper": MethodKind(fedper, untested="clients' heads"),
    "fedrep": MethodKind(fedrep, untested="clients' heads"),
}

ACCOUNTED = frozenset(
    {fedcluster, fedavg, fedavgm, fedadagrad, fedadam, fedyogi, fedat, hierarchical, hierfavg, ifca, cfl_mgd}
)
"""The methods that `atoll.privacy` covers: their schedules depend on clients' data only through sample counts, and
clients' results are used only in their cluster's sum."""
