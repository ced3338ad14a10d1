"""Writing a run's model for other programs: safetensors, a PyTorch state dict, ONNX."""

import importlib.util
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from warnings import warn

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save
from torch import nn

from atoll.data.array_inputs import as_array
from atoll.data.dataset import Dataset
from atoll.experiment.client_data import load_dataset
from atoll.experiment.modules import draw_module
from atoll.experiment.start_model import load_start
from atoll.local.batches import FromStored
from atoll.local.models import Model
from atoll.local.travel import frozen
from atoll.local.weights import load_model
from atoll.runs.going_on import changed_data
from atoll.runs.run_folder import RunFolder, require_own_file
from atoll.runs.saved import SavedRun, read_saved
from atoll.settings.validation import Settings
from atoll.support.errors import AtollError, InputError, RunError, SettingWarning
from atoll.support.extras import pip_install
from atoll.support.files import make_folder, write_atomically
from atoll.support.wording import counted, show, unknown

_AT_ONCE = 1000  # inputs of a forward pass
ENDINGS = {"safetensors": ".safetensors", "state-dict": ".pt", "onnx": ".onnx"}
_FORMATS = {ending: name for name, ending in ENDINGS.items()} | {".pth": "state-dict"}


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        file: path of the file.
        parameters: numbers in the model, buffers included.
        inputs: how model inputs follow from stored ones, in words; safetensors and ONNX have it as metadata.
        events_done: events of the run that the model has seen.
        is_finished: whether the run was finished.
    """

    file: Path
    parameters: int
    inputs: str
    events_done: int
    is_finished: bool


def export_model(
    run: Path | str, file_format: str | None = None, out: Path | str | None = None, cluster: int | None = None
) -> Exported:
    """Write the model of a run's latest checkpoint, chosen as in `SavedRun.model`.

    All formats name parameters as the module does. ONNX has one input, ``input``: a batch [n, *shape] of float32, as
    the data set stores it, since the graph begins with its scaling and standardisation; and one output, ``output``:
    [n, classes] before softmax. Writing ONNX rebuilds the module, for which the data is read. The other formats hold
    parameters alone; safetensors tells ``scale``, ``means`` and ``deviations`` as JSON in its metadata ``scaling``, and
    a table's ``columns``, which must be encoded as for training.

    Args:
        run: the run's folder.
        file_format: safetensors, state-dict (`torch.load` with ``weights_only=True`` reads it) or onnx; None: as the
            file's ending says, or else safetensors.
        out: the file; None: ``model`` with the format's ending in the run's folder, or ``model-cluster-J``.
        cluster: the cluster whose model to write; None: the run's.

    Raises:
        InputError: no run, no checkpoint, no such cluster or format, a missing extra, or a model that ONNX rejects.
        RunError: the file cannot be written.
    """
    file_format = file_format or format_of(out)
    if file_format not in ENDINGS:
        raise InputError(f"format {file_format!r}: {unknown(file_format, ENDINGS)}")
    if file_format == "onnx" and not all(map(importlib.util.find_spec, ("onnx", "onnxscript"))):
        raise InputError(f"format onnx needs onnx and onnxscript; run {pip_install('onnx')}")
    saved = read_saved(run)
    model = saved.model(cluster)
    stem = "model" if cluster is None else f"model-cluster-{cluster}"
    place = saved.folder / f"{stem}{ENDINGS[file_format]}" if out is None else Path(out)
    require_own_file("--out", place)
    data: Dataset | None = None
    with suppress(AtollError):  # without the data of the training, inputs are told in words only
        data = read_data(saved.settings, saved.folder)
    inputs = _inputs_in_words(saved.settings, data)
    content = _WRITERS[file_format](saved, model, inputs, data)
    make_folder(place.parent)
    write_atomically(place, content)
    parameters = sum(tensor.numel() for tensor in model.values())
    return Exported(place, parameters, inputs, saved.state.events_done, saved.is_finished)


def format_of(out: Path | str | None) -> str:
    """Return the format that a file's ending names; safetensors without one."""
    ending = Path(out).suffix if out else ""
    if ending and ending not in _FORMATS:
        raise InputError(f"--out {out}: must end in {', '.join(_FORMATS)}, unless --format names the format")
    return _FORMATS.get(ending, "safetensors")


def load_module(settings: Settings, model: Model) -> nn.Module:
    """Return the module that the settings name with a model's parameters, in evaluation mode, on the CPU."""
    module = draw_module(settings, load_dataset(settings))
    own = module.state_dict()
    left = own.keys() - model.keys()
    if left and settings.model.start is not None:
        load_start(module, settings.model.start)  # frozen layers, which did not travel, are as they were at the start
    if alone := sorted(left.difference(frozen(module))):
        told = f"{alone[0]!r}" + (f" and {counted(len(alone) - 1, 'more tensor')}" if alone[1:] else "")
        warn(f"{told} stayed with the clients, and are as they were at the start", SettingWarning, stacklevel=3)
    if unlike := [name for name, kept in model.items() if name not in own or own[name].shape != kept.shape]:
        raise RunError(
            f"model.name = {settings.model.name!r}: the run's saved model does not match it (tensor {unlike[0]!r}); "
            "the settings are not those of the training"
        )
    load_model(module, model)
    return module.eval()


def predict(settings: Settings, model: Model, inputs: Any, probabilities: bool, run: Path | None) -> npt.NDArray[Any]:
    """Return a model's predictions for inputs as the data set stores them; see `Result.predict`."""
    data, module = read_data(settings, run), load_module(settings, model)
    if data.encode and hasattr(inputs, "__arrow_c_stream__"):  # new rows in a data frame
        inputs = data.encode(inputs)
    if isinstance(inputs, str | Path) and not data.encode:
        told = f"must be an array [n, {str(list(data.shape))[1:]}; read the file into one, as the data set stores it"
        raise InputError(f"predict: inputs = {show(inputs)}: {told}")
    array = as_array(f"predict: inputs{' (give new rows as a data frame)' if data.encode else ''}", inputs)
    if array.shape[1:] != data.shape:
        raise InputError(f"predict: inputs must be numbers [n, {str(list(data.shape))[1:]}, not {list(array.shape)}")
    whole = FromStored(module, data).eval()
    parts = np.array_split(array, max(1, -(-len(array) // _AT_ONCE)))
    with torch.no_grad():
        outputs = torch.cat([whole(torch.tensor(part)) for part in parts])
    if data.loss in ("squared", "next-token"):
        return outputs.reshape(-1, *data.targets.shape[1:]).numpy()
    if data.loss == "cross-entropy":
        return (outputs.softmax(dim=1) if probabilities else outputs.argmax(dim=1)).numpy()
    return (outputs.sigmoid() if probabilities else (outputs > 0).long()).numpy()


def read_data(settings: Settings, run: Path | None) -> Dataset:
    """Return the data by which inputs were encoded; reject what has changed since the folder's run was started."""
    if run is not None and (told := changed_data(RunFolder(run), settings, "data.root")):
        raise InputError(f"{told}; inputs are encoded by the data of the training, so put it back")
    return load_dataset(settings)


def _inputs_in_words(settings: Settings, data: Dataset | None) -> str:
    """Return how model inputs follow from stored ones; without the data, what the settings say."""
    if data is None:
        return f"data.standardise = {settings.data.standardise}"
    columns = ", ".join(data.names.get("inputs", ()))
    values = f"the table's columns {columns}, encoded and scaled as for training" if columns else "stored values"
    times = "" if data.scale == 1 else f" times {data.scale:.6g}"
    return values + times + ("" if data.standard is None else f", {data.standard}")


def _as_safetensors(saved: SavedRun, model: Model, inputs: str, data: Dataset | None) -> bytes:
    events = str(saved.state.events_done)
    metadata = {"format": "pt", "name": saved.settings.name, "events": events, "inputs": inputs}
    if data is not None:
        means, deviations = ((), ()) if data.standard is None else (data.standard.means, data.standard.deviations)
        metadata["scaling"] = json.dumps({"scale": data.scale, "means": means, "deviations": deviations})
        metadata["columns"] = json.dumps(data.names.get("inputs", ()))
    return save(dict(model), metadata=metadata)


def _as_state_dict(_saved: SavedRun, model: Model, _inputs: str, _data: Dataset | None) -> bytes:
    stream = io.BytesIO()
    torch.save({name: tensor.clone() for name, tensor in model.items()}, stream)
    return stream.getvalue()


def _as_onnx(saved: SavedRun, model: Model, inputs: str, data: Dataset | None) -> bytes:
    data, module = data or read_data(saved.settings, saved.folder), load_module(saved.settings, model)
    sample = torch.zeros(2, *data.shape)
    try:
        return _trace(FromStored(module, data).eval(), sample, f"as stored; the model takes {inputs}")
    except Exception as error:  # PyTorch's exporter has errors of many kinds, most of which are not public
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"model.name = {saved.settings.model.name!r}: cannot be written as ONNX ({type(error).__name__}: {reason})"
        ) from error


def _trace(module: nn.Module, sample: torch.Tensor, inputs: str) -> bytes:
    """Return the module as ONNX, for batches of any size."""
    with tempfile.TemporaryDirectory() as aside, _without_warnings():
        file = Path(aside) / "model.onnx"
        program = torch.onnx.export(
            module,
            (sample,),
            input_names=["input"],
            output_names=["output"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        program.model.metadata_props["inputs"] = inputs
        program.save(file, external_data=False)
        return file.read_bytes()


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence the exporter: it warns of its own deprecations, and tells of what it tries before it succeeds."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


_WRITERS = {"safetensors": _as_safetensors, "state-dict": _as_state_dict, "onnx": _as_onnx}
