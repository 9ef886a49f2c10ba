"""Files that a temporary workspace begins with, declared where its sandbox is asked for."""

import base64
import binascii
import hashlib
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from coldframe.contract.model import Model

MOST_INPUTS = 64
MOST_INPUT_BYTES = 1 << 20
"""Of all together. More goes on a volume, or in a snapshot to begin as."""


def _path(value: str) -> str:
    if value.startswith("/") or any(part in ("", ".", "..") for part in value.split("/")):
        raise ValueError("write it relative to the workspace, without `.` and `..`")
    return value


class DeclaredInput(Model):
    """One file: as it is asked for with its content, as it is kept and told without."""

    path: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\x00-\x1f\x7f]+$"), AfterValidator(_path)]
    content: Annotated[str, Field(max_length=MOST_INPUT_BYTES)] | None = None
    """Text, written as UTF-8 byte for byte."""
    content_base64: Annotated[str, Field(max_length=2 * MOST_INPUT_BYTES)] | None = None
    """Bytes, instead of `content`."""
    source: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    """Where it is from, in the words of whoever declares it."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Of the content. If other content is given with it, it is refused."""
    bytes: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_digest(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        said = given.get("content"), given.get("content_base64")
        if said == (None, None):
            return given
        data = _data_of(*said)
        sha256 = hashlib.sha256(data).hexdigest()
        if given.get("sha256") not in (None, sha256):
            raise ValueError("`sha256` is that of another content")
        return {**given, "sha256": sha256, "bytes": len(data)}

    @property
    def is_given(self) -> bool:
        """Whether its content is here."""
        return self.content is not None or self.content_base64 is not None

    def told(self) -> Self:
        """Without its content."""
        return self.model_copy(update={"content": None, "content_base64": None})


def _data_of(text: Any, encoded: Any) -> bytes:
    if text is not None and encoded is not None:
        raise ValueError("give one of `content` and `content_base64`")
    if not isinstance(text if encoded is None else encoded, str):
        raise ValueError("content is text, or base64 in text")
    if encoded is None:
        return str(text).encode()  # a surrogate alone is no text, and is refused as such
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error:
        raise ValueError("`content_base64` is not valid base64") from None


def _together(found: tuple[DeclaredInput, ...]) -> tuple[DeclaredInput, ...]:
    if len({one.path for one in found}) < len(found):
        raise ValueError("two inputs have the same path")
    if sum(one.bytes or 0 for one in found) > MOST_INPUT_BYTES:
        raise ValueError(f"inputs have at most {MOST_INPUT_BYTES} bytes together: use a volume or a snapshot for more")
    return found


DeclaredInputs = Annotated[tuple[DeclaredInput, ...], Field(max_length=MOST_INPUTS), AfterValidator(_together)]
