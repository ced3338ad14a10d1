"""`atoll fleet`: what is written, what is refused in one sentence, and a fleet of two nodes."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from atoll.cli.common import out, read_experiments
from atoll.fleet.flower.superlink import free_port
from atoll.fleet.folder.certificates import make_authority, make_server_certificate, require_valid
from atoll.fleet.folder.configuration import FleetConfiguration, read_fleet, read_node
from atoll.fleet.folder.init import FleetPlan, init_fleet, renew_certificate
from atoll.fleet.node.node import open_site
from atoll.fleet.server.attendance import Noted
from atoll.runs.run_files import STRIKES
from atoll.support.errors import InputError
from tests.cli.conftest import Command, Done
from tests.cli.fleets import tensors_of, wait_until, write_digits
from tests.cli.pages import ROOT, blocks

pytest.importorskip("flwr")


@pytest.fixture
def fleet(tmp_path: Path) -> FleetConfiguration:
    """A fleet of two nodes on this machine; nothing runs."""
    plan = FleetPlan(2, "fleet.example.org", listen="127.0.0.1", port=free_port())
    return init_fleet(tmp_path / "fleet", plan)


def test_init_writes_what_server_and_nodes_read(atoll: Command, tmp_path: Path) -> None:
    atoll("fleet", "init", "mine", "--nodes", "3", "--host", "10.0.0.7", "--port", "4433").succeeded()
    found = read_fleet(tmp_path / "mine")
    assert (found.host, found.listen, found.port) == ("10.0.0.7", "0.0.0.0", 4433)
    assert [(node.name, node.clients) for node in found.nodes] == [("node-0", (0,)), ("node-1", (1,)), ("node-2", (2,))]
    node = read_node(tmp_path / "mine" / "nodes" / "node-2")
    assert (node.server, node.name, node.clients) == ("10.0.0.7:4433", "node-2", (2,))


def test_init_shows_who_has_what_until_when(atoll: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "_width", 120)
    told = atoll("fleet", "init", "mine", "--nodes", "2", "--host", "a.example.org", "--days", "10").succeeded()
    rows = [line.split() for line in told.splitlines()]
    assert rows[0] == ["role", "name", "clients", "has", "expires"]
    assert [row[0] for row in rows[1:5]] == ["authority", "server", "node", "node"]
    days = [(datetime.fromisoformat(row[-1]).replace(tzinfo=UTC) - datetime.now(UTC)).days for row in rows[1:5]]
    assert min(days[0], *days[2:]) > 3600
    assert days[1] in (8, 9, 10)
    assert rows[4][1:4] == ["node-1", "1", "nodes/node-1/"]


def test_status_shows_roles_expiry_and_strikes(
    atoll: Command, fleet: FleetConfiguration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = [
        {"node": node.name, "clients": list(node.clients), "status": "online", "since": None} for node in fleet.nodes
    ]
    monkeypatch.setattr("atoll.fleet.flower.calls.status_of_nodes", lambda _: [dict(row) for row in there])
    monkeypatch.setattr(out, "_width", 120)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / STRIKES).write_text(Noted(event=5, clients={1: (4, 8, 1)}).model_dump_json() + "\n")
    told = atoll("fleet", "status", "--config", "fleet", "--out", "run").succeeded()
    rows = [line.split() for line in told.splitlines()]
    assert rows[1][:3] == ["server", f"fleet.example.org:{fleet.port}", "online"]
    assert [row[:4] for row in rows[2:4]] == [["node", "node-0", "0", "online"], ["node", "node-1", "1", "online"]]
    assert rows[3][-2:] == ["4", "8"]
    assert told.splitlines()[-1] == "run: no event yet"
    first, second = json.loads(atoll("fleet", "status", "--config", "fleet", "--out", "run", "--json").succeeded())
    assert (first["role"], first["strikes"], second["strikes"], second["pause"]) == ("node", 0, 4, 8)
    assert first["expires"] > "2030"


def test_a_data_set_is_split_into_what_nodes_take(atoll: Command) -> None:
    done = atoll("data", "split", ROOT / "examples" / "digits.toml", "--out", "shares")
    assert done.succeeded() == "shares/client-0: 400 samples\nshares/client-1: 400 samples\n"
    assert done.err == "", "the walk's experiment sets nothing in vain"
    (experiment,) = read_experiments(str(ROOT / "examples" / "digits.toml"), None, None)
    for client in range(2):
        site = open_site(experiment.settings, Path("shares") / f"client-{client}", client)
        assert site.population.sizes[client] == experiment.population.sizes[client] == 400
    assert "nothing is overwritten" in atoll("data", "split", "tiny.toml", "--out", "shares").refused()
    assert "choose one with --only" in atoll("data", "split", "quickstart", "--out", "others").refused()
    assert not Path("others").exists()


def test_the_walks_experiment_is_the_one_in_the_examples() -> None:
    (shown,) = [block.text for block in blocks(ROOT / "docs" / "fleet.md") if block.title == "digits.toml"]
    assert shown == (ROOT / "examples" / "digits.toml").read_text()


def test_private_files_are_their_owners_alone(fleet: FleetConfiguration) -> None:
    files = [path for path in fleet.folder.rglob("*") if path.is_file()]
    private = {path.name for path in files if not stat.S_IMODE(path.stat().st_mode) & 0o077}
    assert private == {"ca.key", "server.key", "secret", "node.key"}
    assert {b"PRIVATE KEY" in path.read_bytes() for path in files if path.name not in private} == {False}


def test_keys_are_as_ssh_keygen_reads_them(fleet: FleetConfiguration) -> None:
    key = fleet.folder / "nodes" / "node-1" / "node.key"
    told = subprocess.run(["ssh-keygen", "-y", "-f", key], capture_output=True, text=True, check=True).stdout
    assert fleet.nodes[1].public_key.split()[:2] == told.split()[:2]
    assert told.startswith("ecdsa-sha2-nistp384 ")


def test_init_overwrites_nothing(atoll: Command, fleet: FleetConfiguration) -> None:
    before = {path: path.read_bytes() for path in fleet.folder.rglob("*") if path.is_file()}
    assert "nothing is overwritten" in atoll("fleet", "init", "fleet", "--nodes", "1", "--host", "a").refused()
    assert "lies below one" in atoll("fleet", "init", "fleet/ca.pem/a", "--nodes", "1", "--host", "a").refused()
    assert {path: path.read_bytes() for path in fleet.folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("option", ["--host", "--listen"])
@pytest.mark.parametrize("host", ["", "a b", "https://a", "a:443", "ü"])
def test_a_host_is_a_name_or_an_address(atoll: Command, option: str, host: str) -> None:
    told = atoll("fleet", "init", "--nodes", "1", "--host", "a", option, host).refused()
    assert f"{option} {host!r}: must be a host name (in ASCII) or an address" in told


def test_a_certificate_that_expired_is_refused_with_its_date(atoll: Command, fleet: FleetConfiguration) -> None:
    file = write_digits(fleet.folder.parent)
    _expire(fleet.folder / "server.pem")
    told = atoll("fleet", "server", file, "--config", "fleet", "--out", "run").refused()
    date = time.strftime("%d %B %Y", time.gmtime(time.time() - 2 * 86_400))
    assert f"server.pem: the certificate expired on {date}" in told
    assert not Path("run").exists()


def test_a_node_refuses_an_authority_that_expired(atoll: Command, fleet: FleetConfiguration) -> None:
    place = fleet.folder / "nodes" / "node-0"
    _expire(place / "ca.pem")
    file = write_digits(fleet.folder.parent)
    _write_data(fleet.folder.parent / "data")
    assert (
        "ca.pem: the certificate expired" in atoll("fleet", "node", file, "--config", place, "--data", "data").refused()
    )


def test_a_renewed_certificate_is_of_the_same_authority(atoll: Command, fleet: FleetConfiguration) -> None:
    authority = (fleet.folder / "ca.pem").read_bytes()
    _expire(fleet.folder / "server.pem")
    assert "valid for 1 day;" in atoll("fleet", "renew", "--config", "fleet", "--days", "1").succeeded()
    require_valid(fleet.folder / "server.pem")
    assert (fleet.folder / "ca.pem").read_bytes() == authority
    words = ["openssl", "verify", "-CAfile", str(fleet.folder / "ca.pem"), str(fleet.folder / "server.pem")]
    assert subprocess.run(words, capture_output=True).returncode == 0


def test_the_certificate_names_the_address_that_the_server_listens_on(tmp_path: Path) -> None:
    fleet = init_fleet(tmp_path / "fleet", FleetPlan(1, "fleet.example.org", listen="10.0.0.7"))
    usual = ["localhost", "127.0.0.1", "::1"]
    assert names_in(fleet) == {"fleet.example.org", *usual, "10.0.0.7"}
    path = fleet.folder / "fleet.toml"
    path.write_text(path.read_text().replace('"10.0.0.7"', '"0.0.0.0"'))
    renew_certificate(fleet.folder, 10)
    assert names_in(fleet) == {"fleet.example.org", *usual}


def names_in(fleet: FleetConfiguration) -> set[str]:
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate((fleet.folder / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in names}


def test_a_port_in_use_is_one_sentence(atoll: Command, fleet: FleetConfiguration) -> None:
    file = write_digits(fleet.folder.parent)
    with socket.socket() as other:
        other.bind(("127.0.0.1", fleet.port))
        other.listen()
        told = atoll("fleet", "server", file, "--config", "fleet", "--out", "run").refused()
    assert f"port {fleet.port} on 127.0.0.1: Address already in use" in told


def started(atoll: Command, fleet: FleetConfiguration) -> Done:
    """Return what a server said that was started on this fleet, of which nothing may be left."""
    done = atoll("fleet", "server", write_digits(fleet.folder.parent), "--config", "fleet", "--out", "run")
    assert not fleet.state.exists()
    assert not Path("run").exists()
    return done


def test_a_key_that_is_none_is_refused_before_anything_starts(atoll: Command, fleet: FleetConfiguration) -> None:
    path = fleet.folder / "fleet.toml"
    path.write_text(path.read_text().replace(fleet.nodes[1].public_key, "ssh-rsa AAAA node-1"))
    told = started(atoll, fleet).refused()
    assert told.startswith(f"{path}: public_key = 'ssh-rsa AAAA node-1'...: is not a public key in OpenSSH format")


def test_a_secret_that_is_empty_is_refused_before_anything_starts(atoll: Command, fleet: FleetConfiguration) -> None:
    (fleet.folder / "secret").write_text("\n")
    told = f"{fleet.folder / 'secret'}: is empty; fill it, as with openssl rand -hex 32"
    assert started(atoll, fleet).refused() == told


def test_a_folder_of_results_that_cannot_be_made_is_told_before_anything_starts(
    atoll: Command, fleet: FleetConfiguration
) -> None:
    Path("run").symlink_to("nowhere/run")
    assert started(atoll, fleet).refused(1) == "cannot make the folder run: run is a file, or a link to nothing"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('name = "node-1"', 'name = "node-0"', "name has node-0 twice"),
        ("    1,", "    0,", "clients has 0 twice"),
        ("max_mib = 256", "max_mib = 0", "max_mib = 0: must be greater than or equal to 1"),
        ("host =", "hoost =", "host is missing"),
        ("port =", "porrt = 1\nport =", "porrt is unknown"),
        ('name = "node-1"', 'name = "node-1"\nsamples = [3, 4]', r"samples = \[3, 4\], clients = \[1\]; give one"),
        ("listen =", "listen = =", "Invalid value"),
    ],
)
def test_a_configuration_that_is_wrong_says_where(fleet: FleetConfiguration, old: str, new: str, told: str) -> None:
    path = fleet.folder / "fleet.toml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(InputError, match=told) as raised:
        read_fleet(fleet.folder)
    assert str(path) in str(raised.value)


def test_a_nodes_budget_is_a_setting_of_its_own(fleet: FleetConfiguration) -> None:
    path = fleet.folder / "nodes" / "node-0" / "node.toml"
    assert (read_node(path).most_trainings, read_node(path).most_losses) == (None, None)
    before = path.read_text()
    path.write_text(before + "most_trainings = 20\nmost_losses = 0\n")
    assert (read_node(path).most_trainings, read_node(path).most_losses) == (20, 0)
    path.write_text(before + "most_losses = -1\n")
    with pytest.raises(InputError, match="most_losses = -1: must be greater than or equal to 0"):
        read_node(path)
    path.write_text(before + 'allow = ["privacy.clip"]\n')
    with pytest.raises(InputError, match=r"allow has 'privacy.clip': must be seed, rounds, "):
        read_node(path)


@pytest.mark.parametrize("server", ["localhost", "localhost:0", "localhost:65536", "https://localhost:9092", ":9092"])
def test_a_nodes_server_is_a_name_and_a_port(fleet: FleetConfiguration, server: str) -> None:
    path = fleet.folder / "nodes" / "node-0" / "node.toml"
    own = read_node(path).server
    path.write_text(path.read_text().replace(own, server))
    with pytest.raises(InputError, match=re.escape(f"server = {server!r}: must be a name or address and a port, ")):
        read_node(path)


def test_two_nodes_with_one_key_are_refused(fleet: FleetConfiguration) -> None:
    path = fleet.folder / "fleet.toml"
    path.write_text(path.read_text().replace(fleet.nodes[1].public_key, fleet.nodes[0].public_key))
    with pytest.raises(InputError, match=r"public_key has ecdsa-sha2-nistp384 .* twice; each node needs its own"):
        read_fleet(fleet.folder)


def test_status_without_a_server(atoll: Command, fleet: FleetConfiguration) -> None:
    assert "is atoll fleet server running?" in atoll("fleet", "status", "--config", fleet.folder).refused()


def test_what_cannot_go_up_is_refused_before_it_starts(atoll: Command, tmp_path: Path) -> None:
    file = write_digits(tmp_path, clients=2)
    told = atoll("fleet", "up", file, "--nodes", "3").refused()
    assert told == "--nodes 3: there are only data.clients = 2 clients to share"
    words = ("--set", "data.clients=4", "--set", "method.fraction=1.0", "--set", "secure.sums=true")
    told = atoll("fleet", "up", file, "--nodes", "2", *words).refused()
    assert told == "--nodes 2: a secure sum needs clients on secure.least_nodes = 3 nodes"
    told = atoll("fleet", "up", file, "--nodes", "2", "--set", "run.stop_at=test_acuracy >= 0.5").refused()
    assert told.startswith("run.stop_at = 'test_acuracy >= 0.5': 'test_acuracy' is unknown")


def test_a_node_is_the_client_of_its_key(atoll: Command, fleet: FleetConfiguration) -> None:
    file, place = write_digits(fleet.folder.parent), fleet.folder / "nodes" / "node-1"
    told = atoll("fleet", "node", file, "--config", place, "--data", "data", "--client", "0").refused()
    assert "--client 0: this node's key is registered for client 1" in told


def test_a_node_of_a_client_that_the_experiment_lacks_names_its_file(atoll: Command, fleet: FleetConfiguration) -> None:
    file, place = write_digits(fleet.folder.parent), fleet.folder / "nodes" / "node-1" / "node.toml"
    words = ("fleet", "node", file, "--config", place, "--data", "data", "--set", "data.clients=1")
    told = atoll(*words, "--set", "clustering.clusters=1").refused()
    assert told == f"{place}: clients has 1; must be from 0 to data.clients - 1 = 0"


def test_a_node_without_its_data(atoll: Command, fleet: FleetConfiguration) -> None:
    file, place = write_digits(fleet.folder.parent), fleet.folder / "nodes" / "node-1"
    assert (
        "nowhere: there is no such folder"
        in atoll("fleet", "node", file, "--config", place, "--data", "nowhere").refused()
    )


def test_two_nodes_end_with_the_bits_of_the_simulation(atoll: Command, tmp_path: Path) -> None:
    """FedCluster, two clusters of one client: server and nodes are processes, with TLS and keys."""
    file = write_digits(tmp_path, rounds=2)
    told = atoll("fleet", "up", file, "--nodes", "2", "--out", "fleet-run")
    assert "event 4 of 4" in told.err, told
    atoll("run", file, "--out", "simulated").succeeded()
    assert tensors_of(tmp_path / "fleet-run") == tensors_of(tmp_path / "simulated")
    assert not _processes_of("atoll-fleet-")


@pytest.mark.slow
def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    file = write_digits(tmp_path, rounds=10_000)
    with open(tmp_path / "told", "wb") as log:
        words = [sys.executable, "-m", "atoll", "fleet", "up", str(file), "--nodes", "2", "--out", "run"]
        child = subprocess.Popen(words, cwd=tmp_path, stderr=log, stdout=log, start_new_session=True)
    try:
        wait_until(lambda: b"event 4 of" in (tmp_path / "told").read_bytes(), 100, (tmp_path / "told").read_text)
        mine = _processes_of("atoll-fleet-")
        assert len(mine) == 3, mine  # the superlink and two nodes
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=60) == 130
    finally:
        child.kill()
        child.wait()
    assert "to resume, give the same command with --resume" in (tmp_path / "told").read_text()
    wait_until(lambda: not _processes_of("atoll-fleet-") & mine, 10)
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["event"] >= 4


@pytest.mark.slow
def test_what_a_killed_fleet_leaves_is_cleared_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL leaves keys in a temporary folder, which nobody else may read; not beyond the next start."""
    file, place = write_digits(tmp_path, rounds=10_000), tmp_path / "temporary"
    place.mkdir()
    words = [sys.executable, "-m", "atoll", "fleet", "up", str(file), "--nodes", "1", "--out"]

    def start(name: str) -> "subprocess.Popen[bytes]":
        with open(tmp_path / name, "wb") as log:
            return subprocess.Popen(
                [*words, f"{name}-run"], cwd=tmp_path, stderr=log, stdout=log, env=os.environ | {"TMPDIR": str(place)}
            )

    def keys() -> set[Path]:
        return {path.parents[3] for path in place.glob("atoll-fleet-*/fleet/nodes/*/node.key")}

    children = [start("first")]
    try:
        wait_until(lambda: len(keys()) == 1, 120, (tmp_path / "first").read_text)
        (first,) = keys()
        assert first.stat().st_mode & 0o077 == 0
        children[0].kill()
        children[0].wait()
        children.append(start("second"))
        wait_until(lambda: len(keys() - {first}) == 1, 120, (tmp_path / "second").read_text)
        assert not first.exists()
        children.append(start("third"))  # which leaves a fleet that is at work alone
        wait_until(lambda: len(keys()) == 2, 120, (tmp_path / "third").read_text)
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_a_key_that_others_may_read_is_warned_of(fleet: FleetConfiguration) -> None:
    from atoll.fleet.flower import flower_node as flower_node

    node, told = read_node(fleet.folder / "nodes" / "node-0"), list[str]()

    class Enough(Exception):
        pass

    def tell(sentence: str) -> None:
        told.append(sentence)
        if "calling" in sentence:
            raise Enough

    for mode in (0o600, 0o640):
        node.key.chmod(mode)
        with pytest.raises(Enough):
            flower_node.serve(node, lambda task, payload: b"", tell)
    assert [sentence.partition(": ")[0] for sentence in told] == ["node-0", "warning", "node-0"]
    assert f"{node.key}: others on this machine may read it" in told[1]


def test_a_key_is_taken_back_and_another_given(atoll: Command, fleet: FleetConfiguration) -> None:
    """On files alone; a running server's part is in test_fleet_security.py."""
    key = fleet.folder / "nodes" / "node-1" / "node.key"
    before = key.read_bytes()
    table = fleet.folder / "fleet.toml"
    table.write_bytes(b"\xef\xbb\xbf" + table.read_bytes())  # as some editors begin a file
    told = atoll("fleet", "rotate", "node-1", "--config", "fleet").succeeded()
    assert "no server is running; the next one will use the change" in told
    assert (stat.S_IMODE(key.stat().st_mode), key.read_bytes() == before) == (0o600, False)
    now = read_fleet(fleet.folder)
    shown = subprocess.run(["ssh-keygen", "-y", "-f", key], capture_output=True, text=True, check=True).stdout
    assert now.nodes[1].public_key.split()[:2] == shown.split()[:2]
    assert (now.nodes[0], now.nodes[1].clients) == (fleet.nodes[0], (1,))
    atoll("fleet", "revoke", "node-0", "--config", "fleet").succeeded()
    assert read_fleet(fleet.folder).nodes == now.nodes[1:]
    told = atoll("fleet", "revoke", "node-0", "--config", "fleet").refused()
    assert "fleet.toml: has no node 'node-0'; it has node-1" in told


def _processes_of(word: str) -> set[int]:
    """Return the numbers of processes with this word in their command."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        if word.encode() in words and int(path.parent.name) != os.getpid():
            found.add(int(path.parent.name))
    return found


def _expire(path: Path) -> None:
    """Put a certificate in the place of this one that expired two days ago."""
    begin = datetime.now(UTC) - timedelta(days=12)
    path.write_bytes(make_server_certificate(make_authority(10), ["localhost"], 10, begin).certificate)


def _write_data(folder: Path) -> None:
    import numpy as np

    folder.mkdir()
    np.save(folder / "inputs.npy", np.zeros((4, 1, 8, 8), np.float32))
    np.save(folder / "targets.npy", np.arange(4))
