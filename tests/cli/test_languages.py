"""The recipe of languages, on the texts and the base that its example makes of a package with few messages."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from babel.messages import Catalog
from babel.messages.mofile import write_mo

import atoll
from tests.cli.conftest import Command
from tests.cli.pages import ROOT, write_files

pytestmark = [
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("peft", "transformers"))), reason="the extra text is not installed"
    ),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.more,
]

ENDINGS = {"de": "en", "es": "os", "fi": "nen", "fr": "eaux", "it": "ini", "pl": "ych"}
TINY = ("data.clients=6", "method.clusters=2", "rounds=2", "method.warmup=1", "local.steps=2", "run.evaluate_every=1")


def write_package(folder: Path) -> None:
    """Write a package with 40 messages in each language, of which one is plural and one has a context."""
    for language, ending in ENDINGS.items():
        catalogue = Catalog(language)
        for number in range(38):
            catalogue.add(f"word{number} of many", string=f"wort{number}{ending} viel{ending}")
        catalogue.add(("%d day", "%d days"), string=(f"%d tag{ending}", f"%d tage{ending}"))
        catalogue.add("May", string=f"mai{ending}", context="month")
        place = folder / "django" / "conf" / "locale" / language / "LC_MESSAGES"
        place.mkdir(parents=True)
        with (place / "django.mo").open("wb") as file:
            write_mo(file, catalogue)
    (folder / "django" / "__init__.py").touch()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which the example has made the files of languages."""
    folder = tmp_path_factory.mktemp("languages")
    write_package(folder / "packages")
    command = [
        sys.executable,
        str(ROOT / "examples" / "make_languages.py"),
        "languages",
        "--clients",
        "1",
        "--steps",
        "2",
    ]
    environment = {**os.environ, "PYTHONPATH": str(folder / "packages"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.endswith("on English in languages\n"), done.stderr
    return folder / "languages"


@pytest.fixture
def languages(folder: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, folder / "languages")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    return folder / "languages"


def test_texts_are_the_messages_and_the_same_ones_are_for_testing_in_all_languages(languages: Path) -> None:
    rows = pq.read_table(languages / "texts.parquet").to_pylist()
    assert Counter(row["language"] for row in rows) == dict.fromkeys(ENDINGS, 41)  # a plural has two
    assert all(row["client"] == f"{row['language']}-0" for row in rows)
    tests = {
        language: {
            row["text"].replace(ending, "") for row in rows if (row["language"], row["split"]) == (language, "test")
        }
        for language, ending in ENDINGS.items()
    }
    assert 2 < len(tests["de"]) < 20
    assert all(each == tests["de"] for each in tests.values())


def test_the_recipe_runs_on_them(languages: Path, atoll: Command) -> None:
    words = [word for change in TINY if not change.startswith("method") for word in ("--set", change)]
    atoll("run", "languages", "--scale", "tiny", "--only", "One", *words, "--out", "one", "--quiet").succeeded()
    words = [word for change in TINY for word in ("--set", change)]
    atoll("run", "languages", "--scale", "tiny", "--only", "HC", *words, "--out", "found", "--quiet").succeeded()
    rows = [json.loads(line) for line in (languages.parent / "found/metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["round"] == 2
    assert len(rows[-1]["cluster_perplexity"]) == 2
    assert rows[-1]["bytes_up"] == 65_536 * rows[-1]["client_updates"], "adapters alone, as the page says"


def test_adapters_compressed_and_of_averaged_products(languages: Path, atoll: Command) -> None:
    words = [word for change in TINY if not change.startswith("method") for word in ("--set", change)]
    sent = {}
    for change in ("travel.codec=bfloat16", "travel.codec=int8", "method.combine=lora-product"):
        told = atoll("run", "languages", "--only", "One", *words, "--set", change, "--out", change, "--quiet")
        told.succeeded()
        rows = [json.loads(line) for line in (languages.parent / change / "metrics.jsonl").read_text().splitlines()]
        sent[change] = rows[-1]["bytes_up"] / rows[-1]["client_updates"]
        assert rows[-1]["perplexity"] < rows[0]["perplexity"]
    assert list(sent.values()) == [32_768, 16_384 + 4 * 16, 65_536]  # int8: and a scale for each of 16 tensors


def test_clusters_found_by_loss_need_adapters_that_differ(languages: Path) -> None:
    for initial, alike in ((True, True), (False, False)):
        (settings, _) = atoll.make_runs(atoll.read_experiment("languages"), "tiny", ["data.clients=6"])
        lora = {**settings.model.get("lora"), "init_lora_weights": initial}
        method = {"name": "ifca", "clusters": 2, "fraction": 1.0}
        made = atoll.Experiment(settings, model={**dict(settings.model), "lora": lora}, method=method, rounds=1)
        losses = made.execution.make_cluster_evaluator().score(made.training.initial_models()).losses
        assert (losses[1] is None) == alike, "all choose the first of equal ones"


def test_the_experiment_on_the_page_runs(languages: Path, atoll: Command) -> None:
    assert write_files(ROOT / "docs/text.md", languages) == ["tuned.toml"]
    table = pq.read_table(languages / "texts.parquet")
    names = ["person" if name == "client" else name for name in table.column_names]
    pq.write_table(table.rename_columns(names), languages / "texts.parquet")
    settings = ("data.clients=6", "rounds=1", "local.steps=1", "data.root=languages/texts.parquet")
    words = [
        word
        for each in (*settings, "data.tokenizer=languages/base", "model.path=languages/base")
        for word in ("--set", each)
    ]
    atoll("run", "languages/tuned.toml", *words, "--out", "tuned", "--quiet").succeeded()
    assert (languages.parent / "tuned" / "summary.json").is_file()


def test_without_the_files_the_recipe_says_what_is_missing(atoll: Command, folder: Path) -> None:
    assert "languages/texts.parquet" in atoll("run", "languages", "--scale", "tiny").refused()
