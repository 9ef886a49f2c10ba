"""Templates: systems that sandboxes begin from, what they are made of, and what is known of them.

A recipe says what one is made of, in steps; the machine carries these out and seals what each has changed. A template never
changes: its digest is its name for programs, `name:version` the one for people.
"""

import hashlib
import json
import re
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field, model_validator

from coldframe.contract.model import Model

HOST = "host"
"""The system of the machine itself, which is no template and can be no one's name."""
DEFAULT_TEMPLATE = "debian"
"""The one that a `computer` begins from where nothing else is said."""
MOST_STEPS = 200
MOST_FILES = 10_000
MOST_INPUT_BYTES = 4 * 1024 * 1024 * 1024
"""Of all files of one recipe together, or of an archive."""
MOST_LINE = 4096
"""Characters of one line of a log; what is longer is cut, and says so."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
NAME = r"[a-z][a-z0-9-]{0,62}"
VERSION = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
TemplateName = Annotated[str, Field(pattern=rf"^{NAME}$")]
TemplateVersion = Annotated[str, Field(pattern=rf"^{VERSION}$")]
TemplateRef = Annotated[str, Field(pattern=rf"^({NAME}(:{VERSION})?|sha256:[0-9a-f]{{64}})$")]
"""`name`, which is the newest of that name, `name:version`, or `sha256:DIGEST`."""
Tag = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)]
Value = Annotated[str, Field(pattern=r"^[^\x00]*$", max_length=32_768)]
Environment = Annotated[dict[Variable, Value], Field(max_length=500)]
User = Literal["root", "user"]
HOME_STORE = "/var/lib/coldframe/home"
"""Where a template keeps what its steps have left in `/home/user`, which each sandbox has as its workspace."""
Manager = Literal["apt", "pip", "npm"]
BuildState = Literal["building", "ready", "failed", "cancelled"]


def _checked_path(value: str) -> str:
    parts = value.split("/")
    if not value.startswith("/") or "\x00" in value or any(part in ("", ".", "..") for part in parts[1:]):
        raise ValueError("use an absolute path without `.`, `..` and empty parts")
    return value


SystemPath = Annotated[str, Field(min_length=2, max_length=4096), AfterValidator(_checked_path)]
"""Absolute, inside the template."""

# What a manager takes as a package, and never as an option or a command: no leading hyphen, no space, no URL for apt.
AptPackage = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9+.-]*(:[a-z0-9-]+)?(=[A-Za-z0-9.+:~-]+)?$", max_length=300)]
PipPackage = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._-]+\])?[A-Za-z0-9.,<>=!~*+_-]*$", max_length=300)
]
NpmPackage = Annotated[
    str, Field(pattern=r"^(@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*(@[A-Za-z0-9.^~<>=*+-]+)?$", max_length=300)
]


class RecipeFile(Model):
    """One regular file that is put into the template. Its bytes are uploaded, under their digest, before the build."""

    to: SystemPath
    sha256: Digest
    bytes: int = Field(ge=0, le=MOST_INPUT_BYTES)
    mode: int = Field(default=0o644, ge=0, le=0o777)
    owner: User = "root"
    source: str = Field(default="", max_length=4096)
    """Where whoever built it had it, for people."""


class AptStep(Model):
    kind: Literal["apt"] = "apt"
    packages: tuple[AptPackage, ...] = Field(min_length=1, max_length=2000)


class PipStep(Model):
    """Into the system's own Python, for all its users."""

    kind: Literal["pip"] = "pip"
    packages: tuple[PipPackage, ...] = Field(min_length=1, max_length=2000)


class NpmStep(Model):
    """Globally. npm has to be there: a package of apt, or of the base."""

    kind: Literal["npm"] = "npm"
    packages: tuple[NpmPackage, ...] = Field(min_length=1, max_length=2000)


class FilesStep(Model):
    """Folders on the way are made, as root's. What is there under such a name is replaced; links are not followed."""

    kind: Literal["files"] = "files"
    files: tuple[RecipeFile, ...] = Field(min_length=1, max_length=MOST_FILES)


Owner = Annotated[str, Field(pattern=r"^[a-z0-9_][a-z0-9_-]{0,31}(:[a-z0-9_][a-z0-9_-]{0,31})?$")]
"""A user of the template and, after a colon, a group; names or numbers."""


class UnpackStep(Model):
    """Entries of an archive, copied as a Dockerfile's COPY does it: a file becomes *to*, or goes into it if that is a folder
    or ends with `/`; of a folder what is in it goes there; several always go into *to*. Links stay links."""

    kind: Literal["unpack"] = "unpack"
    sha256: Digest
    """Of a tar, plain or pressed by gzip, uploaded as files are. It is unpacked by the template's own tar."""
    bytes: int = Field(ge=0, le=MOST_INPUT_BYTES)
    entries: str = Field(min_length=1, max_length=4096, pattern=r"^[^\x00/][^\x00]*$")
    """Which: a path in the archive, or a pattern as bash has them."""
    to: str = Field(min_length=1, max_length=4096, pattern=r"^/[^\x00]*$")
    owner: Owner = "root"
    mode: int | None = Field(default=None, ge=0, le=0o7777)
    """Of all that is copied, folders as well. None: as the archive says."""
    source: str = Field(default="", max_length=4096)
    """Where whoever built it had them, for people."""


class EnvStep(Model):
    """For later steps, and for whatever runs in the template: it ends up in `env` of its settings."""

    kind: Literal["env"] = "env"
    variables: Environment


class RunStep(Model):
    """One command. It succeeds if it ends by itself with exit code 0."""

    kind: Literal["run"] = "run"
    command: str | tuple[str, ...] = Field(min_length=1, max_length=1_000_000)
    """A line for `/bin/bash -e -o pipefail -c`, or the words of a program and its arguments."""
    user: User = "root"
    cwd: SystemPath | Literal["/"] = "/"
    """Made, as the user's, if it is not there."""
    variables: Environment = Field(default_factory=dict)
    """For this step alone, beside those of the steps before it."""
    timeout_s: float = Field(default=1800.0, gt=0, le=86_400)


Step = Annotated[AptStep | PipStep | NpmStep | FilesStep | UnpackStep | EnvStep | RunStep, Field(discriminator="kind")]


class ReadyCheck(Model):
    """How it is known that the start command serves: a command that ends with 0, or a port somebody listens on."""

    command: str | None = Field(default=None, min_length=1, max_length=32_768)
    """A line for bash, run as `user` again and again until it ends with 0."""
    port: int | None = Field(default=None, ge=1, le=65_535)
    timeout_s: float = Field(default=60.0, gt=0, le=3600)

    @model_validator(mode="after")
    def _is_one(self) -> "ReadyCheck":
        if (self.command is None) == (self.port is None):
            raise ValueError("a ready check has either a `command` or a `port`")
        return self


class StartCommand(Model):
    """What runs, as a job, whenever a sandbox is made or started with the template."""

    command: str | tuple[str, ...] = Field(min_length=1)
    user: User = "user"
    cwd: SystemPath | None = None
    """None for the workspace."""
    ready: ReadyCheck | None = None
    """None: it serves as soon as it has started."""
    may_end: bool = False
    """It only sets something up: that it ends with 0 before it is ready is no failure."""


class Settings(Model):
    """What a template says to sandboxes beside its files. Part of what its digest is of."""

    env: Environment = Field(default_factory=dict)
    """For all commands, below what the sandbox or the command itself sets."""
    start: StartCommand | None = None
    home: bool = False
    """Temporary workspaces begin with what lies in HOME_STORE."""


class Package(Model):
    """One that is installed, in exactly this version."""

    manager: Manager
    name: str = Field(min_length=1, max_length=300)
    version: str = Field(min_length=1, max_length=300)
    architecture: str = Field(default="", max_length=32)
    """Of apt's alone."""


class Recipe(Model):
    """What a template is made of. It begins from one of three: a template, an archive, or what a snapshot has of a system."""

    name: TemplateName
    version: TemplateVersion | None = None
    """None: the next free number of that name."""
    base: TemplateRef | None = None
    """A template of this machine. `debian` if there is none of the three."""
    archive: Digest | None = None
    """Of a tar of a root file system, uploaded as files are; gzip, xz and zstd are found out."""
    snapshot: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")] | None = None
    """Of a sandbox with a system of its own, of which the system is taken and the workspace left out."""
    steps: tuple[Step, ...] = Field(default=(), max_length=MOST_STEPS)
    start: StartCommand | None = None
    network: Literal["none", "packages"] = "packages"
    """What steps can reach: nothing, or the registries, through the broker."""
    locked: tuple[Package, ...] | None = Field(default=None, max_length=20_000)
    """What another build came to have installed: it is installed in just these versions, or the build fails. A package beyond
    them fails it too."""
    tags: tuple[Tag, ...] = Field(default=(), max_length=32)
    home: bool = False
    """What steps leave in `/home/user` is kept: later steps find it there, and so does each sandbox with a temporary workspace."""

    @model_validator(mode="after")
    def _begins_somewhere(self) -> "Recipe":
        if sum(one is not None for one in (self.base, self.archive, self.snapshot)) > 1:
            raise ValueError("it begins from one of `base`, `archive` and `snapshot`")
        if HOST in (self.name, self.base):
            raise ValueError(f"`{HOST}` is the system of the machine, and no template")
        files = [file for step in self.steps if isinstance(step, FilesStep) for file in step.files]
        if len(files) > MOST_FILES or sum(file.bytes for file in files) > MOST_INPUT_BYTES:
            raise ValueError(f"files of a recipe are {MOST_FILES} and {MOST_INPUT_BYTES} bytes at most")
        return self

    @property
    def settings(self) -> Settings:
        env: dict[str, str] = {}
        for step in self.steps:
            if isinstance(step, EnvStep):
                env.update(step.variables)
        return Settings(env=env, start=self.start, home=self.home)

    @property
    def inputs(self) -> dict[str, int]:
        """Digest and size of all that has to be uploaded. The size of an archive is not known here, and 0."""
        found = {file.sha256: file.bytes for step in self.steps if isinstance(step, FilesStep) for file in step.files}
        found |= {step.sha256: step.bytes for step in self.steps if isinstance(step, UnpackStep)}
        return found if self.archive is None else {**found, self.archive: 0}

    @property
    def sha256(self) -> str:
        """Of all that what is built follows from: not name, version and tags."""
        return digest_of(_without_new(self.model_dump(mode="json", exclude={"name", "version", "tags"})))


class BuildOrder(Model):
    """One build, as the machine is told. Name and version are settled."""

    build_id: str = Field(pattern=r"^bld_[0-9a-f]{20}$")
    recipe: Recipe
    base: Digest | None = None
    """Of the template that the recipe begins from, where it begins from one."""
    no_cache: bool = False
    """Carry out every step anew."""


class BuildLine(Model):
    """One line of a log, of the builder's own or of what a step has said."""

    step: int
    """Counts from 1; 0 for what belongs to none."""
    stream: Literal["build", "stdout", "stderr"]
    text: str = Field(max_length=MOST_LINE)
    """Whatever the step wrote, without its end of line: hostile."""


class StepEnd(Model):
    """A step has come to its end, and what it has changed is sealed."""

    step: int
    was_cached: bool
    duration_s: float


class TemplateFacts(Model):
    """What the machine knows of one. Names, tags and marks are the server's to know."""

    digest: Digest
    name: str
    """Under which it was built first."""
    version: str | None
    """None for one that `coldframe setup` has built."""
    origin: Literal["setup", "recipe", "archive", "snapshot"]
    base: Digest | None
    created_at: datetime
    recipe_sha256: Digest | None
    settings: Settings
    packages: tuple[Package, ...]
    """All that are installed, by manager and name."""
    bytes: int
    """On disk, for this one alone: without its base."""
    build_id: str | None = None


STEP_BOXES = "build-"
"""What the names of the boxes begin with in which steps are carried out."""
_STEP_BOX = re.compile(r"build-(bld_[0-9a-f]{20})-([0-9]{1,4})-[0-9a-f]{4}")


class StepBox(NamedTuple):
    """What the name of such a box tells."""

    build_id: str
    step: int


def step_box_of(name: str) -> StepBox | None:
    """None for a name that is none of these."""
    found = _STEP_BOX.fullmatch(name)
    return None if found is None else StepBox(found[1], int(found[2]))


BuildEvent = BuildLine | StepEnd | TemplateFacts


class KnownGood(Model):
    """Somebody says so, and this passed in a fresh sandbox of it."""

    by: str
    check: str
    """The command that was run."""
    at: datetime
    sandbox_id: str
    command_id: str


class Withdrawn(Model):
    by: str
    why: str
    at: datetime


class TemplateRecord(Model):
    """A template as people and agents see it."""

    digest: Digest
    name: str
    version: str | None
    tags: tuple[str, ...] = ()
    state: Literal["ready", "lost"] = "ready"
    """`lost`: it is not on the machine any more, and nobody has removed it."""
    origin: Literal["setup", "recipe", "archive", "snapshot"]
    base: Digest | None
    created_at: datetime
    created_by: str
    recipe_sha256: Digest | None
    build_id: str | None
    settings: Settings
    package_count: int
    packages_sha256: Digest
    """Of the list of packages: two templates with the same have the same installed."""
    bytes: int
    known_good: KnownGood | None = None
    withdrawn: Withdrawn | None = None


class TemplateDetails(TemplateRecord):
    """One of them with what it has installed and was made of."""

    packages: tuple[Package, ...]
    recipe: Recipe | None
    """With `locked` filled in: built again, it has the same packages."""


class BuildRequest(Model):
    recipe: Recipe
    no_cache: bool = False
    assign: tuple[TemplateVersion, ...] = Field(default=(), max_length=32)
    """Names that are to stand for what comes of it from then on, beside its version: see `TemplateTag`."""
    notes: tuple[Annotated[str, Field(max_length=MOST_LINE)], ...] = Field(default=(), max_length=32)
    """What its log begins with."""


class TemplateTag(Model):
    """A name of a version that can be moved: `name:tag` stands for the version that it was given to last."""

    name: TemplateName
    tag: TemplateVersion
    version: str
    digest: Digest
    build_id: str | None
    at: datetime
    by: str


class TagRequest(Model):
    tags: tuple[TemplateVersion, ...] = Field(min_length=1, max_length=32)


class MarkRequest(Model):
    check: str = Field(min_length=1, max_length=32_768)
    """A line for bash, run in a fresh sandbox of it. It passes if it ends with 0."""
    timeout_s: float = Field(default=300.0, gt=0, le=3600)
    network: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,63}$")] | None = None
    """Network profile of that sandbox."""


class WithdrawRequest(Model):
    why: str = Field(min_length=1, max_length=2000, pattern=r"^[^\x00-\x1f\x7f]*$")


class MissingInputs(Model):
    """Which of these bytes have to be uploaded before a build."""

    sha256: tuple[Digest, ...] = Field(max_length=MOST_FILES + 1)


class BuildLogEntry(Model):
    seq: int
    """Counts from 1, without a gap."""
    at: datetime
    step: int
    stream: Literal["build", "stdout", "stderr"]
    text: str


class BuildInfo(Model):
    """A build, under way or over."""

    build_id: str
    state: BuildState
    name: str
    version: str
    recipe_sha256: Digest
    started_at: datetime
    started_by: str
    ended_at: datetime | None = None
    steps: int
    steps_done: int = 0
    steps_cached: int = 0
    digest: Digest | None = None
    """Of the template, once it is ready."""
    failed_step: int | None = None
    error: dict[str, Any] | None = None
    """As every surface tells errors; None unless it failed."""
    last_seq: int = 0


class BuildLogPage(Model):
    entries: tuple[BuildLogEntry, ...]
    build: BuildInfo
    """As it stood when the entries were read: there is more to come unless it is over and they reach its `last_seq`."""


def digest_of(value: Any) -> str:
    """Of its canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def template_digest(base: str | None, layers: tuple[str, ...], settings: Settings) -> str:
    """Of a template made of sealed layers, whose digests these are from the lowest up, upon *base*."""
    told = _without_new(settings.model_dump(mode="json"))
    return digest_of({"base": base, "layers": list(layers), "settings": told})


def _without_new(told: dict[str, Any]) -> dict[str, Any]:
    """Without what templates of before could not say and this one does not, so that theirs keep their digests."""
    if not told["home"]:
        del told["home"]
    if told["start"] is not None and not told["start"]["may_end"]:
        del told["start"]["may_end"]
    return told


def packages_digest(packages: tuple[Package, ...]) -> str:
    """The same for the same packages in any order."""
    return digest_of(sorted([one.manager, one.name, one.version, one.architecture] for one in packages))


def split_ref(ref: str) -> tuple[str | None, str | None, str | None]:
    """Name, version and digest that a reference names; those it does not are None."""
    if ref.startswith("sha256:"):
        return None, None, ref.removeprefix("sha256:")
    name, _, version = ref.partition(":")
    return name, version or None, None


def describe_step(step: Step) -> str:
    """One line for people."""
    match step:
        case AptStep() | PipStep() | NpmStep():
            return f"{step.kind} {' '.join(step.packages)}"
        case FilesStep():
            return f"files {len(step.files)} to {step.files[0].to}{' …' if len(step.files) > 1 else ''}"
        case UnpackStep():
            return f"copy {step.entries} to {step.to}"
        case EnvStep():
            return f"env {' '.join(step.variables)}"
        case RunStep():
            line = step.command if isinstance(step.command, str) else " ".join(step.command)
            return "run " + re.sub(r"\s+", " ", line)[:200]
