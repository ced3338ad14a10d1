"""A section of the experiment file: what all sections share."""

from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from atoll.support.errors import InputError

MAY_DIFFER = "a run may be resumed with another value"
"""Marks a setting that affects neither a run's bits nor its rows."""


class Section(BaseModel):
    """A section of the experiment file; unknown settings are rejected."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        validate_default=True,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )

    @field_validator("*", mode="before")
    @classmethod
    def _is_without_nul(cls, value: Any) -> Any:
        """Refuse a text with a character that no file's path can have."""
        if isinstance(value, str) and "\0" in value:
            raise ValueError("must not contain the character NUL")
        return value

    def __eq__(self, other: object) -> bool:
        """Compare settings, whichever class was built for the functions they name."""
        return isinstance(other, Section) and type(self).__name__ == type(other).__name__ and dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment]

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse: a changed setting would not have been checked."""
        raise InputError(f"{name}: settings cannot be changed; pass new ones, as in atoll.run(settings, {name}=...)")

    def get(self, key: str, default: Any = None) -> Any:
        """Return a setting that the section lacks unless one of the functions it names takes it."""
        return getattr(self, key, default) if key in type(self).model_fields else default
