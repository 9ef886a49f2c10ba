"""Reads the imports and calls of a source tree and names every place that breaks the drawing in docs/architecture.md.

Nothing is imported: it works on syntax trees, so lazy imports, imports under TYPE_CHECKING and broken files count too.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

MAY_IMPORT: dict[str, set[str]] = {  # house -> the other houses it may import
    "contract": set(),
    "guest": set(),
    "kernel": set(),
    "policy": {"contract"},
    "tools": {"contract"},
    "client": {"contract"},
    "adapters": {"contract", "client"},
    "host": {"contract", "policy", "guest"},
    "control": {"contract", "policy", "tools"},
    "fronts": {"contract", "control", "tools"},
    "": {"contract", "policy", "tools", "client", "host", "control", "fronts", "guest"},
    "cli": {"contract", "policy", "tools", "client", "host", "control", "fronts", "guest", ""},
}
PUBLIC_FACE = {"contract", "client"}
"""What `coldframe/__init__.py` may import: whoever writes `import coldframe` gets the client, never the server."""

IMPURE = {
    *("anyio", "asyncio", "glob", "multiprocessing", "os", "pathlib", "random", "secrets", "select", "selectors"),
    *("shutil", "signal", "socket", "sqlite3", "subprocess", "tempfile", "threading", "time", "urllib", "uuid"),
}
BOX_HOLDERS = {
    "coldframe.control.gate",
    "coldframe.control.admission",  # the gate's way in
    "coldframe.control.flights",  # the gate's calls while they run
    "coldframe.control.outputs",  # reads what is stored already
    "coldframe.control.at_rest",  # stands in for one where nothing runs, and starts nothing
    "coldframe.control.sandboxes",  # hands one out only if its sandbox runs
    "coldframe.control.declared_outputs",  # digests the files that were declared
    "coldframe.control.past_box",  # does the same for a command that was under way
    "coldframe.control.persistence",  # counts files, and reads none
    "coldframe.control.kernels",  # is handed one by the gate with each cell, to reach the kernel
    "coldframe.control.watches",  # reads what a watch noted, which a call began
    "coldframe.control.creation",  # tells one its limits before anybody may use it
}
"""Nobody else in control, the fronts or at start-up can get hold of a Box."""

STARTS_PROGRAMS = {  # file -> what it starts
    "coldframe.host.zygote_link": "the zygote",
    "coldframe.host.offered_tools": "the loader, to ask it for the libraries of a runtime",
    "coldframe.host.interpreter": "pip, for the packages of code cells, when somebody installs these",
    "coldframe.host.disk_images": "mkfs.ext4, e2fsck and resize2fs, on images that no box ever writes directly",
    "coldframe.host.isolation.bubblewrap": "bwrap",
    "coldframe.host.isolation.own_system": "processes that hold user namespaces until these are open",
    "coldframe.host.egress.life": "the egress broker",
    "coldframe.host.layers.mounts": "the place in which an ordinary user mounts layers",
    "coldframe.host.layers.mapping": "a child that holds a user namespace until it is held from outside",
    "coldframe.host.reader": "children that answer of files at rest, as their owner and without rights",
    "coldframe.host.reader_link": "the reader of files at rest",
    "coldframe.host.templates.id_range": "what builds a system of its own, as root over a range of users of its own alone",
    "coldframe.host.birth": "keepers, and commands inside the box",
    "coldframe.guest.spawn": "commands, inside the box",
    "coldframe.guest.runtimes": "`--version` of the runtimes, inside the box",
    "coldframe.guest.connection": "children that search under a deadline, inside the box",
    "coldframe.kernel.bash": "the shell of a context of code cells, inside the box",
    "coldframe.kernel.jupyter": "kernels of code cells, inside the box",
    "coldframe.kernel.nursery": "itself, to become kernels of Python, inside the box",
    "coldframe.assembly": "the host daemon beside the server",
}
STARTERS = {
    *("fork", "forkpty", "posix_spawn", "posix_spawnp", "system", "popen", "startfile"),
    *("execl", "execle", "execlp", "execlpe", "execv", "execve", "execvp", "execvpe"),
    *("spawnl", "spawnle", "spawnlp", "spawnlpe", "spawnv", "spawnve", "spawnvp", "spawnvpe"),
    *("create_subprocess_exec", "create_subprocess_shell"),
    "Row",
}
STARTER_MODULES = {"subprocess", "multiprocessing", "pty"}
STARTER_ROOTS = {"os", "asyncio", "posix", "rows"}
VAGUE = {"util", "utils", "helper", "helpers", "manager", "base", "common", "misc", "impl"}


@dataclass(frozen=True)
class SourceFile:
    """One file of the package: dotted name, house, syntax tree and every absolute dotted name it imports."""

    name: str
    house: str
    is_package: bool
    tree: ast.Module
    imports: frozenset[str]


def read_tree(root: Path) -> dict[str, SourceFile]:
    """All Python files below *root*, the package folder, by dotted name."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        is_package = parts[-1] == "__init__"
        if is_package:
            parts.pop()
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        package = parts if is_package else parts[:-1]
        house = parts[1] if len(parts) > 2 or (is_package and len(parts) == 2) else ""
        name = ".".join(parts)
        found[name] = SourceFile(name, house, is_package, tree, frozenset(_imports(tree, package)))
    return found


def _imports(tree: ast.Module, package: list[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *filter(None, [node.module])])
            yield stem
            yield from (f"{stem}.{alias.name}" for alias in node.names)


def _house_of(dotted: str) -> str | None:
    """House that a dotted name of ours lies in, "" for files of the root, None for foreign names."""
    parts = dotted.split(".")
    if parts[0] != "coldframe":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else ""


def offences(files: dict[str, SourceFile]) -> list[str]:
    """Every broken rule as one sentence with file and reason."""
    found: list[str] = []
    for rule in RULES:
        found += rule(files)
    return sorted(set(found))


def _upward_imports(files: dict[str, SourceFile]) -> list[str]:
    found = []
    for file in files.values():
        if file.house not in MAY_IMPORT:
            found.append(f"{file.name} lies in `{file.house}`, which is no house")
            continue
        allowed = PUBLIC_FACE if file.name == "coldframe" else MAY_IMPORT[file.house]
        for other in file.imports:
            house = _house_of(other)
            if house is None or house == file.house or house in allowed:
                continue
            if house == "" and other == "coldframe":
                continue  # the stem of `from coldframe import x`; x itself is judged
            if house == "" and other in {"coldframe.__version__"}:
                continue
            found.append(
                f"{file.name} imports {other}: {file.house or 'the public face'} may not know {house or 'root files'}"
            )
    return found


def _foreign_in_guest(files: dict[str, SourceFile]) -> list[str]:
    return [
        f"{file.name} imports {other}: the guest has the standard library and itself"
        for file in files.values()
        if file.house == "guest"
        for other in file.imports
        if other.split(".")[0] not in {*sys.stdlib_module_names, "coldframe"}
    ]


def _impure_policy(files: dict[str, SourceFile]) -> list[str]:
    found = []
    for file in files.values():
        if file.house != "policy":
            continue
        found += [
            f"{file.name} imports {other}: policy judges its arguments and nothing else"
            for other in file.imports
            if other.split(".")[0] in IMPURE
        ]
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Call) and _called(node) in {"open", "now", "utcnow", "today"}:
                found.append(
                    f"{file.name} calls {_called(node)} in line {node.lineno}: policy reads no file and no clock"
                )
    return found


def _tools_past_the_registry(files: dict[str, SourceFile]) -> list[str]:
    return [
        f"{file.name} imports {other}: a tool is reached through tools.registry alone"
        for file in files.values()
        if file.house in {"fronts", "control", ""}
        for other in file.imports
        if other.startswith("coldframe.tools.") and not other.startswith("coldframe.tools.registry")
    ]


def _second_doors(files: dict[str, SourceFile]) -> list[str]:
    found = []
    for file in files.values():
        if file.house not in {"control", "fronts", "tools", ""} or file.name in BOX_HOLDERS:
            continue
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "box":
                found.append(f"{file.name} asks for a box in line {node.lineno}: only the gate holds one")
        if file.house in {"control", "fronts"} and "coldframe.contract.ports.Box" in file.imports:
            found.append(f"{file.name} imports Box: only the gate holds one")
    return found


def starters(file: SourceFile) -> list[str]:
    """What in a file could start a program, as places."""
    found = [
        f"imports {other}"
        for other in file.imports
        if other == "coldframe.guest.rows.Row"
        or other.split(".")[0] in STARTER_MODULES
        or (other.split(".")[0] == "os" and other.split(".")[-1] in STARTERS)
    ]
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Attribute) and node.attr in STARTERS and _root_name(node) in STARTER_ROOTS:
            found.append(f"uses {node.attr} in line {node.lineno}")
    return found


def _stray_starters(files: dict[str, SourceFile]) -> list[str]:
    return [
        f"{file.name} {place}: it is not on the list of files that start programs"
        for file in files.values()
        if file.name not in STARTS_PROGRAMS
        for place in starters(file)
    ]


def _circles(files: dict[str, SourceFile]) -> list[str]:
    edges = {name: {t for o in file.imports if (t := _file_of(o, files)) and t != name} for name, file in files.items()}
    done: set[str] = set()
    found: list[str] = []

    def visit(name: str, trail: list[str]) -> None:
        if name in trail:
            found.append("circle: " + " -> ".join([*trail[trail.index(name) :], name]))
        elif name not in done:
            for other in sorted(edges[name]):
                visit(other, [*trail, name])
            done.add(name)

    for name in files:
        visit(name, [])
    return found


def _file_of(dotted: str, files: dict[str, SourceFile]) -> str | None:
    """The file that a dotted name leads to; a package only if the name is not one of its modules' stems."""
    if dotted in files and not files[dotted].is_package:
        return dotted
    parent = dotted.rpartition(".")[0]
    if dotted not in files and parent in files and files[parent].is_package:
        return parent  # a name defined in `__init__`
    return None


def _nameless(files: dict[str, SourceFile]) -> list[str]:
    found = []
    for file in files.values():
        if VAGUE & set(file.name.rsplit(".", 1)[-1].split("_")):
            found.append(f"{file.name} is named after no noun of the product")
        if file.tree.body and not ast.get_docstring(file.tree):
            found.append(f"{file.name} does not say in its first line what it is for")
    return found


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _root_name(node: ast.Attribute) -> str:
    return node.value.id if isinstance(node.value, ast.Name) else ""


RULES: tuple[Callable[[dict[str, SourceFile]], list[str]], ...] = (
    _upward_imports,
    _foreign_in_guest,
    _impure_policy,
    _tools_past_the_registry,
    _second_doors,
    _stray_starters,
    _circles,
    _nameless,
)
