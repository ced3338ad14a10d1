"""Make texts in several languages, and a small model that knows English alone, for the recipe `languages`.

Run:  pip install Django==5.2.19 'transformers>=5.23' && python examples/make_languages.py DIR

Reads the messages of Django's translations (BSD, as Django itself): some 800 in each language, from a word to a few
sentences, the same ones in all. Nothing is downloaded. Writes into the folder:

- texts.parquet: one row per message: language, client, text and split. A language's messages are dealt among its
  clients; every fifth message is for testing, in all languages the same ones;
- base: a GPT-2 of 2 layers, trained here from nothing on the English originals, with the tokenizer of all languages.

`atoll run languages` takes them from the folder `languages`.
"""

import argparse
import gettext
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LANGUAGES = ("de", "es", "fi", "fr", "it", "pl")
SHORTEST = 4  # characters of a message
VOCABULARY = 512
LENGTH = 64  # tokens of the base's texts
WIDTH, LAYERS, HEADS = 64, 2, 4
RATE, BATCH = 3e-3, 32


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--clients", type=int, default=4, help="clients of each language")
    parser.add_argument("--steps", type=int, default=300, help="steps that train the base")
    given = parser.parse_args()
    if (found := find_spec("django")) is None or found.origin is None:
        raise SystemExit("needs the package django; run pip install Django==5.2.19")
    folder = Path(found.origin).parent
    texts = {language: messages(folder, language) for language in LANGUAGES}
    english = sorted({original for own in texts.values() for original in own})
    given.out.mkdir(parents=True, exist_ok=True)
    rows = [row for language, own in texts.items() for row in rows_of(language, own, given.clients)]
    write_table(given.out / "texts.parquet", rows)
    every_text = [*english, *(row["text"] for row in rows)]
    tokenizer = make_tokenizer(every_text)
    loss = write_base(given.out / "base", tokenizer, [text for text in english if not is_test(text)], given.steps)
    print(f"{len(rows)} texts in {len(LANGUAGES)} languages, a base with loss {loss:.2f} on English in {given.out}")


def messages(folder: Path, language: str) -> dict[str, str]:
    """Return a language's messages by their English originals; of plurals, each form."""
    found = {}
    for path in sorted(folder.glob(f"**/locale/{language}/LC_MESSAGES/django*.mo")):
        with path.open("rb") as file:
            catalogue: dict[Any, str] = vars(gettext.GNUTranslations(file))["_catalog"]
        for key, text in catalogue.items():
            original, form = key if isinstance(key, tuple) else (key, 0)
            if original and len(text) >= SHORTEST:
                told = original.rpartition("\x04")[2]  # after what the message is about
                found[" ".join(told.split()) + " " * form] = " ".join(text.split())
    return found


def is_test(original: str) -> bool:
    """Return whether a message is for testing."""
    return zlib.crc32(original.strip().encode()) % 5 == 0


def rows_of(language: str, texts: dict[str, str], clients: int) -> Iterator[dict[str, str]]:
    """Yield a language's rows, its messages dealt among its clients."""
    seen = set[str]()
    for original, text in sorted(texts.items()):
        if text in seen or text == original:
            continue
        seen.add(text)
        client = zlib.crc32(f"client {original.strip()}".encode()) % clients
        split = "test" if is_test(original) else "train"
        yield {"language": language, "client": f"{language}-{client}", "text": text, "split": split}


def write_table(path: Path, rows: list[dict[str, str]]) -> None:
    """Write the texts."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), path)


def make_tokenizer(texts: list[str]) -> Any:
    """Return a tokenizer of byte pairs, which knows every text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet))
    return made


def write_base(folder: Path, tokenizer: Any, texts: list[str], steps: int) -> float:
    """Train a model on texts and write it with its tokenizer; return its last loss."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config)
    ids = [each.ids[:LENGTH] for each in tokenizer.encode_batch(texts)]
    ids = [each for each in ids if len(each) > 1]
    tokens, labels = torch.zeros(len(ids), LENGTH, dtype=torch.long), torch.full((len(ids), LENGTH), -100)
    for row, own in enumerate(ids):
        tokens[row, : len(own)] = labels[row, : len(own)] = torch.tensor(own)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    last = 0.0
    for _ in range(steps):
        rows = torch.randint(len(ids), (BATCH,))
        longest = int((labels[rows] >= 0).sum(dim=1).max())
        loss = model(input_ids=tokens[rows, :longest], labels=labels[rows, :longest]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        last = float(loss.detach())
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return last


if __name__ == "__main__":
    main()
