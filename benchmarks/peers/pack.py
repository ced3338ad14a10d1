"""Pack what the race on a GPU imports and its machine lacks, to be carried there and unpacked without pip.

Run:  python benchmarks/peers/pack.py --out FOLDER [--python 3.12] [--pfllib CHECKOUT] [--unpacked] [--only pfl]

Writes FOLDER/sites.tar.xz, with --unpacked the folder itself, to try the race out on this machine: one folder for each
library, so that what one insists on does not reach the others.
`tar xf sites.tar.xz -C /tmp` there makes /tmp/sites. PyTorch, JAX, NumPy, SciPy and what comes with them are expected
to be installed. Ray goes without its dashboard, its Java and its libraries for other purposes.
"""

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PYDANTIC = ("pydantic==2.14.3", "pydantic-core==2.50.4", "annotated-types", "typing-inspection", "tomli-w")
SITES = {
    "atoll": (*PYDANTIC, "pooch", "platformdirs"),
    "pfl": ("pfl==0.6.0", "multiprocess==0.70.19", "dill", "dp-accounting==0.5.1", "prv-accountant==0.2.0", "dm-tree"),
    "flower": (
        *("flwr==1.41.0", "grpcio==1.81.1", "grpcio-health-checking==1.81.1", "protobuf==6.33.6", "packaging==25.0"),
        *("cryptography==50.0.2", "cffi", "pycparser", "pycryptodome", "iterators==0.0.2", "typer==0.20.1"),
        *("click==8.4.2", "rich==14.3.4", "tomli", "prompt-toolkit", "wcwidth", "sqlalchemy==2.0.45", "alembic"),
        *("mako", "greenlet", "fastapi==0.138.2", "starlette==1.3.1", "uvicorn==0.49.0", "pathspec", "httpx==0.28.1"),
        *("ray==2.55.1", "jsonschema", "jsonschema-specifications", "referencing", "rpds-py"),
        *PYDANTIC,
    ),
    "blazefl": ("blazefl==2.0.3",),
    "fedjax": ("fedjax==0.0.17", "dm-haiku", "jmp"),
}
SYSTEMS = ("2014", "_2_17", "_2_24", "_2_27", "_2_28", "_2_31", "_2_34")
RAYS_OWN = ("jars", "dashboard/client", "rllib", "tune", "serve", "data", "llm", "train", "cpp", "include")


def install(packages: tuple[str, ...], folder: Path, python: str) -> None:
    """Put packages into a folder, built for Linux on x86-64 and this Python."""
    platforms = [word for system in SYSTEMS for word in ("--platform", f"manylinux{system}_x86_64")]
    words = ["--only-binary=:all:", "--no-deps", "--no-compile", "--implementation", "cp", "--python-version", python]
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--target",
        str(folder),
        "--ignore-requires-python",
        *words,
        *platforms,
    ]
    subprocess.run([*command, *packages], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--python", default="3.12", help="the machine's")
    parser.add_argument("--pfllib", type=Path, help="a checkout of PFLlib")
    parser.add_argument("--unpacked", action="store_true", help="leave FOLDER/sites as it is")
    parser.add_argument("--only", nargs="+", choices=sorted(SITES), default=list(SITES), help="only these libraries")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        sites = Path(temporary) / "sites"
        for name in given.only:
            install(SITES[name], sites / name, given.python)
        for name in RAYS_OWN:
            shutil.rmtree(sites / "flower/ray" / name, ignore_errors=True)
        if given.pfllib:
            shutil.copytree(given.pfllib / "system", sites / "pfllib/system")
        if given.unpacked:
            shutil.copytree(sites, given.out / "sites", dirs_exist_ok=True)
            return
        with tarfile.open(given.out / "sites.tar.xz", "w:xz", preset=6) as archive:
            archive.add(sites, "sites")
    print(f"{(given.out / 'sites.tar.xz').stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
