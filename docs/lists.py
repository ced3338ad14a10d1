"""Writes the lists of settings, options and Python names into the pages, from the code: `make docs-lists`.

A list stands between a mark, such as `<!-- options of atoll run -->`, and `<!-- end of the list -->`; a test compares.
"""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import command_options
import reference
import settings_table

DOCS = Path(__file__).parent
END = "<!-- end of the list -->"

# By page: the marks, and what makes the list after each.
LISTS: Mapping[str, tuple[str, Callable[[str], str]]] = {
    "settings.md": (r"all settings", lambda _: settings_table.settings_tables()),
    "cli.md": (r"options of atoll ([a-z -]+?)", command_options.options_table),
    "api.md": (r"objects: ([\w\s]+?)", reference.objects_table),
}


def with_lists(page: str, text: str) -> str:
    """Return a page's text with its lists as the code has them now."""
    mark, make = LISTS[page]
    found = re.compile(rf"(<!-- {mark} -->)(?:\n\n(?:(?!<!-- {mark} -->).)*?{END})?", re.DOTALL)
    return found.sub(lambda match: f"{match[1]}\n\n{make(match[2] if match.re.groups > 1 else '')}\n\n{END}", text)


def main() -> None:
    """Write all lists anew; print the pages that changed."""
    for page in LISTS:
        before = (DOCS / page).read_text(encoding="utf-8")
        if (after := with_lists(page, before)) != before:
            (DOCS / page).write_text(after, encoding="utf-8")
            sys.stdout.write(f"{page}\n")


if __name__ == "__main__":
    main()
