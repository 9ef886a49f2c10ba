"""Settings of an installation: `coldframe.toml`, then the environment, then the command line; typed, unknown keys refused.

The file is looked for at `COLDFRAME_CONFIG`, then `<data>/coldframe.toml`. Never in the current
directory: whoever can write there would otherwise choose what the owner runs.
"""

import os
import tomllib
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from coldframe.client.location import CLIENT_FILE, default_data_dir
from coldframe.contract.errors import InvalidArgument
from coldframe.contract.model import Model

DEFAULT_PORT = 4560
STOPPED_KEEP_S = 7 * 86_400.0
_NOT_SETTINGS = frozenset({"COLDFRAME_CONFIG", "COLDFRAME_URL", "COLDFRAME_TOKEN"})
"""Variables of ours that say something else than a setting."""
_LISTS = frozenset({"allowed_hosts", "edge_domains"})
"""Settings that are several texts; in a variable they are parted by commas."""


class Settings(Model):
    """All that an operator can choose. Every key is also an environment variable: `COLDFRAME_` and the name in capitals."""

    data_dir: str = Field(default_factory=default_data_dir)
    bind: str = "127.0.0.1"
    """Address to listen on. Loopback, unless somebody asks for more."""
    port: int = Field(default=DEFAULT_PORT, ge=0, le=65_535)
    """0 takes a free one."""
    edge_port: int | None = Field(default=None, ge=0, le=65_535)
    """Port of the edge, for the E2B protocol and for ports of sandboxes, with TLS and without. 0 takes a free one; None is the
    one after `port`, and a free one if that is 0."""
    edge_domains: tuple[str, ...] = ()
    """Domains besides `localhost` whose every name leads to the edge, as `sandboxes.example`."""
    server_user: str | None = None
    """Whom the server runs as if started by root: a name or a number. None for the system user `coldframe`, else uid 61000."""
    broker_uid: int = Field(default=1_999_999, gt=0)
    """Whom the egress broker runs as if started by root: a user that owns nothing. It may be no sandbox's user, which are
    2,000,000 to 2,059,999, nor the server's."""
    on_missing: Literal["refuse", "degrade"] = "degrade"
    """For sandboxes that do not say: what to do where this machine can keep a limit by best effort only."""
    max_idle_s: float | None = Field(default=None, gt=0)
    """Longest time a sandbox may run without activity, and what one that asks for nothing has. None for no end."""
    max_age_s: float | None = Field(default=None, gt=0)
    """The same for its whole life. Sandboxes that are there already are held to both as well."""
    max_running: int | None = Field(default=None, gt=0)
    """Most sandboxes that run or are paused at once. One more is refused, or waits for its turn if it says so. None for as
    many as the machine bears."""
    ready_boxes: int = Field(default=2, ge=0, le=64)
    """Most boxes that stand ready for sandboxes like the last ones, so that creating one does not wait for its box. Each takes a few
    MiB of memory. 0 for none."""
    max_snapshots: int = Field(default=200, ge=0)
    """Most snapshots of one agent; of all temporary workspaces together, and of imports, as many."""
    max_snapshots_mib: int | None = Field(default=None, ge=0)
    """The same for their size on disk, as far as it is counted. None for no end."""
    max_owned: int | None = Field(default=None, gt=0)
    """Most sandboxes of one owner, which is one token, that have not ended. None for as many as wanted."""
    max_owned_mib: int | None = Field(default=None, gt=0)
    """Most that they may have stored, workspaces and snapshots together, before another is made. None for no end."""
    stopped_keep_s: float = Field(default=STOPPED_KEEP_S, ge=0)
    """How long a sandbox may be stopped before it is terminated, which keeps the workspace of its agent. 0 for ever."""
    results_keep_s: float | None = Field(default=None, gt=0)
    """How long output and result of a command are kept after its end. Receipts and digests are kept in any case."""
    workspace_disk: Literal["directory", "image"] = "directory"
    """What a new workspace is: a directory, or (root only) an ext4 image of its own, whose limit the kernel keeps hard."""
    allowed_hosts: tuple[str, ...] = ()
    """Names besides localhost and the bind address that a `Host` header may carry."""
    log_level: Literal["debug", "info", "warning", "error"] = "warning"

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if not value:
            raise ValueError("is empty")
        return os.path.abspath(os.path.expanduser(value))

    @field_validator("server_user")
    @classmethod
    def _no_root(cls, value: str | None) -> str | None:
        if value in ("root", "0"):
            raise ValueError("the server never runs as root; name another user")
        return value

    @property
    def edge_listens_on(self) -> int:
        if self.edge_port is not None:
            return self.edge_port
        return self.port + 1 if 0 < self.port < 65_535 else 0

    @property
    def own_disks(self) -> bool:
        return self.workspace_disk == "image"

    @property
    def control_dir(self) -> str:
        return os.path.join(self.data_dir, "control")

    @property
    def client_file(self) -> str:
        return os.path.join(self.data_dir, CLIENT_FILE)

    @property
    def rules_path(self) -> str:
        return os.path.join(self.data_dir, "rules.yaml")

    @property
    def host_socket(self) -> str:
        return os.path.join(self.data_dir, "host", "daemon.sock")


def load_settings(**chosen: Any) -> Settings:
    """Read the settings; *chosen* (from the command line) wins over the environment, and that over the file.

    Raises:
        InvalidArgument: the file does not parse, or a key is unknown or of the wrong type.
    """
    chosen = {key: value for key, value in chosen.items() if value is not None}
    values = {**_environment(), **chosen}
    path = os.environ.get("COLDFRAME_CONFIG") or os.path.join(
        str(values.get("data_dir") or default_data_dir()), "coldframe.toml"
    )
    values = {**_file(path, required="COLDFRAME_CONFIG" in os.environ), **values}
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0]) if first["loc"] else "settings"
        reason = "is not a setting" if first["type"] == "extra_forbidden" else first["msg"]
        raise InvalidArgument(
            f"setting `{key}`: {reason}",
            hint=f"settings are {', '.join(sorted(Settings.model_fields))}; see `{path}` and the COLDFRAME_ variables",
            argument=key,
        ) from error


def _environment() -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in os.environ.items():
        if not name.startswith("COLDFRAME_") or name in _NOT_SETTINGS:
            continue
        key = name.removeprefix("COLDFRAME_").lower()
        values[key] = tuple(part.strip() for part in value.split(",") if part.strip()) if key in _LISTS else value
    return values


def _file(path: str, *, required: bool) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        if required:
            raise InvalidArgument(f"there is no settings file `{path}`", hint="correct COLDFRAME_CONFIG") from None
        return {}
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"`{path}` cannot be read: {error}", hint="correct the file, or remove it") from error
