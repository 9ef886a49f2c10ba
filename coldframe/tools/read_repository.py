"""read_repository: how a Git repository of the workspace stands, and what it has on record, with nothing of Git run for it."""

import json
import posixpath
from typing import Annotated

from pydantic import Field, StrictBool, StrictInt

from coldframe.contract.errors import InvalidArgument
from coldframe.contract.git import (
    MOST_LISTED,
    MOST_PATHS,
    GitDiff,
    GitLog,
    GitRefs,
    GitRepositories,
    GitShown,
    GitStatus,
    InnerPath,
    Question,
    ReadRepository,
    RepositoryPath,
    Revision,
)
from coldframe.tools.registry import Answer, Arguments, CallFacts, Ran, ToolCall, relative_path, shown_path, tool


class ReadRepositoryArguments(Arguments):
    question: Question
    path: RepositoryPath = ""
    revision: Revision | None = None
    before: Revision | None = None
    after: Revision | None = None
    staged: StrictBool = False
    paths: tuple[InnerPath, ...] = Field(default=(), max_length=MOST_PATHS)
    skip: Annotated[StrictInt, Field(ge=0, le=1_000_000)] = 0
    limit: Annotated[StrictInt, Field(ge=1, le=10_000)] = MOST_LISTED
    kept_in: tuple[InnerPath, ...] = Field(default=(), max_length=2)
    """Where else than in its `.git` it is kept, as a submodule or a linked working tree is."""

    def facts(self) -> CallFacts:
        """The repository is what is read; rules about each path that is asked for count as well. `path` is its top, else nothing
        is told: whoever names a directory in it would have others judged than are read. The same holds for what it is kept in."""
        place = relative_path(self.path)
        named = tuple(relative_path(posixpath.join(place, one)) for one in self.paths)
        return CallFacts(path=posixpath.join(place, ".git"), more_paths=(*map(relative_path, self.kept_in), *named))


class ReadRepositoryAnswer(Answer):
    question: Question
    repository: str
    branch: str | None
    head: str | None
    kept_in: tuple[str, ...] = ()
    status: GitStatus | None
    log: GitLog | None
    show: GitShown | None
    diff: GitDiff | None
    refs: GitRefs | None
    repositories: GitRepositories | None


@tool(arguments=ReadRepositoryArguments, answer=ReadRepositoryAnswer, writes=False, listed=False, judged_as="read_file")
async def read_repository(call: ToolCall[ReadRepositoryArguments]) -> Ran:
    """Tell how a Git repository of the workspace stands (`status`), its commits (`log`), one of them (`show`), what differs
    (`diff`), or its branches, tags and remotes (`refs`). Nothing is run for it."""
    arguments = call.arguments
    asked = arguments.model_dump(exclude={"path", "kept_in"})
    found = await call.box.ask(ReadRepository(path=relative_path(arguments.path), **asked))
    if arguments.question != "repositories" and relative_path(found.repository) != relative_path(arguments.path):
        raise InvalidArgument(
            f"the repository is at `{found.repository}`",
            hint="name its top as `path`, and paths from there",
            argument="path",
            repository=found.repository,
            kept_in=list(found.kept_in),
        )
    if not set(found.kept_in) <= set(arguments.kept_in):
        raise InvalidArgument(
            f"the repository is kept in {', '.join(f'`{one}`' for one in found.kept_in)}",
            hint="name what it is kept in as `kept_in`",
            argument="kept_in",
            repository=found.repository,
            kept_in=list(found.kept_in),
        )
    text = shown_path(json.dumps(found.model_dump(mode="json"), ensure_ascii=False))
    answer = ReadRepositoryAnswer.model_validate_json(text)
    return Ran(answer, output=text.encode, output_bytes=len(text.encode()))
