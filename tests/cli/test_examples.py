"""Words of a command line, by example."""

from pathlib import Path

from atoll.cli.common import option_words
from atoll.cli.fleet_commands import _is_host


def test_options_become_words() -> None:
    words = option_words(("--out", Path("a")), ("--seed", None), ("--json", True), ("--target", [0.5, 0.9]))
    assert words == ["--out", "a", "--json", "--target", "0.5", "--target", "0.9"]


def test_hosts_have_no_port_and_no_brackets() -> None:
    hosts = ("fleet.example.org", "::1", "[::1]", "example.org:9092")
    assert [_is_host(host) for host in hosts] == [True, True, False, False]
