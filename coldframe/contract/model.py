"""The one base of every data model that crosses between two houses."""

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """Frozen, and strict about names: a field nobody declared is an error, not a surprise."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")
