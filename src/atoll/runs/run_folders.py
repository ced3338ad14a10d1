"""The folders of an experiment's runs: their names, and checks before anything is written."""

from collections.abc import Sequence
from pathlib import Path

from atoll.experiment.experiment import Experiment
from atoll.runs.run_files import is_taken
from atoll.runs.run_folder import RunFolder
from atoll.support.errors import InputError
from atoll.support.files import make_folder, to_json, write_atomically
from atoll.support.wording import slug


def name_folders(runs: Sequence[Experiment]) -> list[str]:
    """Return the name of each run's folder, from its panel and label."""
    names = [" ".join(filter(None, (e.settings.panel, e.settings.label))) for e in runs]
    slugs = [slug(name) or f"run-{i}" for i, name in enumerate(names)]
    if taken := [name for name in ("report", "experiment.json") if name in slugs]:
        raise InputError(f"runs: one is labelled {taken[0]!r}, which is written beside the runs; give it another label")
    if repeated := [name for name, own in zip(names, slugs, strict=True) if slugs.count(own) > 1]:
        listed = ", ".join(repr(name) if name else "none" for name in repeated)
        raise InputError(f"runs: each needs a label, or panel, of its own, but {len(repeated)} have {listed}")
    return slugs


def prepare_folders(names: Sequence[str], out: Path, resume: bool, overwrite: bool) -> list[Path]:
    """Return the folder of each run, `out` itself for one run, after checking that all can be used."""
    if len(names) == 1:
        folders = [out]
    else:
        if (out / "config.toml").exists():
            told = f"holds a single run, but this experiment has {len(names)}"
            raise InputError(f"--out {out}: {told}; give another folder")
        if is_taken(out, ("experiment.json", "report", *names)):
            raise InputError(f"--out {out}: holds files other than this experiment's runs; give another folder")
        folders = [out / name for name in names]
    for folder in map(RunFolder, folders):
        if not (resume and folder.is_run):
            folder.require_room(overwrite)
    return folders


def begin_folders(out: Path, names: Sequence[str]) -> None:
    """Record which runs a folder holds, and in which order; a single run needs no such list."""
    if len(names) > 1:
        make_folder(out)
        write_atomically(out / "experiment.json", to_json({"runs": list(names)}))
