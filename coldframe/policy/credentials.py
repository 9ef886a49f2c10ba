"""What a credential is for: whether one request is a use that its terms allow. Pure, and all of it has to fit.

Paths are matched in each way in which a server may read them, and all of these have to be allowed.
"""

from functools import lru_cache
from typing import NamedTuple

import re2

from coldframe.contract.credential import SECRET, CredentialTerms, split_header
from coldframe.policy.conditions import compile_pattern
from coldframe.policy.hostnames import NameInvalid, read_name
from coldframe.policy.targets import TargetInvalid, read_target

BASIC = "Basic "


class ServiceInvalid(Exception):
    """Why an address is none that a credential could be for."""


class Service(NamedTuple):
    """Where a credential is accepted."""

    name: str
    port: int
    prefix: str
    """Beginning of every path; empty for none."""


class Use(NamedTuple):
    """A request that holds a handle."""

    name: str | None
    """That the connection is to; None for an address."""
    port: int
    scheme: str
    is_verified: bool
    """The server has proven by TLS that it is the one of that name."""
    method: str
    path: str
    """As it is sent, without the query."""
    header: str
    """`name: value` with `{secret}` in place of the handle; what `Basic` encodes is decoded."""


@lru_cache(256)
def read_service(base: str) -> Service:
    """Raises ServiceInvalid."""
    host, slash, rest = base.removeprefix("https://").partition("/")
    name, _, port = host.partition(":")
    prefix = f"/{rest}".rstrip("/") if slash else ""
    try:
        name = read_name(name)
        if prefix and (read_target(prefix).readings != {prefix} or "*" in prefix):
            raise ServiceInvalid("its path is no plain one: leave out `*`, `;` and escapes")
    except (NameInvalid, TargetInvalid) as error:
        raise ServiceInvalid(str(error)) from None
    return Service(name, int(port or 443), prefix)


def find_misuse(terms: CredentialTerms, use: Use) -> str | None:
    """Why the credential is not for this request; None if it is."""
    service = read_service(terms.base)
    if use.scheme != "https" or not use.is_verified:
        return "it goes only where the server has proven by TLS who it is"
    if (use.name, use.port) != (service.name, service.port):
        return f"it is for `{service.name}` on port {service.port}, and the request is to another place"
    if use.method not in terms.methods and not (use.method == "HEAD" and "GET" in terms.methods):
        return f"it is not for {use.method}"
    if not allows_path(terms, use.path):
        return f"it is not for the path `{use.path[:200]}`"
    if not is_in_place(terms.header, use.header):
        return f"it belongs into the header `{terms.header}` alone"
    return None


def allows_path(terms: CredentialTerms, path: str) -> bool:
    """Whether every reading of *path* fits one of the patterns."""
    try:
        target = read_target(path)
    except TargetInvalid:
        return False
    if target.path != path:
        return False  # it was cut, or is no path
    prefix = read_service(terms.base).prefix
    patterns = [_pattern(prefix, one) for one in terms.paths]
    return all(any(one.fullmatch(reading) is not None for one in patterns) for reading in target.readings)


def is_in_place(template: str, header: str) -> bool:
    """Whether a header with `{secret}` in place of the handle is the one that a template describes."""
    wanted_name, wanted = split_header(template)
    name, _, value = header.partition(": ")
    if name != wanted_name:
        return False
    if name == "authorization" and wanted.startswith(BASIC):
        if not value.startswith(BASIC):
            return False
        wanted, value = wanted.removeprefix(BASIC), value.removeprefix(BASIC)
        return value == wanted or (wanted == SECRET and value.partition(":")[2] == SECRET)
    before, _, after = wanted.partition(SECRET)
    start, mark, end = value.partition(SECRET)
    return bool(mark) and start.lower() == before.lower() and end == after


@lru_cache(1024)
def _pattern(prefix: str, pattern: str) -> "re2._Regexp[str]":
    text = prefix + pattern
    below = text.endswith("/**")
    parts = text.removesuffix("/**").split("**") if below else text.split("**")
    regex = ".*".join("[^/]*".join(re2.escape(run) for run in part.split("*")) for part in parts)
    return compile_pattern("path", f"(?s){regex}(?:/.*)?" if below else f"(?s){regex}")
