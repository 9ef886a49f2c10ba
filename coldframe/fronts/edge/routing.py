"""Where a request at the edge wants to go: one pure function of its host, path and headers.

Many protocols share one port, so the order is what keeps them apart. The host decides first: its left-most label names a
port of a sandbox, or the control API. A host that is only the machine leaves it to the rest: a key with a path of the
control API, since some SDKs send the headers of a sandbox there as well; then these headers; then the path. A sandbox
that nothing names is found by the token or the signature that comes along (`Edge`), which are unique to it.
"""

import re
from collections.abc import Collection, Iterable
from typing import Literal, NamedTuple

from coldframe.contract.errors import InvalidArgument, Refused

ENVD_PORT = 49_983
"""Where SDKs of E2B look for files and processes of a sandbox."""
CELLS_PORT = 49_999
"""Where they look for its code interpreter."""
Kind = Literal["control", "envd", "cells", "preview"]

_LABEL = re.compile(r"([0-9]{1,5})-([0-9a-z]{1,64})(?:-[0-9a-z]{1,64})?")
_ID = re.compile(r"([0-9a-z]{1,64})(?:-[0-9a-z]{1,64})?")
_NAME = re.compile(r"[a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\]")
_ADDRESS = re.compile(r"[0-9.]+|\[.*\]")
_CONTROL = re.compile(
    r"/(?:v[0-9]+/)?(?:sandboxes|snapshots|templates|default-templates|teams|volumes|volumecontent|secrets)(?:/|$)"
)
_CELLS = re.compile(r"/(?:execute|contexts)(?:/|$)")
_ENVD = re.compile(r"/(?:process\.Process|filesystem\.Filesystem|files|envs|metrics|health)(?:/|$)")
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Target(NamedTuple):
    """What is to answer. *sandbox_id* is None where only the token or signature of the request can tell."""

    kind: Kind
    sandbox_id: str | None = None
    port: int = 0
    by_host: bool = False
    """Whether the host named it, so that everything under that host is one sandbox's."""


class Asked(NamedTuple):
    """What of a request the way depends on. Header values are as they came; None for one that is not there."""

    host: str
    path: str
    sandbox: str | None = None
    """`E2b-Sandbox-Id`"""
    port: str | None = None
    """`E2b-Sandbox-Port`"""
    has_key: bool = False
    """Whether there is an `X-API-KEY` or a bearer token."""


def find_target(asked: Asked, domains: Collection[str], names: Collection[str]) -> Target:
    """Tell who answers. *domains* are those whose labels name sandboxes, *names* other names of this server.

    Raises:
        Refused: the host is no name of this server, as after a rebound name.
        InvalidArgument: a label, header or port that can be none.
    """
    host = host_name(asked.host)
    for domain in domains:
        if host.endswith(f".{domain}"):
            label = host.removesuffix(f".{domain}")
            if label not in ("api", "sandbox"):
                return _named(label)
            host = domain if label == "sandbox" else label
            break
    else:
        if host not in LOCAL_NAMES and host not in names and host not in domains:
            raise _foreign(asked.host)
    if host == "api" or (asked.has_key and _CONTROL.match(asked.path) is not None):
        return Target("control")
    if asked.sandbox is not None:
        found = _ID.fullmatch(asked.sandbox.strip().lower())
        if found is None:
            raise InvalidArgument("`E2b-Sandbox-Id` is no id of a sandbox", argument="E2b-Sandbox-Id")
        return _at(found.group(1), (asked.port or str(ENVD_PORT)).strip(), by_host=False)
    if asked.port is not None and asked.port.strip() == str(CELLS_PORT):
        return Target("cells", port=CELLS_PORT)
    if _CELLS.match(asked.path):
        return Target("cells", port=CELLS_PORT)
    if _ENVD.match(asked.path):
        return Target("envd", port=ENVD_PORT)
    return Target("control")


def host_name(host: str) -> str:
    """The name in a `Host` header, without its port, in small letters; empty if it is none."""
    host = host.strip().lower()
    name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
    name = name.removesuffix(".")
    return name if _NAME.fullmatch(name) else ""


def is_address(name: str) -> bool:
    return _ADDRESS.fullmatch(name) is not None


def label_of(sandbox_id: str) -> str:
    """How a sandbox is named in labels and by E2B: its id without our prefix, since a label has no underscore."""
    return sandbox_id.removeprefix("sbx_")


def sandbox_of(label: str) -> str:
    """The sandbox that a label or an id of E2B names. What follows a dash is no part of it: SDKs of 1.x add a client's id."""
    return f"sbx_{label.partition('-')[0]}"


def check_domains(domains: Iterable[str]) -> tuple[str, ...]:
    """The domains in small letters, the longest first, so that one within another is found. Raises InvalidArgument."""
    found = {domain.strip().lower().strip(".") for domain in domains}
    for domain in found:
        if not _NAME.fullmatch(domain) or is_address(domain):
            raise InvalidArgument(f"`{domain[:100]}` is no domain", hint="name one as `sandboxes.example`")
    return tuple(sorted(found, key=lambda one: (-len(one), one)))


def _named(label: str) -> Target:
    found = _LABEL.fullmatch(label)
    if found is None:
        raise InvalidArgument(
            f"`{label[:100]}` names no port of a sandbox", hint="the form is PORT-ID, as `8080-0123456789abcdef0123`"
        )
    return _at(found.group(2), found.group(1), by_host=True)


def _at(label: str, port: str, *, by_host: bool) -> Target:
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) <= 65_535):
        raise InvalidArgument(f"`{port[:20]}` is no port", hint="ports are 1 to 65535", argument="port")
    number = int(port)
    kind: Kind = "envd" if number == ENVD_PORT else "cells" if number == CELLS_PORT else "preview"
    return Target(kind, sandbox_of(label), number, by_host)


def _foreign(host: str) -> Refused:
    return Refused(
        f"`{host[:100]}` is not a name of this server",
        hint="use localhost, or add the domain to the setting `edge_domains` or the name to `allowed_hosts`",
    )
