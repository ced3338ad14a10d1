"""A fleet at its edges: kills in a row, files that are lost or damaged, keys and addresses that do not belong."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from atoll.fleet.agreed.messages import Refused
from atoll.fleet.folder.certificates import Certified, make_authority, make_server_certificate
from atoll.fleet.folder.configuration import read_fleet
from atoll.fleet.folder.init import FleetPlan, init_fleet
from atoll.fleet.folder.peers import read_identity
from atoll.fleet.node.epsilon_ledger import charge
from atoll.fleet.node.noise_added import Hidden
from atoll.fleet.node.reports import _hidden
from atoll.fleet.node.store import FolderStore
from atoll.fleet.node.versions import Versions
from atoll.fleet.node.work_count import WorkBudget
from atoll.fleet.node.working import count
from atoll.privacy.mechanism import Cost
from atoll.support.errors import InputError

BUDGET, COST = WorkBudget(epsilon=100.0), Cost((8.0,), "zero-out")


class Killed(BaseException):
    pass


@pytest.mark.parametrize("puts", [0, 1, 2])
def test_a_ledger_bears_any_number_of_kills_at_one_place(
    tmp_path: Path, puts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`puts` is how many files are written before each kill."""
    store = FolderStore(tmp_path)
    charge(store, 0, BUDGET, COST)
    put = store.put
    for _ in range(3):
        left = iter([True] * puts)

        def dies(key: str, content: bytes, left: Any = left) -> None:
            if not next(left, False):
                raise Killed
            put(key, content)

        monkeypatch.setattr(store, "put", dies)
        with pytest.raises(Killed):
            charge(store, 0, BUDGET, COST)
    monkeypatch.setattr(store, "put", put)
    assert charge(store, 0, BUDGET, COST).charged == (2 if puts < 2 else 5)


def test_a_report_is_refused_too_where_the_ledger_is_lost(tmp_path: Path) -> None:
    store, site = FolderStore(tmp_path), cast(Any, SimpleNamespace(budget=BUDGET, counted_as="a" * 64))
    count(site, store, 0, COST, trainings=1)
    for key in ("ledger-0", "ledger-0-seal"):
        store.drop(key)
    with pytest.raises(Refused, match="it was charged 0 times, of 1"):
        _hidden(site, store, 0, Hidden(noise=4.0, most_samples=500), 100, None)


def test_a_damaged_list_of_versions_is_begun_anew(tmp_path: Path) -> None:
    versions = Versions(FolderStore(tmp_path), 0, "a" * 64)
    versions.add("01", {"w": torch.ones(2)}, ())
    (tmp_path / f"state-0-{'a' * 16}").write_bytes(b"\0\0")
    versions.add("02", {"w": torch.zeros(2)}, ("01",))
    kept = [versions.read(task) for task in ("01", "02")]
    assert [None if each is None else each["w"].tolist() for each in kept] == [[1.0, 1.0], [0.0, 0.0]]


def test_a_certificate_is_not_signed_with_another_fleets_key() -> None:
    ours, theirs = (make_authority(365) for _ in range(2))
    with pytest.raises(InputError, match=r"ca\.key: is not the key of ca\.pem"):
        make_server_certificate(Certified(ours.certificate, theirs.key), ["localhost"], 30)


def test_a_server_that_listens_on_all_of_ipv6_is_called_there(tmp_path: Path) -> None:
    assert init_fleet(tmp_path / "fleet", FleetPlan(1, "localhost", listen="::")).local_host == "::1"


def test_one_key_is_one_node_whatever_its_comment(tmp_path: Path) -> None:
    init_fleet(tmp_path / "fleet", FleetPlan(1, "localhost"))
    file = tmp_path / "fleet/fleet.toml"
    text = file.read_text()
    row = text[text.index("[[nodes]]") :]
    again = row.replace("node-0", "node-1").replace("clients = [\n    0,\n]", "clients = [1]").replace("[0]", "[1]")
    file.write_text(text + again)
    with pytest.raises(InputError, match=r"public_key has ecdsa.* twice; each node needs its own"):
        read_fleet(tmp_path / "fleet")
    peers = tmp_path / "fleet/nodes/node-0/peers.toml"
    peers.write_text(peers.read_text() + peers.read_text().replace("node-0", "node-1"))
    with pytest.raises(InputError, match=r"peers\.toml: nodes: a key twice"):
        read_identity("node-0", peers.with_name("node.key"), peers)
