"""A column of texts as tokens, made once and cached."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.data.tabular.column_types import is_text, kind_of_values
from atoll.data.tabular.source import TableSource
from atoll.data.tabular.table_rows import LEFT_OUT, Uses
from atoll.data.tabular.table_settings import Wanted
from atoll.support.arrays import Ids
from atoll.support.errors import InputError, RunError
from atoll.support.extras import load_extra
from atoll.support.files import make_folder, write_atomically
from atoll.support.numpy_files import read_npz

FILE = "tokenizer.json"
NONE = -1  # beyond a text's end


@dataclass(frozen=True, eq=False)
class Tokens:
    """Samples made of texts, the shortest first, so that those measured together are of similar length.

    Attributes:
        rows: the table's row that each sample is of, [samples].
        values: its tokens, -1 beyond its end, [samples, length].
    """

    rows: Ids
    values: npt.NDArray[np.int32]


def read_tokens(source: TableSource, inputs: tuple[str, ...], uses: Uses, wanted: Wanted) -> Tokens:
    """Return the texts of all rows but those left out: each cut into samples if `task` is causal, else shortened."""
    (name, *others), causal = inputs, wanted.task == "causal"
    if others or not is_text(kind_of_values(source.schema.field(name))):
        raise InputError(f"data.inputs = {list(inputs)}: must be one column of texts with data.tokenizer")
    texts = [text or "" for batch in source.batches([name]) for text in batch.column(0).to_pylist()]
    ids, ends = _tokenised(load_tokenizer(str(wanted.tokenizer)), texts)
    rows, pieces = list[int](), list[npt.NDArray[np.int32]]()
    for row in np.flatnonzero(uses != LEFT_OUT).tolist():
        own = list(_pieces(ids[ends[row] : ends[row + 1]], wanted.length, causal))
        if not own and wanted.missing != "drop":
            what = "fewer than two tokens" if causal else "no text"
            raise InputError(
                f"data.inputs = {name!r}: row {row} of the table, counted from 0, has {what}; data.missing = 'drop' "
                "leaves such rows out"
            )
        rows += [row] * len(own)
        pieces += own
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    order = np.argsort(sizes, kind="stable")
    values = np.full((len(pieces), wanted.length), NONE, np.int32)
    for place, sample in enumerate(order.tolist()):
        values[place, : sizes[sample]] = pieces[sample]
    return Tokens(np.array(rows, np.int64)[order], values)


def _pieces(ids: npt.NDArray[np.int32], length: int, causal: bool) -> Iterator[npt.NDArray[np.int32]]:
    """Yield a text's samples; one token alone has nothing to predict."""
    for low in range(0, len(ids) if causal else min(len(ids), 1), length):
        if len(piece := ids[low : low + length]) > causal:
            yield piece


def load_tokenizer(path: str) -> Any:
    """Return the tokenizer of a folder, a file, or a name on Hugging Face's hub, without its padding."""
    told = f"data.tokenizer = {path!r}"
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # without a network the hub's client tells of each try
    read = load_extra("tokenizers", "text", told).Tokenizer
    place = Path(path).expanduser()
    file = place / FILE if place.is_dir() else place
    if place.is_dir() and not file.is_file():
        raise InputError(f"{told}: the folder lacks {FILE}, which tokenizer.save_pretrained writes")
    try:
        made = read.from_file(str(file)) if file.is_file() else read.from_pretrained(path)
    except Exception as error:  # of no class of its own, from the file, the hub or the network
        what = "cannot be read" if file.is_file() else "is no folder or file here, and cannot be loaded from the hub"
        raise InputError(f"{told}: {what} ({' '.join(str(error).split()).partition('. ')[0][:200]})") from error
    made.no_padding()
    made.no_truncation()
    return made


def _tokenised(tokenizer: Any, texts: list[str]) -> tuple[npt.NDArray[np.int32], Ids]:
    """Return all texts' tokens, and where each begins and ends; from the user's cache if they were made before."""
    import pooch

    made_of = hashlib.sha256(tokenizer.to_str().encode())
    for text in texts:
        made_of.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
    file = Path(pooch.os_cache("atoll"), "tokens", f"{made_of.hexdigest()}.npz")
    with suppress(OSError, ValueError, KeyError):  # not there, or damaged
        kept = read_npz(file)
        return kept["ids"], kept["ends"]
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads do not survive the fork of workers
    parts = [each.ids for each in tokenizer.encode_batch(texts)]
    ids = np.fromiter((token for part in parts for token in part), np.int32)
    ends = np.cumsum([0, *map(len, parts)])
    content = BytesIO()
    np.savez(content, ids=ids, ends=ends)
    with suppress(RunError):  # a cache that cannot be written saves no time, and does no harm
        make_folder(file.parent)
        write_atomically(file, content.getvalue())
    return ids, ends
