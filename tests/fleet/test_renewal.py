"""Certificates are renewed before they expire, also under a running superlink."""

import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from atoll.fleet.flower.calls import control_client, list_nodes
from atoll.fleet.flower.superlink import Superlink, free_port
from atoll.fleet.folder import init as renewal_module
from atoll.fleet.folder.certificates import Certified, make_server_certificate, require_valid, validity
from atoll.fleet.folder.configuration import FleetConfiguration
from atoll.fleet.folder.init import FleetPlan, Renewal, init_fleet, renew_certificate
from atoll.support.errors import InputError

pytest.importorskip("flwr")


@pytest.fixture
def fleet(tmp_path: Path) -> FleetConfiguration:
    return init_fleet(tmp_path / "fleet", FleetPlan(1, "127.0.0.1", listen="127.0.0.1", port=free_port(), days=90))


def let_expire_in(left: timedelta, folder: Path, days: int = 90) -> None:
    """Replace the server's certificate by one of so many days, of which so much is left."""
    authority = Certified((folder / "ca.pem").read_bytes(), (folder / "ca.key").read_bytes())
    begun = datetime.now(UTC) + left - timedelta(days=days)
    made = make_server_certificate(authority, ["127.0.0.1"], days, begun)
    (folder / "server.pem").write_bytes(made.certificate)
    (folder / "server.key").write_bytes(made.key)


@pytest.mark.parametrize(("left", "days"), [(29, 90), (2, 9), (0.2, 1)])
def test_one_that_expires_soon_is_renewed_for_as_long_again(fleet: FleetConfiguration, left: float, days: int) -> None:
    let_expire_in(timedelta(days=left), fleet.folder, days)
    told: list[str] = []
    Renewal(fleet.folder, told.append)()
    assert [line.rpartition(", ")[2] for line in told] == ["and has been renewed"]
    begin, end = validity(fleet.folder / "server.pem")
    assert abs(end - begin - timedelta(days=days)) <= timedelta(hours=1)
    assert end - datetime.now(UTC) > timedelta(days=days - 1)
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
        fleet.folder / "server.pem", fleet.folder / "server.key"
    )


@pytest.mark.parametrize(("left", "days"), [(31, 90), (4, 9), (0.5, 1)])
def test_others_stay(fleet: FleetConfiguration, left: float, days: int) -> None:
    let_expire_in(timedelta(days=left), fleet.folder, days)
    before = (fleet.folder / "server.pem").read_bytes()
    told: list[str] = []
    Renewal(fleet.folder, told.append)()
    assert told == []
    assert (fleet.folder / "server.pem").read_bytes() == before


@pytest.mark.parametrize(
    ("left", "days", "is_told"), [(170, 3650, True), (190, 3650, False), (20, 90, True), (40, 90, False)]
)
def test_of_an_authority_that_ends_the_operator_is_told_once_a_day(
    fleet: FleetConfiguration, left: int, days: int, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = datetime.now(UTC) + timedelta(days=left - days)
    ends = (begun, begun + timedelta(days=days))
    ordinary = validity
    monkeypatch.setattr(renewal_module, "validity", lambda path: ends if path.name == "ca.pem" else ordinary(path))
    told: list[str] = []
    renewal = Renewal(fleet.folder, told.append)
    renewal()
    renewal()
    line = f"warning: {fleet.folder / 'ca.pem'}: the authority ends on {ends[1]:%d %B %Y}; see the runbook"
    assert told == [line] * is_told


def test_without_the_authoritys_key_the_operator_is_told_once_a_day(fleet: FleetConfiguration) -> None:
    let_expire_in(timedelta(days=3), fleet.folder)
    (fleet.folder / "ca.key").unlink()
    told: list[str] = []
    renewal = Renewal(fleet.folder, told.append)
    renewal()
    renewal()
    (line,) = told
    assert line.startswith(f"warning: {fleet.folder / 'server.pem'}: the certificate expires on ")
    assert line.endswith(f"atoll fleet renew --config {fleet.folder}, with ca.key back in the folder, makes a new one")


def test_a_renewal_that_fails_is_a_warning_and_keeps_the_old_one(fleet: FleetConfiguration) -> None:
    let_expire_in(timedelta(days=3), fleet.folder)
    (fleet.folder / "fleet.toml").write_text("host = 7\n")
    before = (fleet.folder / "server.pem").read_bytes()
    told: list[str] = []
    Renewal(fleet.folder, told.append)()
    assert "host = 7: must be a valid string" in told[0]
    assert "the certificate expires on" in told[1]
    assert (fleet.folder / "server.pem").read_bytes() == before


def test_a_key_of_the_authority_that_cannot_be_used_is_one_sentence(fleet: FleetConfiguration) -> None:
    from cryptography.hazmat.primitives import serialization as pem

    let_expire_in(timedelta(days=3), fleet.folder)
    key, told = fleet.folder / "ca.key", list[str]()
    locked = pem.load_pem_private_key(key.read_bytes(), None).private_bytes(
        pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.BestAvailableEncryption(b"secret")
    )
    for content in (b"half a key", locked):
        key.write_bytes(content)
        with pytest.raises(InputError, match=r"ca.key: must be a private key in PEM format without a password \("):
            renew_certificate(fleet.folder, 10)
    Renewal(fleet.folder, told.append)()  # a server starts, and says what is wrong
    assert told[0].startswith("warning: ca.key: must be a private key")
    key.unlink()
    with pytest.raises(InputError, match=r"ca.key: cannot be read .*; put it back until the certificate is made"):
        renew_certificate(fleet.folder, 10)


def test_one_that_has_expired_is_refused(fleet: FleetConfiguration) -> None:
    let_expire_in(timedelta(days=-1), fleet.folder)
    with pytest.raises(InputError, match="expired on"):
        Renewal(fleet.folder, lambda line: None)()


def test_a_renewal_killed_before_its_last_step_is_ended_when_the_superlink_starts(
    fleet: FleetConfiguration, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(path: Path, target: Path) -> None:
        if target.name == "server.key":
            raise KeyboardInterrupt
        path.rename(target)

    place = fleet.folder
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            renew_certificate(place, 10)
    (place / "secret").write_text("")
    with pytest.raises(InputError, match="secret: is empty"):  # and not: must be the key of server.pem
        Superlink(fleet).__enter__()
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(place / "server.pem", place / "server.key")
    assert not (place / "server.key.new").exists()
    assert (place / "server.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.more
def test_a_running_superlink_takes_a_renewed_certificate_and_keeps_its_connections(fleet: FleetConfiguration) -> None:
    def shown() -> str:
        return ssl.get_server_certificate(("127.0.0.1", fleet.port), timeout=10)

    with Superlink(fleet) as superlink, control_client(fleet) as before:
        from flwr.proto.control_pb2 import ListNodesRequest

        before.ListNodes(ListNodesRequest())
        pid, first = superlink.pid, shown()
        (fleet.folder / "server.pem").write_bytes(require_valid(fleet.folder / "ca.pem"))  # not this key's: nothing yet
        time.sleep(1.5)
        assert shown() == first
        renew_certificate(fleet.folder, 7)
        until = time.monotonic() + 20
        while shown() == first:
            assert time.monotonic() < until
            time.sleep(0.1)
        assert ssl.PEM_cert_to_DER_cert(shown()) == ssl.PEM_cert_to_DER_cert((fleet.folder / "server.pem").read_text())
        list_nodes(fleet)
        before.ListNodes(ListNodesRequest())
        assert superlink.pid == pid
