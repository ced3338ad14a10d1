"""The site's hooks, which are no package, as modules."""

import importlib.util
import sys
from functools import cache
from types import ModuleType

from tests.cli.pages import ROOT


@cache
def hook_of(name: str) -> ModuleType:
    """Import a hook from docs/."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(ROOT / "docs"))  # as MkDocs does, so that hooks import each other
    spec.loader.exec_module(module)
    sys.path.remove(str(ROOT / "docs"))
    return module
