"""`model.name = "pretrained"`: a transformer in a folder, or on Hugging Face's hub, with LoRA's adapters."""

import warnings
from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.data.dataset import Dataset
from atoll.support.errors import InputError
from atoll.support.extras import load_extra
from atoll.support.wording import nearest, unknown

if TYPE_CHECKING:
    from torch import nn

_WEIGHTS = "model.safetensors", "model.safetensors.index.json"


def pretrained(
    shape: Sequence[int], classes: int, dataset: Dataset, path: str, lora: dict[str, Any] | None = None
) -> "nn.Module":
    """A transformer of Hugging Face's, for texts as tokens (`data.tokenizer`): for next tokens or for classes.

    Weights are float32. Classes are read from a new layer, drawn from the seed and always trained.

    Args:
        path: a folder that `save_pretrained` has written, or a name on Hugging Face's hub.
        lora: arguments of `peft.LoraConfig`, such as {r = 8, target_modules = "all-linear"}: only these adapters and a
            new last layer are trained; unset: all weights are.

    Raises:
        InputError: files are missing; the tokens, their number or the adapters do not fit the model.
    """
    from atoll.local.layers import TokenLayers

    told = f"model.path = {path!r}"
    causal = dataset.loss == "next-token"
    if len(shape) != 1 or dataset.inputs.dtype.kind != "i" or dataset.standard or dataset.scale != 1:
        raise InputError(f"{told}: needs texts as tokens; set data.tokenizer, and leave data.standardise out")
    made = _load(path, told, causal, classes)
    config = made.config.get_text_config()
    config.use_cache = False
    _require_fit(dataset, config, told)
    vocabulary = range(config.vocab_size)  # a tokenizer's padding may be a token that the model does not have
    padding = next((each for each in (config.pad_token_id, config.eos_token_id) if each in vocabulary), None)
    if padding is None and not causal:
        why = f"no pad_token_id below vocab_size = {config.vocab_size}; set it, since texts differ in length"
        raise InputError(f"{told}: its config.json names {why}")
    made.config.pad_token_id = padding
    return TokenLayers(made if lora is None else _adapted(made, lora, causal), causal, padding or 0, config.vocab_size)


def _load(path: str, told: str, causal: bool, classes: int) -> Any:
    """Return the transformer on the CPU, in float32."""
    transformers = load_extra("transformers", "text", told)
    import torch

    folder = Path(path).expanduser()
    if is_here := folder.is_dir():
        there = {each.name for each in folder.iterdir()}
        lacking = [] if "config.json" in there else ["config.json"]
        lacking += [] if there.intersection(_WEIGHTS) else [_WEIGHTS[0]]
        if lacking:
            raise InputError(f"{told}: the folder lacks {' and '.join(lacking)}, which model.save_pretrained writes")
    kind = transformers.AutoModelForCausalLM if causal else transformers.AutoModelForSequenceClassification
    given = {"dtype": torch.float32, "use_safetensors": True, "local_files_only": is_here}
    transformers.utils.logging.set_verbosity_error()  # a new last layer is no news
    transformers.utils.logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(action="ignore"):
            return kind.from_pretrained(
                folder if is_here else path, **given, **({} if causal else {"num_labels": classes})
            )
    except Exception as error:  # of many kinds, from the files, the hub or the network
        what = "cannot be read" if is_here else "is no folder here, and cannot be loaded from the hub"
        raise InputError(f"{told}: {what} ({' '.join(str(error).split()).partition('. ')[0][:200]})") from error


def _require_fit(dataset: Dataset, config: Any, told: str) -> None:
    """Refuse tokens that the model does not have, and texts longer than it takes."""
    largest, length = max(int(each.max()) for each in (dataset.inputs, dataset.test_inputs)), dataset.shape[0]
    if largest >= config.vocab_size:
        raise InputError(
            f"{told}: knows {config.vocab_size} tokens, but data.tokenizer made token {largest}; use the model's own "
            "tokenizer"
        )
    most = getattr(config, "max_position_embeddings", None)
    if isinstance(most, int) and length > most:
        raise InputError(f"data.length = {length}: {told} takes at most {most} tokens")


def _adapted(transformer: Any, lora: dict[str, Any], causal: bool) -> "nn.Module":
    """Return the transformer with adapters, all else but a new last layer frozen."""
    peft = load_extra("peft", "text", "model.lora")
    known = signature(peft.LoraConfig).parameters
    if odd := [key for key in lora if key not in known]:
        raise InputError(f"model.lora.{odd[0]}: {unknown(odd[0], known)}")
    layers = [name for name, layer in transformer.named_modules() if hasattr(layer, "weight")]
    targets = lora.get("target_modules")
    for target in targets if isinstance(targets, list) else ():
        if not any(f".{name}".endswith(f".{target}") for name in layers):
            last = sorted({name.rpartition(".")[2] for name in layers})
            meant = nearest(str(target), last)
            hint = f", did you mean {meant!r}?" if meant else ";"
            raise InputError(
                f"model.lora.target_modules: {target!r} is none of the model's layers{hint} they are {', '.join(last)}"
            )
    kind = "CAUSAL_LM" if causal else "SEQ_CLS"
    try:
        with warnings.catch_warnings(action="ignore"):  # PEFT's, of what it sets right itself
            made: nn.Module = peft.get_peft_model(transformer, peft.LoraConfig(**{"task_type": kind, **lora}))
    except Exception as error:  # of many kinds, from PEFT's own checks
        raise InputError(f"model.lora: {' '.join(str(error).split())[:300]}") from error
    return made
