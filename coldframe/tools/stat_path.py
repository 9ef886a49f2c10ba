"""stat_path: all that is known of one path of the box."""

from datetime import datetime

from coldframe.contract.command import BoxUserName
from coldframe.contract.files import FileKind
from coldframe.contract.paths import PathInfo, StatPath
from coldframe.contract.sandbox import SandboxSpec
from coldframe.tools.registry import (
    Answer,
    AnyPathArgument,
    Arguments,
    CallFacts,
    Ran,
    ToolCall,
    any_path,
    check_user,
    in_box,
    other_user,
    shown_path,
    tool,
)


class PathArguments(Arguments):
    """Of a tool that is about one path of the box."""

    path: AnyPathArgument
    user: BoxUserName = "user"

    def facts(self) -> CallFacts:
        return CallFacts(path=any_path(self.path), user=other_user(self.user))

    def fit(self, spec: SandboxSpec) -> None:
        check_user(self.user, spec)


class PathEntry(Answer):
    path: str
    """From the root of the box on."""
    name: str
    type: FileKind
    size: int
    """As stat gives it, in bytes."""
    mode: int
    modified_at: datetime
    target: str | None
    """What a symbolic link says."""
    leads_to: str | None
    """Of a link: the place behind all links, if there is one."""
    leads_to_type: FileKind | None
    version: str | None
    uid: int
    gid: int
    owner: str
    group: str
    accessed_at: datetime
    changed_at: datetime
    """When mode, owner or content changed last."""
    metadata: dict[str, str]
    """What was noted of the file when it was written; commands can change it too."""

    @classmethod
    def of(cls, info: PathInfo) -> "PathEntry":
        return cls(
            path=shown_path(info.path),
            name=shown_path(info.name),
            type=info.kind,
            size=info.size,
            mode=info.mode,
            modified_at=info.modified_at,
            target=None if info.target is None else shown_path(info.target),
            leads_to=None if info.leads_to is None else shown_path(info.leads_to),
            leads_to_type=info.leads_to_kind,
            version=info.version,
            uid=info.uid,
            gid=info.gid,
            owner=shown_path(info.owner),
            group=shown_path(info.group),
            accessed_at=info.accessed_at,
            changed_at=info.changed_at,
            metadata={shown_path(name): shown_path(value) for name, value in info.metadata.items()},
        )

    def words(self) -> str:
        """What somebody inside may have chosen of it, for rules that read output."""
        noted = "".join(f" {name}={value}" for name, value in self.metadata.items())
        return f"{self.path} -> {self.target or ''}{noted}\n"


def shown(answer: Answer, *entries: PathEntry) -> Ran:
    output = "".join(entry.words() for entry in entries).encode()
    return Ran(answer, output=lambda: output, output_bytes=len(output))


@tool(arguments=PathArguments, answer=PathEntry, writes=False, listed=False)
async def stat_path(call: ToolCall[PathArguments]) -> Ran:
    """Tell type, size, mode, owner, times and link target of a path anywhere in the sandbox. A link is looked at itself."""
    found = await call.box.ask(StatPath(path=in_box(any_path(call.arguments.path)), user=call.arguments.user))
    entry = PathEntry.of(found)
    return shown(entry, entry)
