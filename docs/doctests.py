"""Griffe extension: shows the doctests of docstrings as code on the Python page, not as quotations."""

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)


class Doctests(griffe.Extension):
    """Puts every doctest into a fenced block."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change one docstring; Griffe calls this for every module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = _DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
