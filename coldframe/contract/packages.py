"""Packages that are installed in a workspace or a system of its own, as their managers have left them on record there."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from coldframe.contract.files import Request
from coldframe.contract.model import Model
from coldframe.contract.policy import Label

PackageManager = Literal["apt", "pip", "npm"]

MANAGERS: dict[str, PackageManager] = {"python": "pip", "npm": "npm", "debian": "apt"}
"""By the kind of registry that packages came from."""


class FoundPackage(Model):
    manager: PackageManager
    name: str
    version: str
    place: str
    """Of its record, below the top that was looked at."""
    bytes: int | None = None
    """As the record says, or as its files are; None where neither tells."""
    installed_at: datetime
    """When the record was written there."""


class PackagesFound(Model):
    packages: tuple[FoundPackage, ...]
    complete: bool
    """False: there are more, or the time was over."""


class ListPackages(Request[PackagesFound]):
    """What pip, npm and apt have installed below the top. Nothing is started; what records say is their word."""

    verb: str = "list_packages"
    most: int = Field(default=10_000, ge=1, le=20_000)
    budget_s: float = Field(default=10.0, gt=0, le=25)


class ListSystemPackages(ListPackages):
    """The same from the root of a box on, whatever is mounted there left out: a system that is in use is seen from within alone."""

    verb: str = "list_system_packages"


class Dependency(Model):
    """A file of a package that a registry handed over to a command. What came of it is the manager's affair; one that a manager had
    kept for itself was not asked for, and is not here."""

    manager: PackageManager
    name: str
    version: str
    file: str
    digest: str
    """`sha256:…` or another, as the registry published it; what was found where it publishes none."""


class PackageRow(Model):
    """One package, and where it is. The same name at two places, or in two versions, is two rows."""

    manager: PackageManager
    name: str
    installed: str | None = None
    """The version that is there now."""
    cached: bool | None = None
    """Whether a file of it that this sandbox was handed over is in the cache of packages; None if it was handed over none, as
    with what came with a template or was built inside."""
    in_template: str | None = None
    """The version that its template has; None also where the system is that of the host."""
    in_snapshot: str | None = None
    """The version that the snapshot has which it is compared with."""
    bytes: int | None = None
    place: str | None = None
    """As seen inside; None for one that is not installed."""
    installed_at: datetime | None = None
    command_id: str | None = None
    """The command that has installed it, as far as it is on record."""


class PackageChange(Model):
    """One line of what has drifted."""

    manager: PackageManager
    name: str
    before: str | None
    """The version there; None: it was not."""
    after: str | None
    """The version now; None: it is gone."""


class PackageDrift(PackageChange):
    against: Literal["template", "snapshot"]
    """What it is compared with: the template of its system, or the newest snapshot of its workspace."""


class PackageView(Model):
    packages: tuple[PackageRow, ...]
    template_sha256: str | None = None
    snapshot_id: str | None = None
    """What it is compared with: the one that was asked for, or the newest of this workspace."""
    since_template: tuple[PackageChange, ...] = ()
    """Of the system of its own, and of what `user` has installed in `~/.local` in front of it, what differs from its template."""
    since_snapshot: tuple[PackageChange, ...] = ()
    complete: bool
    label: Label
    """Of what is told here."""
