"""Volumes: named durable directories with a life of their own, shown in sandboxes that ask for them."""

import re
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from coldframe.contract.model import Model
from coldframe.contract.policy import Label

HOME = "/home/user"
SHELF = "/mnt"
"""Beside the workspace a volume stands here, under its own name."""
MOST_OF_A_SANDBOX = 8
MOST_SIZE_MIB = 1 << 30
MOST_GRANTS = 256
DEFAULT_SIZE_MIB = 1024
MOST_UPLOAD_BYTES = 16 << 30
MOST_DEPTH = 8
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
PARTS = frozenset({"scratch", "integrations", "skills"})
"""Of a workspace, which no volume covers; it can stand below them."""

AttachMode = Literal["ro", "rw"]


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError("use 1 to 63 lower-case letters, digits and hyphens")
    return value


VolumeName = Annotated[str, AfterValidator(_name)]


def _place(value: str) -> str:
    """A place is one way of writing it: no `..`, no empty part, nothing hidden, and no sign that a shell would read."""
    above, _, rest = value.partition(f"{HOME}/")
    if above == "" and rest:
        parts = rest.split("/")
        if len(parts) <= MOST_DEPTH and all(map(_PART.fullmatch, parts)) and rest not in PARTS:
            return value
    elif value.startswith(f"{SHELF}/") and _NAME.fullmatch(value.removeprefix(f"{SHELF}/")):
        return value
    raise ValueError(
        f"a volume stands below `{HOME}`, in directories of letters, digits, `.`, `_` and `-` that are not hidden and none "
        f"of {', '.join(sorted(PARTS))} itself, or at `{SHELF}/NAME`"
    )


class VolumeMount(Model):
    """A volume that a sandbox asks for."""

    name: VolumeName
    at: Annotated[str, AfterValidator(_place)] = ""
    """Where it stands inside: below `/home/user`, where the file tools reach it too, or at `/mnt/NAME` for commands alone.
    Left out it is `/home/user/volumes/NAME`."""
    mode: AttachMode = "ro"
    """`rw` can be had by one sandbox at a time."""

    @model_validator(mode="before")
    @classmethod
    def _somewhere(cls, given: object) -> object:
        if isinstance(given, dict) and not given.get("at") and isinstance(given.get("name"), str):
            return {**given, "at": f"{HOME}/volumes/{given['name']}"}
        return given

    @model_validator(mode="after")
    def _under_its_name(self) -> "VolumeMount":
        if self.at.startswith(f"{SHELF}/") and self.at != f"{SHELF}/{self.name}":
            raise ValueError(f"in `{SHELF}` a volume stands under its own name, at `{SHELF}/{self.name}`")
        return self


def _apart(mounts: tuple[VolumeMount, ...]) -> tuple[VolumeMount, ...]:
    for number, one in enumerate(mounts):
        for other in mounts[number + 1 :]:
            if one.name == other.name:
                raise ValueError(f"the volume `{one.name}` is asked for twice")
            if f"{one.at}/".startswith(f"{other.at}/") or f"{other.at}/".startswith(f"{one.at}/"):
                raise ValueError(f"the volumes `{one.name}` and `{other.name}` stand one in the other")
    return mounts


VolumeMounts = Annotated[tuple[VolumeMount, ...], Field(max_length=MOST_OF_A_SANDBOX), AfterValidator(_apart)]


class VolumeAttachment(Model):
    """What the host is told of one: which directory, and how it is shown."""

    volume_id: Annotated[str, Field(pattern=r"^vol_[0-9a-f]{20}$")]
    name: VolumeName
    at: Annotated[str, AfterValidator(_place)]
    mode: AttachMode
    size_mib: int = Field(ge=1, le=MOST_SIZE_MIB)


class VolumeUsage(Model):
    """How full one is, counted now."""

    bytes: int
    """What its files take on disk, and 1 KiB for each of them where nothing else limits their number."""
    files: int
    complete: bool = True
    """False if there was more than could be counted."""
    hard: bool
    """Whether the kernel itself keeps the limit; else it is kept by looking."""


class VolumeGrant(Model):
    """Which sandboxes may have a volume, for whoever is neither owner nor admin."""

    agent_id: Annotated[str, Field(pattern=r"^(\*|[a-z0-9][a-z0-9-]{0,62})$")]
    """`background` for temporary sandboxes, `*` for all."""
    mode: AttachMode = "ro"
    """`rw` includes `ro`."""


class VolumeRequest(Model):
    """A volume to be made."""

    name: VolumeName
    size_mib: int = Field(default=DEFAULT_SIZE_MIB, ge=1, le=MOST_SIZE_MIB)
    """The most that its files may take."""
    label: Label = Label.PUBLIC
    """Of what is to be in it: a sandbox that has it is tainted so from its start."""


class VolumeHolder(Model):
    """A sandbox that has a volume."""

    sandbox_id: str
    agent_id: str | None
    at: str
    mode: AttachMode
    state: str
    """Of the sandbox; a `stopped` one has no box, and is to have the volume again when it starts."""


class VolumeInfo(Model):
    volume_id: str
    name: str
    size_mib: int
    label: Label
    """Whoever has it is tainted no lower; it rises to the taint of whoever may write it."""
    created_by: str
    created_at: datetime
    grants: tuple[VolumeGrant, ...] = ()
    holders: tuple[VolumeHolder, ...] = ()
    usage: VolumeUsage | None = None
    """Counted when one volume is asked for; None in lists, and where it cannot be counted now."""


class VolumeEntry(Model):
    """One file, directory or link in a volume."""

    path: str
    """Relative to the top."""
    kind: str
    size: int
    """In bytes."""
    mode: int
    """Permission bits."""
    modified_at: datetime
    target: str | None = None
    """Where a symbolic link points."""


class VolumeListing(Model):
    """What is in a directory of a volume."""

    entries: tuple[VolumeEntry, ...]
    complete: bool
    """False if there is more than one listing tells."""
