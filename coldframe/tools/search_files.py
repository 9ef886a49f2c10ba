"""search_files: find text in the files of the workspace, like grep -rn."""

from typing import Annotated

from pydantic import Field, StrictBool, StrictInt

from coldframe.contract.files import SearchFiles
from coldframe.contract.model import Model
from coldframe.tools.registry import (
    Answer,
    Arguments,
    CallFacts,
    PathArgument,
    Ran,
    Text,
    ToolCall,
    relative_path,
    shown_path,
    tool,
)


class SearchFilesArguments(Arguments):
    pattern: Text = Field(
        min_length=1, max_length=10_000, description="Regular expression, or text with `regex: false`."
    )
    path: PathArgument = ""
    regex: StrictBool = True
    ignore_case: StrictBool = False
    glob: Text | None = Field(
        default=None, description="File name pattern such as `*.py`, or a path pattern if it holds a slash."
    )
    include_hidden_stores: StrictBool = Field(
        default=False, description="Also look into `.git`, `node_modules` and the like, which are skipped and named."
    )
    max_matches: Annotated[StrictInt, Field(ge=1, le=100_000)] = 1000

    def facts(self) -> CallFacts:
        return CallFacts(path=relative_path(self.path))


class Match(Model):
    path: str
    line: int
    """From 1."""
    text: str
    clipped: bool
    """The line was longer than 2,000 characters; `text` is the part around the match."""


class Unsearched(Model):
    path: str
    reason: str


class SearchFilesAnswer(Answer):
    matches: tuple[Match, ...]
    complete: bool
    truncated_because: str | None
    """`max_matches` or `time`."""
    files_searched: int
    binary_skipped: int
    large_skipped: tuple[str, ...]
    special_skipped: int
    directories_skipped: tuple[str, ...]
    errors: tuple[Unsearched, ...]


@tool(arguments=SearchFilesArguments, answer=SearchFilesAnswer, writes=False)
async def search_files(call: ToolCall[SearchFilesArguments]) -> Ran:
    """Search the content of the files in the workspace, by regular expression or literally. Returns path, line
    number and text of every match, and says what was skipped (binary and large files) or cut short."""
    arguments = call.arguments
    found = await call.box.ask(
        SearchFiles(
            pattern=arguments.pattern,
            path=relative_path(arguments.path),
            regex=arguments.regex,
            ignore_case=arguments.ignore_case,
            glob=arguments.glob,
            include_hidden_stores=arguments.include_hidden_stores,
            max_matches=arguments.max_matches,
        )
    )
    matches = tuple(
        Match(path=shown_path(m.path), line=m.line, text=shown_path(m.text), clipped=m.clipped) for m in found.matches
    )
    answer = SearchFilesAnswer(
        matches=matches,
        complete=found.complete,
        truncated_because=found.truncated_because,
        files_searched=found.files_searched,
        binary_skipped=found.binary_skipped,
        large_skipped=tuple(map(shown_path, found.large_skipped)),
        special_skipped=found.special_skipped,
        directories_skipped=tuple(map(shown_path, found.directories_skipped)),
        errors=tuple(Unsearched(path=shown_path(path), reason=shown_path(reason)) for path, reason in found.errors),
    )
    output = "".join(f"{match.path}:{match.line}:{match.text}\n" for match in matches).encode()
    return Ran(answer, output=lambda: output, output_bytes=len(output))
