"""The services of `examples/fleet`: systemd reads the units, and the units' commands and the pods' run as they stand.

There is no machinery of either here: each command is a process of ours, and the folders that it names
are inside an empty one.
"""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from atoll.fleet.flower.superlink import free_port
from tests.cli.conftest import Command
from tests.cli.fleets import wait_until
from tests.cli.pages import ROOT, shell

pytest.importorskip("flwr")

FOLDER = ROOT / "examples" / "fleet"
UNITS = ["atoll-server.service", "atoll-node.service"]


def unit(name: str) -> configparser.SectionProxy:
    found = configparser.ConfigParser(interpolation=None, strict=False)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read(FOLDER / name)
    return found["Service"]


def pods() -> dict[str, dict[str, Any]]:
    """Return the pods' specifications, by their names."""
    documents = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
    assert all({"apiVersion", "kind", "metadata"} <= each.keys() for each in documents)
    return {
        each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in documents if "template" in each["spec"]
    }


def test_the_folder_has_no_other_files() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {*UNITS, "kubernetes.yaml"}


@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_the_units(name: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not there")
    text = (FOLDER / name).read_text().replace("/opt/atoll/bin/atoll", sys.executable)
    (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if name in line]) == (0, []), done.stderr
    (tmp_path / name).write_text(text.replace("Restart=on-failure", "Restart=sometimes"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)], capture_output=True, text=True, timeout=60
    )
    assert name in done.stderr, "what is wrong is found"


def test_what_pods_mount_is_there_and_what_they_claim_is_claimed() -> None:
    documents = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
    claims = {each["metadata"]["name"] for each in documents if each["kind"] == "PersistentVolumeClaim"}
    for pod in pods().values():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounted = {m["name"] for each in pod["initContainers"] + pod["containers"] for m in each["volumeMounts"]}
        assert mounted == volumes.keys()
        claimed = {v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if "persistentVolumeClaim" in v}
        assert claimed <= claims
        assert pod["securityContext"]["runAsUser"] == int(
            re.findall(r"--uid (\d+)", (ROOT / "Dockerfile").read_text())[0]
        )


class Services:
    """Processes whose paths lie in folders of this one."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.metrics = folder, free_port()
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        shutil.copy(ROOT / "examples" / "digits.toml", folder)
        shell("atoll data split digits.toml --out shares", folder)
        port = free_port()
        shell(f"atoll fleet init fleet --nodes 2 --host 127.0.0.1 --listen 127.0.0.1 --port {port}", folder)

    def start(self, name: str, words: list[str], paths: Mapping[str, Path], cwd: Path) -> None:
        """Start what a service starts, with its paths at other places."""
        told = [self.moved(word, paths).replace("9464", str(self.metrics)) for word in words]
        told = [word.replace("0.0.0.0", "127.0.0.1") for word in told]
        with open(self.folder / f"{name}.log", "wb") as log:
            self.children[name] = subprocess.Popen(
                [sys.executable, "-m", "atoll", *told], cwd=cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def moved(self, text: str, paths: Mapping[str, Path]) -> str:
        """Return a text with paths at their places."""
        names = "|".join(map(re.escape, paths))
        return re.sub(rf"(?<!\S)({names})(?=[/\s]|$)", lambda found: str(paths[found[0]]), text)

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def finish(self, atoll: Command, run: Path) -> None:
        """Wait until metrics are shown and the run is over, and replay it."""
        wait_until(lambda: "event 2 of" in self.said("server"), 120, lambda: self.said("server"))
        with urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=30) as answer:
            assert b"atoll_fleet_superlink_up 1.0" in answer.read()
        assert self.children["server"].wait(240) == 0, self.said("server")
        assert atoll("verify", run).succeeded().splitlines()[-1] == "equal"


@pytest.fixture
def services(folder: Path) -> Iterator[Services]:
    found = Services(folder)
    yield found
    for child in found.children.values():
        child.kill()
        child.wait()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_units_commands_run_and_write_where_they_may(services: Services, atoll: Command) -> None:
    pytest.importorskip("prometheus_client")
    for number, name in ((None, "server"), (0, "node"), (1, "node")):
        machine = services.folder / f"machine-{name}-{number}"
        for place in ("etc/atoll", "var/lib/atoll", "srv"):
            (machine / place).mkdir(parents=True)
        shutil.copy(services.folder / "digits.toml", machine / "var/lib/atoll")
        if number is None:
            shutil.copytree(
                services.folder / "fleet", machine / "etc/atoll/fleet", ignore=shutil.ignore_patterns("ca.key")
            )
            (machine / "etc/atoll/fleet/state").mkdir()
        else:
            shutil.copytree(services.folder / f"fleet/nodes/node-{number}", machine / "etc/atoll/node")
            (machine / "etc/atoll/node/state").mkdir()
            shutil.copytree(services.folder / f"shares/client-{number}", machine / "srv/data")
        found = unit(f"atoll-{name}.service")
        program, *words = shlex.split(found["ExecStart"])
        assert program == "/opt/atoll/bin/atoll"
        paths = {path: machine / path[1:] for path in ("/etc/atoll", "/var/lib/atoll", "/srv/data")}
        services.start(
            name if number is None else f"node-{number}", words, paths, machine / found["WorkingDirectory"][1:]
        )
    before = {path for path in services.folder.rglob("machine-*/**/*") if "state" not in path.parts}
    services.finish(atoll, services.folder / "machine-server-None/var/lib/atoll/runs/digits")
    for path in {path for path in services.folder.rglob("machine-*/**/*") if path.is_file()} - before:
        where = path.relative_to(services.folder).parts[0]
        writable = unit(f"atoll-{where.split('-')[1]}.service")["ReadWritePaths"].split()
        assert any(path.is_relative_to(services.folder / where / place[1:]) for place in writable), path


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_pods_commands_run(services: Services, atoll: Command) -> None:
    pytest.importorskip("prometheus_client")
    entries = dict(
        re.findall(
            r"^FROM base AS (\w+)$(?:\n(?!FROM).*)*?\nENTRYPOINT (.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE
        )
    )
    told = re.findall(r"--from-file=([\w.]+)", (FOLDER / "kubernetes.yaml").read_text())
    secrets = {"fleet-server": services.folder / "fleet", "fleet-node-1": services.folder / "fleet/nodes/node-1"}
    for pod, spec in pods().items():
        mounts = [m["mountPath"] for each in spec["initContainers"] + spec["containers"] for m in each["volumeMounts"]]
        paths = {path: services.folder / pod / path[1:] for path in mounts}
        for place in paths.values():
            place.mkdir(parents=True, exist_ok=True)
        shutil.copy(services.folder / "digits.toml", paths["/experiment"])
        for file in secrets[pod].iterdir():
            if file.name in told or pod != "fleet-server":  # of the server's folder those that are named, not ca.key
                shutil.copy(file, paths["/secret"])
        if "/data" in paths:
            shutil.copytree(services.folder / "shares/client-1", paths["/data"], dirs_exist_ok=True)
        (keys,), (container,) = spec["initContainers"], spec["containers"]
        shell(services.moved(keys["command"][2], paths), services.folder)
        _, *entry = yaml.safe_load(entries[container["name"]])
        words = [*entry, *container["args"]]
        services.start(container["name"], words, paths, paths.get("/work", services.folder / pod))
    assert not (services.folder / "fleet-server/fleet/ca.key").exists()
    probe = pods()["fleet-server"]["containers"][0]["livenessProbe"]["httpGet"]
    assert (probe["path"], probe["port"]) == ("/metrics", 9464)
    node = services.folder / "fleet/nodes/node-0"
    services.start(
        "node-0",
        f"fleet node digits.toml --config {node} --data shares/client-0".split(),
        {"/none": node},
        services.folder,
    )
    services.finish(atoll, services.folder / "fleet-server/work/runs/digits")
