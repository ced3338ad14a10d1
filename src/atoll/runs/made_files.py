"""What `atoll export` and `atoll report` write into a run's folder, which goes with the run."""

from contextlib import suppress
from pathlib import Path

_FIGURES = "curves-*", "parameter-error", "probe-*", "clients-*", "identity-*", "against-*"
_MADE = (
    *(f"{stem}.{end}" for stem in ("model", "model-cluster-*") for end in ("safetensors", "pt", "onnx")),
    *(f"report/{stem}.{end}" for stem in _FIGURES for end in ("png", "svg", "pdf")),
    *(f"report/{stem}.{end}" for stem in ("table", "spread", "targets") for end in ("md", "tex", "csv", "json")),
)


def remove_made(folder: Path) -> None:
    """Remove these files and no others, also not from the report's folder."""
    for place in (each for pattern in _MADE for each in folder.glob(pattern)):
        place.unlink()
    with suppress(OSError):
        (folder / "report").rmdir()
