"""The two ways in which a command can end badly, each told in one sentence."""


class AtollError(Exception):
    """Base of Atoll's own errors; the message is one sentence meant for the user."""

    exit_code = 1


class InputError(AtollError):
    """Bad input: names the setting, its value and what is allowed (exit code 2)."""

    exit_code = 2


class RunError(AtollError):
    """A run that failed though its input was good (exit code 1)."""
