"""write_file: put one file into the workspace, whole or not at all."""

import base64
import binascii
from typing import Annotated

from pydantic import Field, StrictBool, StrictInt, StrictStr, model_validator

from coldframe.contract.files import WriteAnswer, WriteFile
from coldframe.tools.registry import (
    Answer,
    Arguments,
    CallFacts,
    PathArgument,
    Ran,
    Text,
    ToolCall,
    one_change,
    relative_path,
    shown_path,
    tool,
)


class WriteFileArguments(Arguments):
    path: PathArgument
    content: Text | None = Field(default=None, description="Text, written as UTF-8 byte for byte.")
    content_base64: StrictStr | None = Field(default=None, description="Bytes, instead of `content`.")
    if_version: Text | None = Field(
        default=None, description="Write only if the file still has this version; CONFLICT otherwise."
    )
    create_only: StrictBool = Field(default=False, description="CONFLICT if there is something at the path already.")
    mode: Annotated[StrictInt, Field(ge=0, le=0o777)] | None = Field(
        default=None, description="Permission bits; by default those of the file replaced, or 420 (0644)."
    )

    sha256: Annotated[StrictStr, Field(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        default=None, description="Digest of the content: if another arrives, nothing is changed."
    )
    source: Annotated[Text, Field(min_length=1, max_length=1000)] | None = Field(
        default=None, description="Where it is from, in your words, as `https://…` or a commit; kept on record with it."
    )

    @model_validator(mode="after")
    def _one_content(self) -> "WriteFileArguments":
        if (self.content is None) == (self.content_base64 is None):
            raise ValueError("give exactly one of `content` and `content_base64`")
        if self.content_base64 is not None:
            try:
                base64.b64decode(self.content_base64, validate=True)
            except binascii.Error:
                raise ValueError("`content_base64` is not valid base64") from None
        return self

    def facts(self) -> CallFacts:
        return CallFacts(path=relative_path(self.path), source=self.source)

    def data(self) -> bytes:
        if self.content is not None:
            return self.content.encode()
        return base64.b64decode(self.content_base64 or "", validate=True)


class WriteFileAnswer(Answer):
    path: str
    """Relative to the workspace."""
    bytes_written: int
    created: bool
    version: str
    sha256: str
    sha256_before: str | None
    """Digest of what was replaced; None for a new file, or one over 64 MiB."""

    @classmethod
    def of(cls, answer: WriteAnswer) -> "WriteFileAnswer":
        return cls(
            path=shown_path(answer.path),
            bytes_written=answer.bytes_written,
            created=answer.created,
            version=answer.version,
            sha256=answer.sha256,
            sha256_before=answer.sha256_before,
        )


@tool(arguments=WriteFileArguments, answer=WriteFileAnswer, writes=True)
async def write_file(call: ToolCall[WriteFileArguments]) -> Ran:
    """Write or overwrite a file in the workspace, making missing parent directories. The file is replaced
    atomically: readers see the old or the new content, never a mix. Returns the path and the bytes written."""
    arguments = call.arguments
    request = WriteFile(
        path=relative_path(arguments.path),
        content=arguments.data() if call.content is None else b"",
        if_version=arguments.if_version,
        create_only=arguments.create_only,
        mode=arguments.mode,
        sha256=arguments.sha256,
    )
    done = await (call.box.ask(request) if call.content is None else call.box.write(request, call.content))
    return written(done)


def written(done: WriteAnswer) -> Ran:
    """The answer and the record of what was written."""
    answer = WriteFileAnswer.of(done)
    files = one_change(
        answer.path,
        created=done.created,
        sha256_before=done.sha256_before,
        sha256_after=done.sha256,
        size=done.bytes_written,
    )
    return Ran(answer, files=files)
