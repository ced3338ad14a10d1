"""What files and messages must hold exactly: nothing unknown, of another type or NaN."""

from pydantic import BaseModel, ConfigDict


class StrictRecord(BaseModel):
    """Fields read from a file or a message; unknown, missing or malformed ones and NaN are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
