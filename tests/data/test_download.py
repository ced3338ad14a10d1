"""Downloads, from a real server on this machine: whole and checked, or not there at all."""

import functools
import gzip
import hashlib
import http.server
import io
import os
import socket
import struct
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pooch
import pytest
import requests

from atoll.data.datasets import find, load
from atoll.data.files import download as fetch
from atoll.data.files.download import download
from atoll.data.files.sources import SOURCES, DownloadSource
from atoll.support.errors import InputError, RunError


class Server:
    """The official servers' stand-in: files by path, the paths asked for, and how to answer them."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.lie = 0  # how many bytes more than it sends the server promises
        handler = functools.partial(_Handler, server_side=self)
        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    def __init__(self, *args: object, server_side: Server) -> None:
        self._side = server_side
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self._side.asked.append(self.path)
        body = self._side.files.get(self.path)
        if body is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) + self._side.lie))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the tests' output quiet."""


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reach the server on this machine whatever proxy the environment names."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("ATOLL_DATA", raising=False)


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def contents(root: Path) -> list[str]:
    """List everything below a folder, hidden files too."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def mnist(server: Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Serve MNIST of the official shapes, all zeros; return the files."""
    shapes = (60_000, 28, 28), (60_000,), (10_000, 28, 28), (10_000,)
    for file, shape in zip(SOURCES["mnist"].files, shapes, strict=True):
        header = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)
        server.files[f"/{file}.gz"] = gzip.compress(header + bytes(int(np.prod(shape))), 1)
    downloads = {server.url + path: sha256(body) for path, body in server.files.items()}
    monkeypatch.setitem(SOURCES, "mnist", replace(SOURCES["mnist"], downloads=downloads))
    return server.files


def serve_archive(server: Server, monkeypatch: pytest.MonkeyPatch, members: dict[str, bytes]) -> None:
    """Serve a .tar.gz in place of CIFAR-10's."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=1) as archive:
        for name, body in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    server.files["/cifar-10-binary.tar.gz"] = stream.getvalue()
    downloads = {f"{server.url}/cifar-10-binary.tar.gz": sha256(stream.getvalue())}
    monkeypatch.setitem(SOURCES, "cifar10", replace(SOURCES["cifar10"], downloads=downloads))


@pytest.fixture
def cifar10(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve an archive of small batches (10 images each) in place of CIFAR-10's."""
    names = (*SOURCES["cifar10"].files, "batches.meta.txt")
    serve_archive(server, monkeypatch, {f"cifar-10-batches-bin/{name}": bytes(10 * 3073) for name in names})


# What works


def test_mnist_is_downloaded_once_and_read(tmp_path: Path, server: Server, mnist: dict[str, bytes]) -> None:
    assert load("mnist", tmp_path).inputs.shape == (60_000, 1, 28, 28)
    assert contents(tmp_path) == sorted(["mnist", *(f"mnist{path}" for path in mnist)])
    assert server.asked == list(mnist)
    load("mnist", tmp_path)
    assert download("mnist", tmp_path) == tmp_path / "mnist"
    assert server.asked == list(mnist)


def test_cifar10_is_downloaded_unpacked_and_the_archive_removed(tmp_path: Path, server: Server, cifar10: None) -> None:
    assert download("cifar10", tmp_path) == tmp_path / "cifar-10-batches-bin"
    assert find("cifar10", tmp_path) == tmp_path / "cifar-10-batches-bin"
    assert not (tmp_path / "cifar-10-binary.tar.gz").exists()
    assert len(contents(tmp_path)) == 1 + len(SOURCES["cifar10"].files) + 1
    assert server.asked == ["/cifar-10-binary.tar.gz"]


def test_emnist_s_files_are_taken_out_of_its_archive(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in (*SOURCES["emnist"].files, "emnist-letters-train-images-idx3-ubyte", "../outside"):
            archive.writestr(f"gzip/{name}.gz", name)
    server.files["/gzip.zip"] = stream.getvalue()
    downloads = {f"{server.url}/gzip.zip": sha256(stream.getvalue())}
    monkeypatch.setitem(SOURCES, "emnist", replace(SOURCES["emnist"], downloads=downloads))
    place = download("emnist", tmp_path)
    assert sorted(path.name for path in place.iterdir()) == sorted(f"{name}.gz" for name in SOURCES["emnist"].files)
    assert contents(tmp_path)[0] == "emnist"


def test_a_root_from_the_environment_is_made_and_used(
    tmp_path: Path, mnist: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path / "new" / "data"))
    load("mnist")
    assert find("mnist") == tmp_path / "new" / "data" / "mnist"


def test_the_users_cache_is_made_and_used(
    tmp_path: Path, mnist: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache" / name)
    load("mnist")
    assert find("mnist") == tmp_path / "cache" / "atoll" / "mnist"


def test_an_empty_folder_is_filled(tmp_path: Path, cifar10: None) -> None:
    (tmp_path / "cifar-10-batches-bin").mkdir()
    download("cifar10", tmp_path)
    assert find("cifar10", tmp_path) is not None


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX permissions")
def test_other_users_can_read_what_was_downloaded(tmp_path: Path, mnist: dict[str, bytes], cifar10: None) -> None:
    for name in ("mnist", "cifar10"):
        folder = download(name, tmp_path)
        assert all(path.stat().st_mode & 0o044 == 0o044 for path in (folder, *folder.iterdir()))


def test_of_two_downloads_at_once_the_first_stays(
    tmp_path: Path, cifar10: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gather = fetch._gather

    def gather_while_another_finishes(url: str, checksum: str, staging: Path, source: DownloadSource) -> None:
        gather(url, checksum, staging, source)
        monkeypatch.setattr(fetch, "_gather", gather)
        download("cifar10", tmp_path)
        (tmp_path / source.folder / "first").touch()

    monkeypatch.setattr(fetch, "_gather", gather_while_another_finishes)
    assert download("cifar10", tmp_path) == tmp_path / "cifar-10-batches-bin"
    assert (tmp_path / "cifar-10-batches-bin" / "first").exists()
    assert contents(tmp_path)[0] == "cifar-10-batches-bin"


def test_nothing_is_printed_where_there_is_no_terminal(
    tmp_path: Path, cifar10: None, capfd: pytest.CaptureFixture[str]
) -> None:
    download("cifar10", tmp_path)
    assert capfd.readouterr() == ("", "")


def test_a_terminal_shows_a_bar(
    tmp_path: Path, cifar10: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    download("cifar10", tmp_path)
    shown = capsys.readouterr()
    assert "cifar-10-binary.tar.gz" in shown.err
    assert shown.out == ""


# What fails


def assert_fails_and_leaves_nothing(name: str, root: Path, said: str) -> str:
    with pytest.raises(RunError, match=said) as caught:
        load(name, root)
    message = str(caught.value)
    assert message.startswith(f"{name} could not be downloaded")
    assert all(file in message for file in SOURCES[name].files)
    assert "data.root or ATOLL_DATA" in message
    assert "\n" not in message
    assert contents(root) == []
    return message


@pytest.mark.parametrize("at", [0, 3])
def test_a_wrong_checksum_discards_everything(tmp_path: Path, server: Server, mnist: dict[str, bytes], at: int) -> None:
    path = list(mnist)[at]
    server.files[path] += b"?"
    message = assert_fails_and_leaves_nothing("mnist", tmp_path, "the checksum is not that of the official")
    assert f"from {server.url}{path} into {tmp_path}" in message
    server.files[path] = server.files[path][:-1]
    assert len(load("mnist", tmp_path).targets) == 60_000


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_broken_transfer_leaves_nothing(
    tmp_path: Path, server: Server, mnist: dict[str, bytes], cifar10: None, name: str
) -> None:
    server.lie = 1000
    assert_fails_and_leaves_nothing(name, tmp_path, "the transfer broke off|the checksum is not")


def test_a_file_that_the_server_lacks_is_named(tmp_path: Path, server: Server, mnist: dict[str, bytes]) -> None:
    path = list(mnist)[2]
    del server.files[path]
    message = assert_fails_and_leaves_nothing("mnist", tmp_path, "the server answered 404 Not Found")
    assert server.url + path in message


def test_a_refused_request_leaves_no_open_connection(tmp_path: Path, server: Server, mnist: dict[str, bytes]) -> None:
    server.files.clear()
    with pytest.raises(RunError) as caught:
        load("mnist", tmp_path)
    refusal = caught.value.__cause__
    assert isinstance(refusal, requests.HTTPError)
    assert refusal.response is not None
    assert refusal.response.raw.closed


def test_no_network_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/cifar-10-binary.tar.gz"
        source = replace(SOURCES["cifar10"], downloads={url: "md5:0"})
        monkeypatch.setitem(SOURCES, "cifar10", source)
        message = assert_fails_and_leaves_nothing("cifar10", tmp_path, "the server cannot be reached")
    assert url in message


def test_an_archive_that_is_none_is_said_so(
    tmp_path: Path, server: Server, cifar10: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/cifar-10-binary.tar.gz"
    for body in (b"no archive", server.files[path][:200], b""):
        server.files[path] = body
        source = replace(SOURCES["cifar10"], downloads={server.url + path: sha256(body)})
        monkeypatch.setitem(SOURCES, "cifar10", source)
        assert_fails_and_leaves_nothing("cifar10", tmp_path, "the archive cannot be unpacked")


def test_an_archive_cannot_write_outside_its_folder(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    serve_archive(server, monkeypatch, {"../../escaped": b"bad"})
    assert_fails_and_leaves_nothing("cifar10", root, "the archive cannot be unpacked")
    assert contents(tmp_path) == ["root"]


def test_an_archive_of_something_else_leaves_nothing(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_archive(server, monkeypatch, {"other/file": b"good"})
    assert_fails_and_leaves_nothing("cifar10", tmp_path, "the download lacks data_batch_1.bin")


def test_files_that_are_there_are_never_replaced_or_mixed(
    tmp_path: Path, server: Server, mnist: dict[str, bytes]
) -> None:
    (tmp_path / "mnist").mkdir()
    mine = tmp_path / "mnist" / "train-images-idx3-ubyte"
    mine.write_bytes(b"mine")
    with pytest.raises(InputError, match=r"lacks train-labels-idx1-ubyte, t10k-images.*move the folder away"):
        load("mnist", tmp_path)
    assert mine.read_bytes() == b"mine"
    assert contents(tmp_path) == ["mnist", "mnist/train-images-idx3-ubyte"]
    assert server.asked == []


def test_a_root_that_cannot_be_made_is_named(
    tmp_path: Path, mnist: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path / "file" / "data"))
    with pytest.raises(RunError, match=r"could not be downloaded into .*data: Not a directory"):
        load("mnist")
