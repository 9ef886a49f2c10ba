"""Diagnoses: why a command failed, where its last words say that something is not installed.

Beside the exit code and never in its place: what a program prints is its own word, so a diagnosis is a hint with an action
that may help, and decides nothing. Only the end of each stream is read, and only of a command that failed by itself.
"""

import posixpath
import re
import shlex
from collections.abc import Callable
from typing import Literal, NamedTuple

from pydantic import Field

from coldframe.contract.errors import next_action
from coldframe.contract.model import Model
from coldframe.contract.profile import Profile
from coldframe.contract.versions import NEAREST, closest, nearest

READ_BYTES = 64 * 1024
"""Of the end of each stream."""
MOST_NAME = 200
MOST_VERSIONS = 1000
"""Of those that there are, the newest."""
Ecosystem = Literal[
    "shell", "python", "node", "shared_library", "header", "compiler", "browser", "python_version", "node_version"
]


class SuggestedAction(Model):
    """A public operation with its arguments. It is tried by whoever wants to, and is judged as any other call."""

    op: str
    args: dict[str, str | list[str]]
    effect: str


class Diagnosis(Model):
    """What is missing, as far as the output tells."""

    code: Literal["DEPENDENCY_MISSING"] = "DEPENDENCY_MISSING"
    ecosystem: Ecosystem
    name: str
    """The program, module, library, header or browser, as the message names it."""
    wanted: str | None = None
    """What of it: a version, or the package that has it."""
    nearest: tuple[str, ...] = Field(default=(), exclude_if=lambda nearest: not nearest)
    """Of a version that is not to be had: those next to it, in order, where the output names what there is."""
    evidence: str
    """The line that says so."""
    suggested_action: SuggestedAction


class Failed(NamedTuple):
    """A command that failed by itself, and the ends of what it wrote."""

    exit_code: int
    words: str
    """The command as text."""
    profile: Profile
    stdout: str
    stderr: str
    start_error: str | None = None


class _Found(NamedTuple):
    ecosystem: Ecosystem
    name: str
    package: str
    wanted: str | None
    evidence: str
    nearest: tuple[str, ...] = ()


def diagnose(failed: Failed) -> Diagnosis | None:
    """Say what is missing, or None: nothing is known. The error stream is believed before the other one, and the last line
    that says something before those above it."""
    if failed.start_error is not None and failed.exit_code == 127:
        name = _first_word(failed.words)
        if "/" not in name:
            found = _Found("shell", name, _PROGRAMS.get(name, name), None, failed.start_error)
            return _diagnosis(found, failed)
    for text in (failed.stderr, failed.stdout):
        if (seen := _read(text)) is not None:
            return _diagnosis(seen, failed)
    return None


def _diagnosis(found: _Found, failed: Failed) -> Diagnosis:
    return Diagnosis(
        ecosystem=found.ecosystem,
        name=found.name[:MOST_NAME],
        wanted=None if found.wanted is None else found.wanted[:MOST_NAME],
        nearest=tuple(one[:MOST_NAME] for one in found.nearest),
        evidence=found.evidence[:400],
        suggested_action=_action(found, failed),
    )


# -- what is missing --------------------------------------------------------------------------------------------------

_PROGRAM = r"(?P<name>[A-Za-z0-9._+-]{1,100})"
_VERSION = re.compile(r"[0-9][\w.+!-]{0,60}")
_Reader = Callable[[re.Match[str], str], _Found | None]


def _program(match: re.Match[str], text: str) -> _Found:
    name = match["name"]
    ecosystem: Ecosystem = "compiler" if name in _COMPILERS else "shell"
    return _Found(ecosystem, name, _PROGRAMS.get(name, name), None, _line(match, text))


def _compiler(match: re.Match[str], text: str) -> _Found:
    name = posixpath.basename(match["name"])
    short = re.sub(r"^[a-z0-9_]+-linux-gnu-", "", name)
    return _Found("compiler", name, _PROGRAMS.get(short, "build-essential"), None, _line(match, text))


def _python_module(match: re.Match[str], text: str) -> _Found:
    top = match["name"].partition(".")[0]
    return _Found("python", match["name"], _MODULES.get(top, top.replace("_", "-")), None, _line(match, text))


def _node_module(match: re.Match[str], text: str) -> _Found | None:
    name = match["name"]
    if name.startswith((".", "/", "node:", "file:")) or "MODULE_NOT_FOUND" not in text:
        return None  # a file of the program's own is no package
    package = "/".join(name.split("/")[: 2 if name.startswith("@") else 1])
    return _Found("node", package, package, None, _line(match, text))


def _library(match: re.Match[str], text: str) -> _Found | None:
    name = match["name"]
    if ".so" not in name:
        return None
    return _Found("shared_library", name, _package_of_library(name), None, _line(match, text))


def _header(match: re.Match[str], text: str) -> _Found | None:
    name = match["name"]
    if f'#include "{name}"' in text or not name.endswith((".h", ".hpp")):
        return None  # one of the program's own
    first = name.split("/")[0]
    package = _HEADERS.get(name) or _HEADERS.get(first) or f"lib{first.removesuffix('.h').lower()}-dev"
    return _Found("header", name, package, None, _line(match, text))


def _playwright(match: re.Match[str], text: str) -> _Found | None:
    _, found, behind = match["place"].partition("/ms-playwright/")
    if not found:
        return None
    folder = behind.split("/")[0]
    if not re.fullmatch(r"[a-z_]{1,60}-\d{1,10}", folder):
        return None
    manager = "node" if "npx playwright install" in text else "python"
    return _Found("browser", re.split(r"[-_]", folder)[0], f"playwright-{manager}", folder, _line(match, text))


def _puppeteer(match: re.Match[str], text: str) -> _Found:
    return _Found("browser", match["name"].lower(), "puppeteer", match["wanted"], _line(match, text))


def _pip_version(match: re.Match[str], text: str) -> _Found:
    """What is suggested is named, and the nearest to what was wanted: nothing puts another version in its place unasked."""
    wanted = match["wanted"].strip()
    name = _distribution(wanted)
    there_are = [one for one in re.split(r",\s*", match["there"].strip()) if _VERSION.fullmatch(one)][-MOST_VERSIONS:]
    pinned = re.search(r"[=<>~!]=?\s*([0-9][\w.+!-]*)", wanted)
    near = nearest(pinned[1], there_are) if pinned else there_are[-NEAREST:]
    best = closest(pinned[1], there_are) if pinned else there_are[-1] if there_are else None
    package = name if best is None else f"{name}=={best}"
    return _Found("python_version", name, package, wanted, _line(match, text), tuple(near))


def _pip_conflict(match: re.Match[str], text: str) -> _Found:
    wanted = match["wanted"].strip()
    names = [_distribution(one) for one in re.split(r",| and ", wanted) if one.strip()]
    return _Found("python_version", names[0], " ".join(dict.fromkeys(names)), wanted, _line(match, text))


def _python_requires(match: re.Match[str], text: str) -> _Found:
    wanted = match["wanted"].strip()
    return _Found("python_version", _distribution(wanted), "".join(wanted.split()), wanted, _line(match, text))


def _npm_version(match: re.Match[str], text: str) -> _Found:
    name, wanted = _npm_name(match["name"].rstrip("."))
    return _Found("node_version", name, f"{name}@latest", wanted, _line(match, text))


def _npm_conflict(match: re.Match[str], text: str) -> _Found | None:
    if "ERESOLVE" not in text:
        return None
    name, wanted = _npm_name(match["name"])
    return _Found("node_version", name, "", wanted, match[0].rpartition("\n")[2])


class _Known(NamedTuple):
    """A message: a part of it that is always there, and how it is read."""

    part: str
    pattern: re.Pattern[str]
    read: _Reader


def _known(part: str, pattern: str, read: _Reader) -> _Known:
    """Every quantifier has a bound: the text is of a program's making, and reading it may not take long."""
    return _Known(part, re.compile(pattern, re.MULTILINE), read)


_MESSAGES: tuple[_Known, ...] = (
    _known("command not found", rf": line \d{{1,9}}: {_PROGRAM}: command not found$", _program),
    _known(": not found", rf"^(?:/bin/)?(?:da)?sh: (?:\d{{1,9}}: )?{_PROGRAM}: not found$", _program),
    _known("env: ", rf"^(?:/usr/bin/)?env: [‘']{_PROGRAM}[’']: No such file or directory$", _program),
    _known("make: ", rf"^make: {_PROGRAM}: No such file or directory$", _program),
    _known("failed: No such", r"error: command '(?P<name>[^'\n]{1,300})' failed: No such file or", _compiler),
    _known("unable to execute", r"unable to execute '(?P<name>[^'\n]{1,300})': No such file or", _compiler),
    _known("error: linker `", r"error: linker `(?P<name>[^`\n]{1,300})` not found", _compiler),
    _known("gyp ERR!", r"not found: (?P<name>make|cc|gcc|g\+\+)$", _compiler),
    _known("ModuleNotFoundError", r"ModuleNotFoundError: No module named '(?P<name>[\w.]{1,200})'", _python_module),
    _known(": No module named ", r": No module named (?P<name>[\w.]{1,200})$", _python_module),
    _known("Cannot find ", r"Cannot find (?:module|package) '(?P<name>[^'\s]{1,300})'", _node_module),
    _known("cannot open shared object", r"(?P<name>lib[\w.+-]{1,120}): cannot open shared object file", _library),
    _known("fatal error: ", r"fatal error: (?P<name>[\w./+-]{1,200}): No such file or directory$", _header),
    _known("Executable doesn't exist", r"Executable doesn't exist at (?P<place>\S{1,500})", _playwright),
    _known("(ver. ", r"Could not find (?P<name>Chrome|Firefox) \(ver\. (?P<wanted>[\d.]{1,40})\)", _puppeteer),
    _known(
        "(from versions: ",
        r"satisfies the requirement (?P<wanted>[^\n(]{1,200}?) ?\(from versions: (?P<there>[^)\n]{0,20000})",
        _pip_version,
    ),
    _known(
        "conflicting dependencies",
        r"Cannot install (?P<wanted>[^\n]{1,300}?) because these package versions have conflicting dependencies",
        _pip_conflict,
    ),
    _known(
        "VersionConflict: ",
        r"VersionConflict: \([^\n]{0,400}?Requirement\.parse\('(?P<wanted>[^'\n]{1,200})'\)",
        _python_requires,
    ),
    _known(
        "DistributionNotFound", r"DistributionNotFound: The '(?P<wanted>[^'\n]{1,200})' distribution", _python_requires
    ),
    _known("No matching version", r"No matching version found for (?P<name>\S{1,200})$", _npm_version),
    _known(
        "Could not resolve dependency",
        r"Could not resolve dependency:\n[^\n]{0,40}?peer (?P<name>\S{1,200})",
        _npm_conflict,
    ),
)


_PACKAGE = re.compile(r"(@[a-z0-9][\w.-]*/)?[A-Za-z0-9][\w.+<>=!~^*,-]*(@[\w.^~*-]+)?")
"""What may stand in a suggested command: no option, address or path, whatever the program printed."""


def _read(text: str) -> _Found | None:
    """The last thing that the text says is missing."""
    best: tuple[int, _Found] | None = None
    for part, pattern, read in _MESSAGES:
        if part not in text:
            continue
        for match in pattern.finditer(text):
            if best is not None and match.start() < best[0]:
                continue
            found = read(match, text)
            if found is not None and all(_PACKAGE.fullmatch(word) for word in found.package.split()):
                best = match.start(), found
    return None if best is None else best[1]


def _line(match: re.Match[str], text: str) -> str:
    """The one that the match ends in."""
    start = text.rfind("\n", 0, match.end()) + 1
    end = text.find("\n", match.end())
    return text[start : None if end < 0 else end].strip()


def _distribution(requirement: str) -> str:
    return re.split(r"[<>=!~\[; ]", requirement.strip(), maxsplit=1)[0]


def _npm_name(text: str) -> tuple[str, str | None]:
    """`name@version` in its two parts; a scope begins with the same sign."""
    name, at, wanted = text.rpartition("@")
    return (name, wanted.strip('"') or None) if at and name else (text, None)


def _package_of_library(name: str) -> str:
    """As Debian names it: `libpq.so.5` is in libpq5, and after a digit there is a hyphen."""
    if (known := _LIBRARIES.get(name.partition(".so")[0])) is not None:
        return known
    base, _, version = name.partition(".so.")
    base = base.removesuffix(".so").lower().replace("_", "-")
    major = version.split(".")[0]
    return f"{base}-{major}" if base[-1:].isdigit() and major else f"{base}{major}"


_COMPILERS = frozenset({"cc", "gcc", "g++", "c++", "clang", "make", "cmake", "rustc", "cargo", "go", "gfortran"})
_PROGRAMS = {
    **dict.fromkeys(("cc", "gcc", "g++", "c++", "make"), "build-essential"),
    "rustc": "rustc",
    "cargo": "cargo",
    "go": "golang-go",
    "cmake": "cmake",
    "clang": "clang",
    "gfortran": "gfortran",
    "pip": "python3-pip",
    "pip3": "python3-pip",
    "python": "python-is-python3",
    "node": "nodejs",
    "pg_config": "libpq-dev",
    "psql": "postgresql-client",
    "convert": "imagemagick",
    "pdftotext": "poppler-utils",
    "rg": "ripgrep",
    "fd": "fd-find",
    "ssh": "openssh-client",
    "ifconfig": "net-tools",
    "ping": "iputils-ping",
    "dig": "bind9-dnsutils",
    "java": "default-jre",
    "javac": "default-jdk",
}
"""Package of the distribution, where it is not called like the program."""
_BY_PIP = frozenset(
    {"black", "flask", "gunicorn", "hypercorn", "mypy", "nox", "poetry", "pytest", "ruff", "tox", "uv", "uvicorn"}
)
_BY_NPM = {
    **{one: one for one in ("eslint", "jest", "mocha", "next", "prettier", "rollup", "vite", "vitest", "webpack")},
    "tsc": "typescript",
    "tsx": "tsx",
    "pnpm": "pnpm",
    "yarn": "yarn",
    "ng": "@angular/cli",
}
"""Programs that packages of these managers bring along."""
_MODULES = {
    "Crypto": "pycryptodome",
    "PIL": "pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "fitz": "pymupdf",
    "git": "gitpython",
    "jwt": "pyjwt",
    "magic": "python-magic",
    "pptx": "python-pptx",
    "psycopg2": "psycopg2-binary",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Package of a module that is called otherwise."""
_LIBRARIES = {
    "libGL": "libgl1",
    "libasound": "libasound2",
    "libatk-1.0": "libatk1.0-0",
    "libatk-bridge-2.0": "libatk-bridge2.0-0",
    "libgbm": "libgbm1",
    "libglib-2.0": "libglib2.0-0",
    "libgobject-2.0": "libglib2.0-0",
    "libgthread-2.0": "libglib2.0-0",
    "libnss3": "libnss3",
    "libnspr4": "libnspr4",
    "libpython3": "libpython3-dev",
}
_HEADERS = {
    "Python.h": "python3-dev",
    "zlib.h": "zlib1g-dev",
    "ffi.h": "libffi-dev",
    "openssl": "libssl-dev",
    "libpq-fe.h": "libpq-dev",
    "libxml": "libxml2-dev",
    "libxslt": "libxslt1-dev",
    "jpeglib.h": "libjpeg-dev",
    "png.h": "libpng-dev",
    "sqlite3.h": "libsqlite3-dev",
    "curl": "libcurl4-openssl-dev",
    "bzlib.h": "libbz2-dev",
    "lzma.h": "liblzma-dev",
    "readline": "libreadline-dev",
    "ncurses.h": "libncurses-dev",
    "mysql.h": "default-libmysqlclient-dev",
    "yaml.h": "libyaml-dev",
    "stdio.h": "libc6-dev",
    "stdlib.h": "libc6-dev",
}


# -- what may help ----------------------------------------------------------------------------------------------------

_FETCHES = "it takes a network profile that reaches registries, as `packages`"


def _action(found: _Found, failed: Failed) -> SuggestedAction:
    if found.ecosystem == "browser":
        return _browser(found)
    if found.ecosystem in ("python", "python_version") and found.package != "pip":
        return _pip(found.package.split(), failed, again=found.ecosystem == "python_version")
    if found.ecosystem == "node":
        return _run(["npm", "install", found.package], f"installs it in the directory; {_FETCHES}")
    if found.ecosystem == "node_version":
        words = ["npm", "install", found.package] if found.package else ["npm", "install", "--legacy-peer-deps"]
        return _run(words, f"takes versions that are there; {_FETCHES}")
    if found.name in _BY_PIP:
        return _pip([found.name], failed, again=False)
    if found.name in _BY_NPM:
        words = ["npm", "install", "--global", "--prefix", "/home/user/.local", _BY_NPM[found.name]]
        return _run(words, f"installs it for this user; {_FETCHES}")
    package = _PROGRAMS["pip"] if found.package == "pip" else found.package  # which pip cannot install itself
    if failed.profile != "computer":
        action = next_action(
            "sandbox.promote", f"gives it a system of its own, where root can `apt-get install {package}`"
        )
        return SuggestedAction(op=action["op"], args={"to": "computer"}, effect=action["effect"])
    shown = shlex.quote(package)
    words = ["sh", "-c", f"apt-get update && apt-get install --yes {shown}"]
    return _run(words, f"installs it into the system; {_FETCHES}", user="root")


def _browser(found: _Found) -> SuggestedAction:
    if found.package == "puppeteer":
        return _run(
            ["npx", "puppeteer", "browsers", "install", f"{found.name}@{found.wanted}"], f"fetches it; {_FETCHES}"
        )
    words = ["npx"] if found.package.endswith("node") else ["python3", "-m"]
    return _run([*words, "playwright", "install", found.name], f"fetches it; {_FETCHES}")


def _pip(packages: list[str], failed: Failed, *, again: bool) -> SuggestedAction:
    """With the very Python that missed it, where the command names one."""
    python = next((word for word in _words(failed.words) if re.search(r"(^|/)python[\d.]*$", word)), "python3")
    if (at := re.search(r"(\S*/)(?:pip|pytest)[\d.]*$", _first_word(failed.words))) is not None:
        python = f"{at[1]}python"
    effect = "takes versions that are there and fit together" if again else "installs it"
    return _run([python, "-m", "pip", "install", *packages], f"{effect}; {_FETCHES}")


def _run(words: list[str], effect: str, *, user: str = "user") -> SuggestedAction:
    args: dict[str, str | list[str]] = {"command": words}
    if user != "user":
        args["user"] = user
    return SuggestedAction(op="run_command", args=args, effect=effect)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _first_word(text: str) -> str:
    return next(iter(_words(text)), "")
