"""Griffe extension: shows docstrings on the Python page with doctests as code, and methods' with all arguments."""

import re
from typing import Any

import griffe

from atoll.methods.parts.checking import with_common

_DOCTEST = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)


class Doctests(griffe.Extension):
    """Puts every doctest into a fenced block."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change one docstring; Griffe calls this for every module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = _DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Complete a method's docstring, as its decorator does when it is imported."""
        if func.docstring and func.path.startswith("atoll.methods.papers."):
            names = [each.name for each in func.parameters]
            func.docstring.value = with_common(func.docstring.value, names)
