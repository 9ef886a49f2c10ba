"""The package registries of this machine: those that its own clients are set to, and where they are set to none, their own.

Read are the files and variables of pip and npm, the sources of apt, and the texts of these programs for what they use by themselves; nothing is
started. So a mirror of a company is used where the clients of the host use it. Credentials that stand there are for the
broker alone: no box gets them, and they go to the registry that they stand for.

What is left out: registries by an address or on this machine itself, which boxes cannot be given a way to, and folders.
"""

import base64
import configparser
import glob
import netrc
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from coldframe.policy.hostnames import NameInvalid, read_name
from coldframe.policy.network_rules import PackageKind, Registry, Scheme
from coldframe.policy.targets import TargetInvalid, read_target

MOST_REGISTRIES = 50
MAX_FILE_BYTES = 1 << 20
PIP_DEFAULT = re.compile(r"^PyPI = PackageIndex\(\s*[\"'](https?://[^\"']+)[\"']", re.MULTILINE)
NPM_DEFAULT = re.compile(r"new Definition\('registry', \{\s*default: [\"'`](https?://[^\"'`]+)")
_PIP_TEXTS = (
    f"{sys.base_prefix.lstrip('/')}/lib/python3*/site-packages/pip/_internal/models/index.py",
    "/usr/lib/python3*/dist-packages/pip/_internal/models/index.py",
    "/usr/lib/python3*/site-packages/pip/_internal/models/index.py",
    "/usr/local/lib/python3*/*-packages/pip/_internal/models/index.py",
)
_SOURCES = ("/etc/apt/sources.list.d/*.list", "/etc/apt/sources.list.d/*.sources")
_NPM_TEXT = "node_modules/@npmcli/config/lib/definitions/definitions.js"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(\?)?\}")
_NPM_VARIABLE = "npm_config_"
_SCOPE = re.compile(r"@[a-z0-9~-][a-z0-9._~-]{0,99}")


class RegistryCredential(NamedTuple):
    """The header `authorization` for one registry of the host's settings."""

    registry: Registry
    authorization: str

    def __repr__(self) -> str:
        return f"RegistryCredential({self.registry!r}, …)"


class RegistrySettings(NamedTuple):
    """What the host's clients are set to."""

    python: tuple[Registry, ...] = ()
    """The first is the index, the others are beside it."""
    npm: Registry | None = None
    is_npm_usual: bool = False
    """It is the one that npm uses by itself, and so does Deno."""
    npm_scopes: tuple[tuple[str, Registry], ...] = ()
    """Scopes, with their at sign, that have a registry of their own."""
    debian: tuple[Registry, ...] = ()
    """Archives of apt's."""
    credentials: tuple[RegistryCredential, ...] = ()
    left_out: tuple[str, ...] = ()
    """Settings that cannot be used, and why, without credentials."""

    @property
    def all(self) -> tuple[Registry, ...]:
        npm = () if self.npm is None else (self.npm,)
        scopes = (one for _, one in self.npm_scopes)
        return tuple(dict.fromkeys((*self.python, *npm, *scopes, *self.debian)))[:MOST_REGISTRIES]


class _Unfit(Exception):
    """No registry that a box can be given."""


def read_registry_settings(environment: Mapping[str, str], home: str, *, root: str = "/") -> RegistrySettings:
    """Those of a user with this environment and home. Never raises for what stands in a file."""
    reading = _Reading(environment, home, root)
    reading.read_pip()
    reading.read_npm()
    reading.read_apt()
    return RegistrySettings(
        tuple(dict.fromkeys(reading.python)),
        reading.npm,
        reading.is_npm_usual,
        tuple(reading.scopes.items()),
        tuple(dict.fromkeys(reading.debian)),
        tuple(RegistryCredential(*pair) for pair in reading.credentials.items()),
        tuple(dict.fromkeys(reading.left_out)),
    )


class _Reading:
    def __init__(self, environment: Mapping[str, str], home: str, root: str) -> None:
        self._environment = environment
        self._home = home
        self._root = root
        self.python: list[Registry] = []
        self.npm: Registry | None = None
        self.is_npm_usual = False
        self.scopes: dict[str, Registry] = {}
        self.debian: list[Registry] = []
        self.credentials: dict[Registry, str] = {}
        self.left_out: list[str] = []

    # -- pip -----------------------------------------------------------------------------------

    def read_pip(self) -> None:
        said: dict[str, dict[str, str]] = {"global": {}, "install": {}}
        for path in self._pip_files():
            parser = configparser.RawConfigParser(strict=False, inline_comment_prefixes=None)
            try:
                parser.read_string(_read(path))
            except configparser.Error:
                self.left_out.append(f"{path} cannot be read")
                continue
            for section, known in said.items():
                if parser.has_section(section):
                    known |= {key.replace("_", "-"): value or "" for key, value in parser.items(section)}

        def find(key: str) -> str:
            """A variable goes before all files, and a section before the general one whatever file each stands in."""
            variable = self._environment.get("PIP_" + key.replace("-", "_").upper())
            return variable or said["install"].get(key) or said["global"].get(key) or ""

        if find("no-index").lower() not in ("", "0", "n", "no", "f", "false", "off"):
            return
        index = find("index-url") or self._own_text(self._pip_texts(), PIP_DEFAULT, "simple/")
        for address in [index, *find("extra-index-url").split()]:
            registry = self._registry(address, PackageKind.PYTHON)
            if registry is not None:
                self.python.append(registry)

    def _pip_files(self) -> Iterator[str]:
        """The last one wins, as with pip: those of the host, the user, the environment of Python, and the one that is told."""
        told = self._environment.get("PIP_CONFIG_FILE", "")
        if told == os.devnull:
            return
        for folder in (self._environment.get("XDG_CONFIG_DIRS", "").strip() or "/etc/xdg").split(os.pathsep):
            yield self._under(f"{folder}/pip/pip.conf")
        yield self._under("/etc/pip.conf")
        if not (told and os.path.exists(told)):
            yield f"{self._home}/.pip/pip.conf"
            own = self._environment.get("XDG_CONFIG_HOME", "").strip() or f"{self._home}/.config"
            yield f"{own}/pip/pip.conf"
        yield self._under(f"{sys.prefix}/pip.conf")
        if told:
            yield told

    def _pip_texts(self) -> Iterator[str]:
        for pattern in _PIP_TEXTS:
            yield from sorted(glob.glob(self._under(pattern)))

    # -- npm -----------------------------------------------------------------------------------

    def read_npm(self) -> None:
        said: dict[str, str] = {}
        program = shutil.which("npm", path=self._environment.get("PATH") or os.defpath)
        folder = "" if program is None else os.path.dirname(os.path.dirname(os.path.realpath(program)))
        prefix = "" if program is None else os.path.dirname(os.path.dirname(program))
        variables = dict(self._npm_variables())
        files = [
            *([f"{folder}/npmrc"] if folder else []),
            *([f"{prefix}/etc/npmrc"] if prefix not in ("", "/", "/usr") else []),
            variables.get("globalconfig") or self._under("/etc/npmrc"),
            variables.get("userconfig") or f"{self._home}/.npmrc",
        ]
        for path in files:
            said |= dict(self._npm_lines(_read(path)))
        said |= variables
        texts = [f"{folder}/{_NPM_TEXT}"] if folder else []
        usual = self._own_text(iter(texts), NPM_DEFAULT)
        self.npm = self._registry(said.get("registry") or usual, PackageKind.NPM)
        self.is_npm_usual = self.npm is not None and self.npm == self._registry(usual, PackageKind.NPM)
        for key, value in said.items():
            scope, _, rest = key.rpartition(":")
            if rest == "registry" and _SCOPE.fullmatch(scope):
                registry = self._registry(value, PackageKind.NPM)
                if registry is not None:
                    self.scopes[scope] = registry
        for registry in (*([self.npm] if self.npm is not None else []), *self.scopes.values()):
            shown = _npm_credential(registry, said)
            if shown is not None:
                self.credentials[registry] = shown

    def _npm_variables(self) -> Iterator[tuple[str, str]]:
        """Settings of one registry, which begin with its address, have their letters as they are."""
        for variable, value in self._environment.items():
            if variable.lower().startswith(_NPM_VARIABLE) and value:
                key = variable[len(_NPM_VARIABLE) :]
                if not key.startswith("//"):
                    key = (key[:1] + key[1:].replace("_", "-")).lower()
                yield self._fill(key), self._fill(value.strip())

    def _npm_lines(self, text: str) -> Iterator[tuple[str, str]]:
        for line in text.splitlines():
            key, sign, value = line.strip().partition("=")
            if sign and not key.startswith((";", "#")):
                yield self._fill(key.strip()), self._fill(value.strip()).strip("\"'")

    def _fill(self, text: str) -> str:
        return _VARIABLE.sub(lambda found: self._environment.get(found[1], ""), text)

    # -- apt -----------------------------------------------------------------------------------

    def read_apt(self) -> None:
        for path in ("/etc/apt/sources.list", *_SOURCES):
            for file in sorted(glob.glob(self._under(path))):
                for line in _read(file).splitlines():
                    for address in _addresses_of(line):
                        registry = self._registry(address, PackageKind.DEBIAN)
                        if registry is not None:
                            self.debian.append(registry)

    # -- all ----------------------------------------------------------------------------------

    def _under(self, path: str) -> str:
        return os.path.join(self._root, path.lstrip("/"))

    def _own_text(self, paths: Iterator[str], pattern: re.Pattern[str], more: str = "") -> str:
        """What a program uses by itself, as its text says; empty if it is not here."""
        for path in paths:
            found = pattern.search(_read(path))
            if found is not None:
                return found[1] + more
        return ""

    def _registry(self, address: str, kind: PackageKind) -> Registry | None:
        if not address:
            return None
        try:
            registry, shown = _read_address(address.strip(), kind)
        except _Unfit as unfit:
            self.left_out.append(f"{_without_credential(address)}: {unfit}")
            return None
        shown = shown or (self._netrc(registry) if kind is PackageKind.PYTHON else None)
        if shown is not None:
            self.credentials[registry] = shown
        return registry

    def _netrc(self, registry: Registry) -> str | None:
        path = self._environment.get("NETRC") or f"{self._home}/.netrc"
        try:
            known = netrc.netrc(path).hosts.get(registry.name) if os.path.getsize(path) < MAX_FILE_BYTES else None
        except (OSError, netrc.NetrcParseError, ValueError):
            return None
        return None if known is None else _basic(known[0], known[2] or "")


def _addresses_of(line: str) -> list[str]:
    """Of a line of apt's sources, in either form."""
    kind, *words = line.split() or [""]
    if kind == "URIs:":
        return words
    if kind not in ("deb", "deb-src"):
        return []
    if words and words[0].startswith("["):
        words = line.partition("]")[2].split()
    return words[:1]


def _read_address(text: str, kind: PackageKind) -> tuple[Registry, str | None]:
    """A registry, and the header that its address has a credential for."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise _Unfit("it is no address") from None
    if parts.scheme not in ("https", "http"):
        raise _Unfit("it is not on the network")
    if parts.query or parts.fragment:
        raise _Unfit("it has a query")
    try:
        name = read_name(parts.hostname or "")
        path = read_target(parts.path or "/").path
    except NameInvalid:
        raise _Unfit("boxes reach names alone") from None
    except TargetInvalid as error:
        raise _Unfit(f"its path is refused: {error}") from None
    scheme = Scheme(parts.scheme)
    registry = Registry(name, port or (443 if scheme is Scheme.HTTPS else 80), path, scheme, kind)
    if parts.username is None:
        return registry, None
    return registry, _basic(unquote(parts.username), unquote(parts.password or ""))


def _npm_credential(registry: Registry, said: Mapping[str, str]) -> str | None:
    """As npm finds it: by the longest part of the registry's address for which there is one."""
    place = registry.address.partition("//")[2].rstrip("/")
    while place:
        for start in (f"//{place}/", f"//{place}"):
            if token := said.get(f"{start}:_authToken"):
                return f"Bearer {token}"
            if both := said.get(f"{start}:_auth"):
                return f"Basic {both}"
            user, password = said.get(f"{start}:username"), said.get(f"{start}:_password")
            if user and password:
                try:
                    return _basic(user, base64.b64decode(password).decode())
                except ValueError:
                    return None
        place = place.rpartition("/")[0]
    return None


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _without_credential(address: str) -> str:
    return re.sub(r"//[^/@]*@", "//", address)[:200]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as source:
            return source.read(MAX_FILE_BYTES)
    except OSError:
        return ""
