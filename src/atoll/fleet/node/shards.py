"""A client's samples as files: ``inputs.npy``, ``targets.npy``, and ``form.json`` unless the data set is available."""

import io
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError

from atoll.data.dataset import Dataset
from atoll.experiment.client_data import load_dataset
from atoll.fleet.agreed.agreement import DataForm, require_fleet
from atoll.local.batches import LOSSES
from atoll.settings.validation import Settings
from atoll.support.errors import InputError, refusing
from atoll.support.files import make_folder, to_json, write_atomically
from atoll.support.numpy_files import read_npy
from atoll.support.untrusted import read_bytes

if TYPE_CHECKING:
    from atoll.experiment.experiment import Experiment

INPUTS, TARGETS, FORM = "inputs.npy", "targets.npy", "form.json"

Array = npt.NDArray[Any]


def shard_folder(folder: Path, client: int) -> Path:
    """Return the folder in which `write_shards` stores a client's samples."""
    return folder / f"client-{client}"


def write_shards(experiment: "Experiment", folder: Path) -> list[Path]:
    """Write each client's samples of a simulated population to its own folder; return the folders by client.

    Rotated copies are stored rotated, and values as in the pool, so that training from the folder is bit-identical to
    simulation.
    """
    require_fleet(experiment.settings)
    population = experiment.population
    form = to_json(asdict(DataForm.of(population.data)))
    folders = []
    for client in range(len(population)):
        place = shard_folder(folder, client)
        make_folder(place)
        rows = population.samples(client)
        write_atomically(place / INPUTS, _npy(population.data.inputs_of(rows)))
        write_atomically(place / TARGETS, _npy(population.data.labels_of(rows)))
        write_atomically(place / FORM, form)
        folders.append(place)
    return folders


def read_shard(settings: Settings, folder: Path) -> Dataset:
    """Return the samples of a client's folder as a data set without test samples.

    Inputs have shape [samples, *shape]; targets are integers from 0 to classes - 1, or real numbers for regression.
    Without ``form.json`` their form is that of the data set in the settings.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder; it must hold the client's {INPUTS} and {TARGETS}")
    form = _read_form(folder / FORM) if (folder / FORM).exists() else DataForm.of(load_dataset(settings))
    inputs, targets = _read_array(folder / INPUTS), _read_array(folder / TARGETS)
    if inputs.shape[1:] != form.shape:
        raise InputError(
            f"{folder / INPUTS}: samples have the shape {list(inputs.shape[1:])}, but the model's inputs have "
            f"{list(form.shape)}"
        )
    if len(inputs) != len(targets):
        raise InputError(f"{folder / TARGETS}: has {len(targets)} targets for {len(inputs)} samples in {INPUTS}")
    targets = _as_labels(folder / TARGETS, targets, form.classes) if form.classes else targets
    return Dataset(
        name=settings.data.dataset,
        inputs=inputs,
        targets=targets,
        test_inputs=inputs[:1],  # unused, but every data set needs a test sample
        test_targets=targets[:1],
        classes=form.classes,
        scale=form.scale,
        standard=form.standard,
        loss=form.loss,
    )


def _npy(array: Array) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _read_form(path: Path) -> DataForm:
    try:
        with refusing(f"{path}: cannot be read"):
            form = TypeAdapter(DataForm).validate_json(read_bytes(path), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(f"{path}: {where}: {first['msg']}; it must hold shape, classes, scale and loss") from error
    if form.loss not in LOSSES or (form.loss == "cross-entropy") != (form.classes > 0):
        raise InputError(
            f"{path}: loss = {form.loss!r} and classes = {form.classes}: must be 'cross-entropy' with classes, or "
            "another with 0"
        )
    return form


def _read_array(path: Path) -> Array:
    with refusing(f"{path}: is not a .npy file of numbers", ValueError), refusing(f"{path}: cannot be read"):
        array = read_npy(path)
    if array.dtype.kind not in "biuf" or not array.ndim or not len(array):
        raise InputError(f"{path}: must hold an array of numbers with at least one sample")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f"{path}: has numbers that are not finite")
    return array


def _as_labels(path: Path, targets: Array, classes: int) -> npt.NDArray[np.int64]:
    if targets.ndim != 1 or targets.dtype.kind not in "iu":
        raise InputError(
            f"{path}: must hold one whole number a sample, it has the type {targets.dtype} and the shape "
            f"{list(targets.shape)}"
        )
    wrong = np.flatnonzero((targets < 0) | (targets >= classes))
    if len(wrong):
        raise InputError(
            f"{path}: labels must be from 0 to {classes - 1}, sample {wrong[0]} has {targets[wrong[0]]} "
            f"({len(wrong)} such samples)"
        )
    return targets.astype(np.int64)
