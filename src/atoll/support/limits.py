"""Types of settings with their limits, for signatures of functions that settings can name; and strict records."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

LARGEST = 10**15  # larger counts are typing errors, and their products would not fit into 64 bits

Count = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Number = Annotated[float, Field(allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
LogDeviation = Annotated[float, Field(ge=0, le=100)]  # of log-normal numbers, which may overflow beyond
Share = Annotated[float, Field(gt=0, le=1)]
Probability = Annotated[float, Field(ge=0, le=1)]
Cosine = Annotated[float, Field(ge=-1, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Range = Annotated[list[PositiveFloat], Field(min_length=2, max_length=2)]


class StrictRecord(BaseModel):
    """Fields read from a file or a message; unknown, missing or malformed ones and NaN are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
