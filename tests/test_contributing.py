"""What those need who carry the project on is true: files, links, targets, commands, versions."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import atoll.cli  # noqa: F401  (registers the commands)
from atoll.cli.common import app
from tests.cli.pages import ROOT

PAGES = ["CONTRIBUTING.md", "SECURITY.md", "README.md", ".github/pull_request_template.md"]
FORMS = sorted(path.name for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")


def read(path: str) -> str:
    return (ROOT / path).read_text()


def command_of(words: list[str]) -> Any:
    """Return the command that these words name; it must be there."""
    command: Any = typer.main.get_command(app)
    for word in words:
        command = getattr(command, "commands", {})[word]
    return command


def options_of(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page: str) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", read(page)):
        path, _, heading = link.partition("#")
        target = (ROOT / page).parent / path
        assert target.exists(), link
        assert not heading or heading in headings_of(target), link


def headings_of(page: Path) -> list[str]:
    """Return the anchors of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles]


@pytest.mark.parametrize("page", PAGES[:2])
def test_files_that_are_named_are_there(page: str) -> None:
    named = re.findall(
        r"`((?:src|tests|docs|benchmarks|examples|\.\w+)/[\w./-]+|[\w-]+\.(?:toml|lock|md|cff))`", read(page)
    )
    assert named
    assert [name for name in named if not (ROOT / name).exists() and name != "node.toml"] == []  # which owners write


@pytest.mark.parametrize("page", [*PAGES, ".ci/run", ".github/workflows/ci.yml"])
def test_targets_of_make_that_are_named_are_there(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    named = re.findall(r"^(?:- run: )?make (?:--\S+ )*([a-z][a-z-]*)|`make ([a-z][a-z -]*)`", read(page), re.MULTILINE)
    assert {word for pair in named for word in " ".join(pair).split()} <= targets


@pytest.mark.parametrize("page", PAGES[:2])
def test_commands_that_are_named_are_there(page: str) -> None:
    for line in re.findall(r"`atoll ([a-z -]+)`", read(page)):
        words = [word for word in line.split() if not word.startswith("-")]
        group = command_of(words[:1])
        if getattr(group, "commands", {}):
            command_of(words[:2])


def test_the_images_run_commands_that_are_there_with_options_that_they_take() -> None:
    entries = re.findall(r"^FROM base AS (\w+)$(?:\n(?!FROM).*)*?\nENTRYPOINT (.*)$", read("Dockerfile"), re.MULTILINE)
    assert {name for name, _ in entries} == {"server", "node"}
    for name, entry in entries:
        program, *words = yaml.safe_load(entry)
        assert (program, words[:2]) == ("atoll", ["fleet", name])
        assert {word for word in words if word.startswith("--")} <= options_of(command_of(words[:2]))


def test_the_images_have_what_they_copy_and_do_not_run_as_root() -> None:
    text = read("Dockerfile")
    copied = [word for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE) for word in line.split()[:-1]]
    kept = {line[1:] for line in read(".dockerignore").splitlines() if line.startswith("!")}
    assert set(copied) == kept
    assert all((ROOT / name).exists() for name in copied)
    assert text.index("\nUSER atoll\n") < min(text.index(" AS node"), text.index(" AS server"))


def test_the_commands_in_the_dockerfiles_head_are_valid() -> None:
    runs = re.findall(r"^#   docker run .* atoll-(\w+) (.*)$", read("Dockerfile"), re.MULTILINE)
    assert len(runs) == 2
    for name, rest in runs:
        taken = {word for word in shlex.split(rest) if word.startswith("--")}
        assert taken <= options_of(command_of(["fleet", name]))


def test_the_workflow_runs_ci_on_the_oldest_and_the_newest_python() -> None:
    jobs = yaml.safe_load(read(".github/workflows/ci.yml"))["jobs"]
    checks = jobs["checks"]
    assert "bash .ci/run" in [step.get("run", "") for step in checks["steps"]]
    classifiers = tomllib.loads(read("pyproject.toml"))["project"]["classifiers"]
    named = re.findall(r":: (3\.\d+)$", "\n".join(classifiers), re.MULTILINE)
    assert checks["strategy"]["matrix"]["python"] == [named[0], named[-1]]
    assert set(jobs["images"]["strategy"]["matrix"]["target"]) == {"server", "node"}


@pytest.mark.parametrize("form", FORMS)
def test_forms_for_issues_have_what_github_asks_for(form: str) -> None:
    content = yaml.safe_load(read(f".github/ISSUE_TEMPLATE/{form}"))
    assert content.keys() >= {"name", "description", "body"}
    fields = [field for field in content["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)


def test_the_archive_for_others_holds_what_its_tests_read() -> None:
    included = tomllib.loads(read("pyproject.toml"))["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {"/src", "/tests", "/docs", "/CONTRIBUTING.md", "/SECURITY.md"} <= set(included)
    assert [name for name in included if not Path(f"{ROOT}{name}").exists()] == []
