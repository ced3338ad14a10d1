"""The gallery, the pages for those who come from elsewhere, and the how-tos: carried out as they are printed."""

import json
import re
import tomllib
import types
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.pages import ROOT, blocks, shell, write_files
from tests.hooks import hook_of

DOCS = ROOT / "docs"
GALLERY = hook_of("draw_gallery")
EXAMPLES = list(GALLERY.examples())
COMING = sorted((DOCS / "coming-from").glob("*.md"))
SAME = 0.9  # likeness from which on two pictures show the same


def carried_out(page: Path, folder: Path) -> None:
    """Write a page's files into a folder and run its commands there."""
    write_files(page, folder)
    shell("\n".join(block.text for block in blocks(page, "sh")), folder)


def test_the_gallery_has_a_small_picture_a_card_and_a_text_for_each_example() -> None:
    page = GALLERY.GALLERY.read_text()
    assert len(EXAMPLES) == page.count("\n## ") - 1 >= 10, "the last section says how they are drawn"
    assert {path.stem for path in GALLERY.PICTURES.iterdir()} == set(EXAMPLES)
    for name, section in GALLERY.examples().items():
        assert (GALLERY.PICTURES / f"{name}.png").stat().st_size < 60_000
        assert f"[![](images/gallery/{name}.png) {section.splitlines()[0]}](#" in page
        assert re.search(r"More:\s\[", section) or "](settings.md)" in section


@pytest.mark.more
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_the_gallery_draws_the_picture_that_is_shown(name: str, tmp_path: Path) -> None:
    if name == "privacy" and not find_spec("dp_accounting"):
        pytest.skip("needs dp-accounting")
    drawn = GALLERY.carry_out(name, tmp_path)
    with Image.open(GALLERY.PICTURES / f"{name}.png") as shown:
        assert shown.size == drawn.size
        assert likeness(shown, drawn) > SAME
    for other in set(EXAMPLES) - {name}:
        with Image.open(GALLERY.PICTURES / f"{other}.png") as wrong:
            assert likeness(wrong, drawn) < SAME


def likeness(one: Image.Image, other: Image.Image) -> float:
    """Return the correlation of two pictures' grey, coarsely: another processor's rounding counts for little."""
    greys = [np.asarray(each.convert("L").resize((90, 45)), float).ravel() for each in (one, other)]
    return float(np.corrcoef(greys)[0, 1])


@pytest.mark.more
def test_the_atoll_side_of_coming_from_flower_runs(tmp_path: Path) -> None:
    carried_out(DOCS / "coming-from/flower.md", tmp_path)
    rounds = [final(tmp_path / "runs" / name)["round"] for name in ("digits", "short", "halfway")]
    assert rounds == [10, 2, 10]
    assert final(tmp_path / "runs/halfway")["train_loss"] != final(tmp_path / "runs/digits")["train_loss"]


@pytest.mark.more
def test_the_atoll_side_of_coming_from_pfl_research_runs(tmp_path: Path) -> None:
    if not find_spec("dp_accounting"):
        pytest.skip("needs dp-accounting")
    page = DOCS / "coming-from/pfl-research.md"
    carried_out(page, tmp_path)
    assert final(tmp_path / "runs/digits")["test_accuracy"] > 0.5
    (priced,) = (block.text for block in blocks(page, "sh") if "private.toml" in block.text)
    assert "epsilon = " in shell(priced, tmp_path), "what clip and noise cost is printed before training"


@pytest.mark.more
def test_the_atoll_side_of_coming_from_pfllib_runs_and_its_own_fedprox_is_fedprox(tmp_path: Path) -> None:
    carried_out(DOCS / "coming-from/pfllib.md", tmp_path)
    own, built_in = (final(tmp_path / "runs" / name) for name in ("mine", "fedprox"))
    assert own["train_loss"] == pytest.approx(built_in["train_loss"], rel=1e-4)
    assert "client_accuracy" in final(tmp_path / "runs/digits/ditto")


@pytest.mark.more
def test_the_flower_side_is_written_for_the_installed_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr.serverapp")
    task = types.ModuleType("task")
    vars(task).update(Net=object, load_data=None, test=None)
    monkeypatch.setitem(__import__("sys").modules, "task", task)
    pieces = [block.text for block in blocks(DOCS / "coming-from/flower.md", "python") if not block.title]
    assert len(pieces) == 3
    for text in pieces:
        names: dict[str, object] = {}
        exec(compile(text, "flower.md", "exec"), names)
    strategy = names["Halfway"](fraction_train=0.5, fraction_evaluate=0.0)  # type: ignore[operator]
    assert strategy.fraction_train == 0.5
    assert callable(strategy.start)


@pytest.mark.parametrize("page", COMING, ids=lambda page: page.stem)
def test_others_code_stands_beside_ours_and_only_ours_is_carried_out(page: Path, tmp_path: Path) -> None:
    pairs = page.read_text().split('<div class="beside" markdown>')[1:]
    assert len(pairs) == 2
    for pair in pairs:
        theirs, _, ours = pair.partition("**Atoll**")
        assert re.search("^```(python|text)$", theirs, re.MULTILINE)
        assert not re.search("^```(sh$|.* title=)", theirs, re.MULTILINE)
        assert re.search("^```(sh$|.* title=)", ours, re.MULTILINE)


def final(folder: Path) -> dict[str, float]:
    """Return the last row of a run."""
    row: dict[str, float] = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    return row


def test_every_question_has_an_answer_before_its_command() -> None:
    sections = re.split(r"^### ", (DOCS / "faq.md").read_text(), flags=re.MULTILINE)[1:]
    assert len(sections) >= 20
    for section in sections:
        question, _, answer = section.partition("\n")
        assert not answer.strip().startswith("```"), f"{question!r} has no words of its own"
        assert answer.strip()


def test_llms_txt_has_the_form_of_llmstxt_org_and_names_every_page_once() -> None:
    title, quote, *_ = (text := (DOCS / "llms.txt").read_text()).split("\n\n")
    assert title == "# Atoll"
    assert all(line.startswith("> ") for line in quote.splitlines())
    _, *sections = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    assert sections[::2][-1] == "Optional"
    links = []
    for section in sections[1::2]:
        for line in section.strip().splitlines():
            match = re.fullmatch(r"- \[[^]]+\]\(([\w/-]+\.md)\): .+", line)
            assert match, f"llmstxt.org has lines like - [name](url): notes, not {line!r}"
            links.append(match[1])
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2].partition("\nplugins:")[0]
    assert sorted(links) == sorted(re.findall(r"[\w/-]+\.md", navigation))


def test_the_page_on_platforms_says_what_pyproject_the_locks_and_the_workflow_say() -> None:
    page = (DOCS / "platforms.md").read_text()
    said = {cells[1].strip(): cells[2:4] for line in page.splitlines() if len(cells := line.split("|")) == 5}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    pythons = re.search(r"python: (\[.*?\])", workflow)
    flowers = re.search(r"flower: (\[.*?\])", workflow)
    assert pythons is not None
    assert flowers is not None
    assert " and ".join(json.loads(pythons[1])) == said["Python"][0].strip()
    assert said["Python"][1].strip() == f"{project['requires-python'].removeprefix('>=')} and later"
    pinned = re.search(r"^torch==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert pinned is not None
    assert said["PyTorch"][0].strip() == pinned[1]
    lowest = next(each for each in project["dependencies"] if each.startswith("torch>="))
    assert said["PyTorch"][1].strip() == f"{lowest.removeprefix('torch>=')} and later"
    flower = said["Flower, for a [fleet](fleet.md)"]
    assert [cell.strip() for cell in flower] == [" and ".join(json.loads(flowers[1])).replace(".*", "")] * 2
    assert "runs-on: ubuntu-latest" in workflow
    assert not re.search("macos|windows", workflow), "then the page says so"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_how_tos_run_from_top_to_bottom(tmp_path: Path) -> None:
    files = write_files(DOCS / "howto.md", tmp_path)
    lines = [
        line for block in blocks(DOCS / "howto.md", "sh") for line in block.text.splitlines() if "cuda" not in line
    ]
    assert len(lines) >= 15
    assert {f"python {name}" for name in files if name.endswith(".py") and name != "rates.py"} <= set(lines)
    shell("\n".join(lines), tmp_path, 800)
    names = ("mine", "reached", "patient", "again", "clients", "halved")
    ends = {name: final(tmp_path / "runs" / name) for name in names}
    assert (ends["mine"]["round"], ends["again"]["train_loss"]) == (15, ends["mine"]["train_loss"])
    assert ends["reached"]["test_accuracy"] >= 0.4
    assert max(ends[name]["round"] for name in ("reached", "patient")) < 10, "the rounds without a condition"
    assert ends["clients"]["worst_client_accuracy"] >= 0
    assert ends["halved"]["learning_rate"] == pytest.approx(0.05)
    assert (tmp_path / "mine.safetensors").is_file()
    assert (tmp_path / "paper/table.tex").is_file()
