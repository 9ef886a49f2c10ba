"""edit_file: literal replacements in one file, all of them or none."""

import base64

from pydantic import Field, StrictBool, model_validator

from coldframe.contract.files import Edit, EditFile
from coldframe.contract.model import Model
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


class OneEdit(Model):
    old: Text = Field(min_length=1, description="Text to replace, exactly as it stands in the file.")
    new: Text = Field(description="Text to put there, taken literally.")
    replace_all: StrictBool = Field(default=False, description="Replace every occurrence instead of the only one.")


class EditFileArguments(Arguments):
    path: PathArgument
    old: Text | None = Field(default=None, min_length=1, description="Text to replace; or give `edits`.")
    new: Text | None = Field(default=None, description="Text to put there, taken literally.")
    replace_all: StrictBool = Field(default=False, description="With `old`: replace every occurrence.")
    edits: list[OneEdit] | None = Field(
        default=None, min_length=1, max_length=1000, description="Several replacements, applied in order, all or none."
    )
    if_version: Text | None = Field(default=None, description="CONFLICT if the file has another version by now.")

    @model_validator(mode="after")
    def _one_form(self) -> "EditFileArguments":
        single = self.old is not None and self.new is not None
        if self.edits is not None and (self.old is not None or self.new is not None or self.replace_all):
            raise ValueError("give either `old` and `new`, or `edits`")
        if self.edits is None and not single:
            raise ValueError("give `old` and `new`, or `edits`")
        return self

    def facts(self) -> CallFacts:
        return CallFacts(path=relative_path(self.path))

    def all_edits(self) -> tuple[Edit, ...]:
        if self.edits is not None:
            return tuple(Edit(old=e.old, new=e.new, replace_all=e.replace_all) for e in self.edits)
        return (Edit(old=self.old or "", new=self.new or "", replace_all=self.replace_all),)


class EditFileAnswer(Answer):
    path: str
    content: str | None
    """The whole file after the edit; None if it is not UTF-8."""
    content_base64: str | None
    replacements: int
    bytes_written: int
    version: str
    sha256: str
    sha256_before: str


@tool(arguments=EditFileArguments, answer=EditFileAnswer, writes=True)
async def edit_file(call: ToolCall[EditFileArguments]) -> Ran:
    """Change part of a file: replace `old`, which must occur exactly once unless `replace_all`, by `new`.
    Several `edits` are applied in order, all or none. Mode and line ends are kept. Returns the updated content."""
    arguments = call.arguments
    done = await call.box.ask(
        EditFile(path=relative_path(arguments.path), edits=arguments.all_edits(), if_version=arguments.if_version)
    )
    try:
        text: str | None = done.content.decode()
    except UnicodeDecodeError:
        text = None
    answer = EditFileAnswer(
        path=shown_path(done.path),
        content=text,
        content_base64=base64.b64encode(done.content).decode() if text is None else None,
        replacements=done.replacements,
        bytes_written=done.bytes_written,
        version=done.version,
        sha256=done.sha256,
        sha256_before=done.sha256_before,
    )
    files = one_change(answer.path, created=False, sha256_before=done.sha256_before, sha256_after=done.sha256)
    return Ran(answer, output=lambda: done.content, output_bytes=len(done.content), files=files)
