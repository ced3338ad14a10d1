"""Draws the pictures of gallery.md: carries out its examples, each in an empty folder, and keeps what they draw.

python docs/draw_gallery.py [PICTURE...]
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

GALLERY = Path(__file__).with_name("gallery.md")
PICTURES = GALLERY.with_name("images") / "gallery"
WIDTH = 900  # pixels
COLOURS = 32
_PICTURE = re.compile(r"^!\[[^]]+\]\(images/gallery/([\w-]+)\.png\)", re.MULTILINE)
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def examples() -> dict[str, str]:
    """Return the text of each example's section, by the name of its picture."""
    sections = re.split(r"^## ", GALLERY.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {match[1]: section for section in sections if (match := _PICTURE.search(section))}


def carry_out(name: str, folder: Path) -> Image.Image:
    """Write an example's files into a folder, run its commands there, and return its picture, made small.

    Raises:
        RuntimeError: a command failed, or drew no picture of this name.
    """
    blocks = _BLOCK.findall(examples()[name])
    for _, title, text in blocks:
        if title:
            (folder / title).write_text(text, encoding="utf-8")
    lines = "".join(text for language, _, text in blocks if language == "sh")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "-euo", "pipefail", "-c", lines]
    environment = {**os.environ, "PATH": path, "MPLBACKEND": "agg"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    drawn = list(folder.rglob(f"{name}.png"))
    if done.returncode or len(drawn) != 1:
        raise RuntimeError(f"{name}: exit code {done.returncode}, {len(drawn)} pictures\n{done.stdout}{done.stderr}")
    with Image.open(drawn[0]) as picture:
        height = round(picture.height * WIDTH / picture.width)
        return picture.convert("RGB").resize((WIDTH, height), Image.Resampling.LANCZOS).quantize(COLOURS)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or examples():
        with tempfile.TemporaryDirectory() as place:
            carry_out(chosen, Path(place)).save(PICTURES / f"{chosen}.png", optimize=True)
        print(f"wrote images/gallery/{chosen}.png", flush=True)
