"""Names and values in messages: the nearest known name, what a type allows, and a value as a file has it."""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

_KINDS = {
    "integer": "a whole number",
    "number": "a finite number",
    "string": "a text",
    "boolean": "true or false",
    "object": "a table",
}
_LIMITS = {
    "minimum": "of at least",
    "exclusiveMinimum": "greater than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
}
# Names used elsewhere, by the name used here.
_ALIASES = {
    "batch_size": "batch batchsize minibatch minibatch_size local_batch_size",
    "clients": "num_clients n_clients number_of_clients devices parties_count",
    "clusters": "num_clusters n_clusters number_of_clusters k",
    "cnn": "convnet lenet",
    "deadline_seconds": "timeout",
    "device": "gpu cuda accelerator",
    "fraction": "participation participation_rate client_fraction sample_fraction fraction_fit",
    "lr": "learning_rate learningrate step_size eta local_lr",
    "local": "training client trainer optim",
    "dirichlet": "lda noniid non-iid non_iid",
    "dataset": "data_set datasets",
    "evaluate_every": "eval_every test_every eval_interval",
    "mlp": "dnn fcn dense",
    "momentum": "heavy_ball",
    "optimizer": "optimiser solver",
    "proximal": "mu fedprox_mu prox",
    "rounds": "num_rounds n_rounds communication_rounds iterations global_rounds",
    "seed": "random_seed random_state rng_seed",
    "epochs": "local_epochs num_epochs n_epochs",
    "steps": "local_steps num_steps inner_steps",
    "state-dict": "pt pth torch pytorch pickle",
    "standardise": "standardize normalize normalise",
    "workers": "num_workers n_jobs processes jobs",
}
_MEANT = {alias: name for name, aliases in _ALIASES.items() for alias in aliases.split()}
_MEANT["fedprox"] = "fedavg"  # with local.proximal


def natural(name: str) -> list[tuple[bool, int, str]]:
    """Return a key that sorts names as a reader would, with the numbers in them by size."""
    parts = re.split(r"(\d+)", name)
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]


def unknown(name: str, known: Iterable[str]) -> str:
    """Return the message that a name is unknown, with the nearest known name and all that are allowed."""
    names = sorted(known, key=natural)
    meant = nearest(name, names)
    hint = f", did you mean {meant!r}?" if meant else "."
    return f"unknown{hint} Allowed: {', '.join(names)}" if names else "unknown; none is allowed here"


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return the known name that is probably meant (another spelling, an alias or a typing error), or None."""
    names = {each.lower(): each for each in known}
    plain = name.lower()
    for spelling in (plain, plain.replace("_", "-"), plain.replace("-", "_"), _MEANT.get(plain.replace("-", "_"))):
        if spelling in names:
            return names[spelling]
    close = difflib.get_close_matches(plain, names, n=1, cutoff=cutoff)
    return names[close[0]] if close else None


def allowed(schema: Mapping[str, Any]) -> str:
    """Describe in words what a JSON schema allows."""
    from atoll.support.limits import LARGEST  # here, since it loads pydantic

    if "anyOf" in schema:
        return ", or ".join(allowed(one) for one in schema["anyOf"] if one.get("type") != "null")
    if "const" in schema or "enum" in schema:
        return " or ".join(map(repr, schema.get("enum", [schema.get("const")])))
    if "pattern" in schema:
        return "letters, digits, spaces and . , = ( ) + - _, beginning with a letter or digit"
    if schema.get("type") == "array":
        number = f" of {schema['minItems']}" if schema.get("minItems", 0) == schema.get("maxItems") else ""
        entry = schema.get("items") or next(iter(schema.get("prefixItems", ())), None)
        return f"a list{number}" + (f", each entry {allowed(entry)}" if entry else "")
    told = {key: value for key, value in schema.items() if key != "maximum" or value < LARGEST}
    limits = [f"{words} {told[key]:g}" for key, words in _LIMITS.items() if key in told]
    return " ".join(filter(None, (_KINDS.get(schema.get("type", ""), "another type"), " and ".join(limits))))


def show(value: Any) -> str:
    """Return a value much as an experiment file has it, shortened if it is long."""
    if callable(value):
        return f"the {'class' if isinstance(value, type) else 'function'} {getattr(value, '__name__', 'given')}"
    text = str(value).lower() if isinstance(value, bool) else "unset" if value is None else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= 100 else f"{text[:97]}..."


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as 1 run or 1,200 runs."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def slug(name: str) -> str:
    """Return a name that is safe in file systems and shells: no leading dot, space or slash, and short."""
    return re.sub(r"[^\w.]+", "-", name.lower()).strip(".-")[:100].encode()[:150].decode(errors="ignore")


def printable(value: Any, longest: int | None = 200) -> str:
    """Return a text of the settings fit to draw and print: no control characters, limited length."""
    text = "" if value is None else str(value)
    return "".join(c if c.isprintable() else " " for c in text[:longest]).strip()
