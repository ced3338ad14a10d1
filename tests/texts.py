"""A tokenizer, tiny models and texts in two made-up languages, for tests; all made here, nothing is downloaded."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

WORDS = {"north": ["ak", "kek", "eka", "kak"], "south": ["olo", "lul", "uo", "oll"]}
LENGTH = 16


def make_texts(count: int = 24, seed: int = 0) -> list[dict[str, Any]]:
    """Return rows: one language of two, one client of two in it, a text of one to three words, whether it is short."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        language = list(WORDS)[number % 2]
        words = rng.choice(WORDS[language], size=1 + number % 3).tolist()
        client = f"{language}-{number // 2 % 2}"
        rows.append({"language": language, "client": client, "text": " ".join(words), "short": str(number % 3 == 0)})
    return rows


def write_texts(folder: Path, rows: list[dict[str, Any]] | None = None) -> None:
    pq.write_table(pa.Table.from_pylist(rows or make_texts()), folder / "texts.parquet")


def make_all(folder: Path) -> Path:
    """Write the texts, and beside them the folder of a base; return the folder."""
    write_texts(folder)
    write_gpt2(folder / "base")
    return folder


def work_beside(made: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder beside what `make_all` has written, with a cache of one's own; return the folder."""
    for each in made.iterdir():
        (folder / each.name).symlink_to(each)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    return folder


def write_tokenizer(folder: Path) -> None:
    """Write one of letters: each byte is a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))


def write_gpt2(folder: Path, **changes: Any) -> None:
    """Write a GPT-2 of one layer for next tokens, drawn from a seed, and its tokenizer."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 257, "n_positions": LENGTH, "n_embd": 8, "n_layer": 1, "n_head": 2, "bos_token_id": None}
    dropped = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        GPT2LMHeadModel(GPT2Config(**{**sizes, **dropped, "eos_token_id": 256, **changes})).save_pretrained(folder)
    write_tokenizer(folder)


SETTINGS: dict[str, Any] = {
    "name": "texts",
    "rounds": 2,
    "data": {
        "dataset": "table",
        "root": "texts.parquet",
        "inputs": "text",
        "client": "client",
        "group": "language",
        "task": "causal",
        "tokenizer": "base",
        "length": LENGTH,
        "partition": "natural",
        "clients": 4,
    },
    "model": {"name": "pretrained", "path": "base", "lora": {"r": 2, "target_modules": "all-linear"}},
    "local": {"lr": 0.1, "steps": 3, "batch_size": "full"},
    "method": {"name": "fedavg", "fraction": 1.0},
    "run": {"executor": "serial"},
}


def changed(**sections: Any) -> dict[str, Any]:
    """Return the settings with some changed, by section; None leaves a setting out."""
    merged = {**SETTINGS, **{key: value for key, value in sections.items() if not isinstance(value, dict)}}
    for key, value in sections.items():
        if isinstance(value, dict):
            own = {**SETTINGS.get(key, {}), **value}
            merged[key] = {name: each for name, each in own.items() if each is not None}
    return merged
