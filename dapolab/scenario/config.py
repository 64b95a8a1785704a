"""What every table shares: frozen, closed to unknown keys, units in the names."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from dapolab.errors import ConfigError


class Config(BaseModel):
    """Base of every table: frozen, closed to unknown keys, no NaN and no infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]

__all__ = ["Config", "ConfigError", "Count", "NonNegative", "Positive", "Share"]
