"""The model that a run starts from (`model.start`): a file of tensors, or another run's folder."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from textwrap import shorten

import safetensors.torch
import torch
from torch import nn

from atoll.local.models import Model
from atoll.local.weights import is_finite, load_model
from atoll.support.errors import InputError, reading, refusing
from atoll.support.untrusted import read_toml


def load_start(module: nn.Module, start: str, after: tuple[str, ...] = ()) -> None:
    """Copy the model at a path into the module; what a run did not send is as it was at that run's own start.

    `after`: the starts that led to this one.
    """
    told, path = f"model.start = {start!r}", Path(start).expanduser()
    model = _read(path, told)
    is_part = path.is_dir() and module.state_dict().keys() - model.keys()
    if is_part and (before := _before(path, told)) is not None and before not in (start, *after):
        with reading(told):
            load_start(module, before, (start, *after))
        model = {**module.state_dict(), **model}
    own = {name: list(tensor.shape) for name, tensor in module.state_dict().items()}
    found = {name: list(tensor.shape) for name, tensor in model.items()}
    unlike = [name for name in own | found if own.get(name) != found.get(name)]
    if unlike:
        held, wanted = (f"{each[unlike[0]]}" if unlike[0] in each else "missing" for each in (found, own))
        more = f" (one of {len(unlike)} that differ)" if unlike[1:] else ""
        raise InputError(
            f"{told}: is not of the form of model.name; its {unlike[0]!r} is {held}, the model's is {wanted}{more}"
        )
    if not is_finite(model, 0.0):
        raise InputError(f"{told}: holds numbers that are not finite")
    load_model(module, model)


def require_kept(start: str | None, folder: Path) -> None:
    """Refuse to empty the folder of a run that a model starts from, or its start did."""
    found: list[str] = []
    while start is not None and start not in found:
        found.append(start)
        path = Path(start).expanduser()
        if path.resolve().is_relative_to(folder.resolve()):
            raise InputError(f"model.start = {found[0]!r}: begins with what --overwrite would delete from {folder}")
        start = _before(path, f"model.start = {start!r}") if (path / "config.toml").is_file() else None


def _before(run: Path, told: str) -> str | None:
    """Return the start of the run in a folder; None if it had none."""
    with refusing(f"{told}: its config.toml cannot be read", ValueError, AttributeError):
        before = read_toml(run / "config.toml", run).get("model", {}).get("start")
    return before if isinstance(before, str) else None


def file_of(start: Path) -> Path:
    """Return the file of the model at this path: itself, or of the latest complete checkpoint of a run's folder."""
    return max((each.with_suffix(".safetensors") for each in start.glob("checkpoint/event-*.json")), default=start)


def _read(path: Path, told: str) -> Model:
    file = file_of(path)
    if not file.is_file():
        what = "holds no checkpoint of a run" if path.is_dir() else "does not exist"
        raise InputError(f"{told}: {path.absolute()} {what}; give a .safetensors or .pt file, or a run's folder")
    try:
        if path.is_dir():
            return _of_run(file, told)
        if file.suffix == ".safetensors":
            return safetensors.torch.load_file(file)
        with suppress(UnpicklingError):  # a whole module, or a file of another kind
            made = torch.load(file, map_location="cpu", weights_only=True)
            if isinstance(made, dict) and all(isinstance(each, torch.Tensor) for each in made.values()):
                return made
    except InputError:
        raise
    except Exception as error:  # of many kinds, for a file that is not what it seems
        reason = shorten(str(error), 100)
        raise InputError(f"{told}: cannot be read as a model ({type(error).__name__}: {reason})") from error
    raise InputError(f"{told}: must hold a state dict, tensors by name; save module.state_dict()")


def _of_run(file: Path, told: str) -> Model:
    """Return the one model in a checkpoint."""
    note, content = json.loads(file.with_suffix(".json").read_bytes()), file.read_bytes()
    if hashlib.sha256(content).hexdigest() != note["tensors"]:
        raise InputError(f"{told}: {file.absolute()} is damaged: the checksum of its tensors does not match")
    layout = note["state"]
    numbers = set(layout["starts"]) if layout["server"] is None else {layout["server"]}
    if len(numbers) > 1:
        raise InputError(
            f"{told}: the run has {len(numbers)} models; choose one by `atoll export --cluster`, and give its file"
        )
    prefix = f"{numbers.pop()}/"
    tensors = safetensors.torch.load(content)
    return {key.removeprefix(prefix): own for key, own in tensors.items() if key.startswith(prefix) and "@" not in key}
