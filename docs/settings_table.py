"""The tables of all settings in settings.md, made from the code that checks them; see docs/lists.py."""

from collections.abc import Sequence

from atoll.settings.choices import CHOICES, every_parameter
from atoll.settings.setting_list import ListedSetting, sections, settings_in


def settings_tables() -> str:
    """Return tables of the settings at the top of the file and, for each section, of its own and of each choice."""
    parts = list[str]()
    for section, told in sections().items():
        choices = [choice for choice in CHOICES if choice.section == section]
        of_choices = {f"{section}.{key}" for key in every_parameter(section)} if choices else set()
        listed = settings_in(section)
        parts += [f"## `[{section}]`", told] if section else [f"## {told}"]
        parts.append(_table([each for each in listed if each.name not in of_choices]))
        for choice in choices:
            names = ", ".join(f"`{name}`" for name in choice.functions)
            others = ", or `module:function`" if choice.is_open else ""
            parts += [f"### `{choice.setting}`", f"{names}{others}."]
        if own := [each for each in listed if each.name in of_choices]:
            parts.append(_table(own))
    return "\n\n".join(parts)


def _table(listed: Sequence[ListedSetting]) -> str:
    lines = ["| Setting | Default | Type | Meaning |", "|---|---|---|---|"]
    for each in listed:
        default = each.default if each.default in ("unset", "required") else f"`{each.default}`"
        cells = f"`{each.name.rpartition('.')[2]}`", default, each.kind, each.meaning.replace("|", r"\|")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
