"""Read what Hugging Face's `datasets` writes: folders of `save_to_disk`, its cache's files, and `hf:` by its loader.

Run:  python benchmarks/hub.py --envs DIR

`datasets` is in a virtual environment that this command makes below --envs and keeps; everything else there is that of
the interpreter that runs it. Only the package is downloaded. Each data set is made by `datasets`, kept by it, read by
Atoll, and must come out with the values that went in. Prints a line for each, and ends with an error if one does not.
"""

import argparse
import subprocess
import sys
import venv
from pathlib import Path

import torch
from speed import PEERS, Peer, python_of

import atoll

VERSION = "4.8.5"
ENVIRONMENT = Peer("hub", ((f"datasets=={VERSION}",),), "hub_datasets.py")


def make_environment(envs: Path) -> Path:
    """Return the environment's interpreter, making the environment if need be."""
    python = python_of(ENVIRONMENT, envs)
    if not python.is_file():
        venv.create(envs / ENVIRONMENT.name, with_pip=True)
        for words in ENVIRONMENT.installs:
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *words], check=True)
        shown = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        purelib = Path(subprocess.run(shown, capture_output=True, text=True, check=True).stdout.strip())
        places = Path(torch.__file__).parents[1], Path(atoll.__file__).parents[1]
        (purelib / "shared.pth").write_text("".join(f"{place}\n" for place in places), encoding="utf-8")
    return python


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--envs", type=Path, required=True, help="folder of the virtual environment")
    python = make_environment(parser.parse_args().envs)
    return subprocess.run([str(python), str(PEERS.resolve() / ENVIRONMENT.runner)]).returncode


if __name__ == "__main__":
    sys.exit(main())
