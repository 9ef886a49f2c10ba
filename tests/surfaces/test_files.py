"""Files of forty names go in and out by every surface, whoever put them there: content, mode and name are the same."""

import asyncio
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coldframe.client.api import Coldframe
from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import ColdframeError
from tests.installation import Installation
from tests.surfaces.conftest import Lines, Script

pytestmark = pytest.mark.req("T4.16")
NAMES = (
    *("plain.txt", "two words", " leading space", "trailing space ", "tab\tinside", "line\nbreak", "-dash", "--help"),
    *(
        "'quoted'",
        '"doubly"',
        "back\\slash",
        "back`tick",
        "$HOME",
        "$(id)",
        "a;b",
        "a&b",
        "a|b",
        "a>b",
        "*",
        "?",
        "[a]",
        "{a,b}",
    ),
    *("#hash", "!bang", "~", "~root", "100%", "%2e%2e", "a+b=c", "@at", "a:b", "a,b", "...", ".hidden"),
    *("caf\u00e9", "cafe\u0301", "日本語", "\U0001f600", "\u202eright to left", "n" * 255),
)
BINARY, READ_ONLY, EMPTY, LINK = "two words", "-dash", "...", "link to plain"
SINGLE = ("line\nbreak", "--help", "n" * 255)
"""What the command line copies one by one; the rest it does as a folder."""
Corpus = dict[str, tuple[str, int]]
"""By name: the digest and the mode."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "made"
    folder.mkdir()
    for number, name in enumerate(NAMES):
        content = bytes(range(256)) * 3 if name == BINARY else b"" if name == EMPTY else f"file {number}\n".encode()
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o444 if name == READ_ONLY else 0o644)
    (folder / LINK).symlink_to("plain.txt")
    return folder


def corpus_of(folder: Path) -> Corpus:
    return {
        path.name: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mode & 0o777)
        for path in folder.iterdir()
        if not path.is_symlink()
    }


def by_python(
    installation: Installation, script: Script, cli: Lines, sandbox: SyncSandbox, corpus: Path, into: str
) -> None:
    async def upload() -> None:
        async with Coldframe(installation.url, installation.token) as client:
            found = await client.sandboxes.get(sandbox.id)
            for name in NAMES:
                await found.upload(f"{into}/{name}", (corpus / name).read_bytes())

    asyncio.run(upload())


def by_typescript(
    installation: Installation, script: Script, cli: Lines, sandbox: SyncSandbox, corpus: Path, into: str
) -> None:
    script("upload", sandbox_id=sandbox.id, folder=str(corpus), names=NAMES, into=into)


def by_command_line(
    installation: Installation, script: Script, cli: Lines, sandbox: SyncSandbox, corpus: Path, into: str
) -> None:
    done = cli("files", "put", sandbox.id, str(corpus), into)
    assert done.returncode == 0, done.stderr.decode()
    for name in SINGLE:
        done = cli("files", "put", sandbox.id, "--", str(corpus / name), f"{into}/{name}")
        assert done.returncode == 0, done.stderr.decode()


WRITERS = {"python": by_python, "typescript": by_typescript, "command": by_command_line}


@pytest.fixture(scope="module")
def filled(installation: Installation, script: Script, cli: Lines, sandbox: SyncSandbox, corpus: Path) -> SyncSandbox:
    """Every surface has put all of it into a folder of its own; then modes and the link are as they are to be."""
    for into, put in WRITERS.items():
        put(installation, script, cli, sandbox, corpus, into)
        done = sandbox.run_command(
            f"cd {into} && chmod 644 -- * .hidden ... && chmod 444 -- {READ_ONLY} && ln -sf plain.txt '{LINK}'"
        )
        assert done.exit_code == 0, done.stderr
    return sandbox


def read_by_python(
    installation: Installation, script: Script, cli: Lines, sandbox: SyncSandbox, folder: str, tmp_path: Path
) -> dict[str, Any]:
    with SyncColdframe(installation.url, installation.token) as client:
        found = client.sandboxes.get(sandbox.id)
        listed = found.list_directory(folder)
        told: dict[str, Any] = {
            "listed": {one.name: [one.type, one.mode & 0o777, one.target] for one in listed.entries}
        }
        told["read"] = {name: hashlib.sha256(found.read_file(f"{folder}/{name}").data).hexdigest() for name in NAMES}
        told["downloaded"] = {
            name: hashlib.sha256(b"".join(found.download(f"{folder}/{name}"))).hexdigest() for name in NAMES
        }
    return told


def read_by_typescript(
    installation: Installation, script: Script, cli: Lines, sandbox: SyncSandbox, folder: str, tmp_path: Path
) -> dict[str, Any]:
    told: dict[str, Any] = script("read", sandbox_id=sandbox.id, folder=folder, names=NAMES)
    return told


def read_by_command_line(
    installation: Installation, script: Script, cli: Lines, sandbox: SyncSandbox, folder: str, tmp_path: Path
) -> dict[str, Any]:
    listed = json.loads(cli("--json", "files", "ls", sandbox.id, folder).stdout)
    entries = listed["entries"] if isinstance(listed, dict) else listed
    told: dict[str, Any] = {
        "listed": {one["name"]: [one["type"], one["mode"] & 0o777, one["target"]] for one in entries}
    }
    told["read"] = {}
    for name in SINGLE:
        shown = cli("files", "cat", sandbox.id, "--", f"{folder}/{name}")
        told["read"][name] = hashlib.sha256(shown.stdout).hexdigest()
    if sandbox.refresh().state.state == "running":
        target = tmp_path / "down"
        done = cli("files", "get", "-r", sandbox.id, folder, str(target))
        assert done.returncode == 0, done.stderr.decode()
        assert os.readlink(target / LINK) == "plain.txt"
        told["downloaded"] = {name: digest for name, (digest, _) in corpus_of(target).items()}
        told["modes"] = {name: mode for name, (_, mode) in corpus_of(target).items()}
    else:
        told["downloaded"] = {}
        for name in SINGLE:
            target = tmp_path / "one"
            assert cli("files", "get", sandbox.id, "--", f"{folder}/{name}", str(target)).returncode == 0
            told["downloaded"][name] = hashlib.sha256(target.read_bytes()).hexdigest()
    return told


READERS = (read_by_python, read_by_typescript, read_by_command_line)


def check(told: dict[str, Any], corpus: Path) -> None:
    known = corpus_of(corpus)
    assert len(known) == 40
    listed = {name: ["file", mode, None] for name, (_, mode) in known.items()}
    assert told["listed"] == {**listed, LINK: ["symlink", 0o777, "plain.txt"]}
    for operation in ("read", "downloaded"):
        assert len(told[operation]) in (len(SINGLE), 40)
        assert told[operation] == {name: known[name][0] for name in told[operation]}, operation
    assert told.get("modes") in (None, {name: mode for name, (_, mode) in known.items()})


@pytest.mark.parametrize("read", READERS, ids=lambda one: one.__name__.removeprefix("read_by_"))
def test_what_each_has_put_there_each_reads(
    installation: Installation,
    script: Script,
    cli: Lines,
    filled: SyncSandbox,
    corpus: Path,
    tmp_path: Path,
    read: Callable[[Installation, Script, Lines, SyncSandbox, str, Path], dict[str, Any]],
) -> None:
    for folder in WRITERS:
        (tmp_path / folder).mkdir()
        check(read(installation, script, cli, filled, folder, tmp_path / folder), corpus)


def test_a_role_that_only_looks_reads_by_each_and_writes_by_none(
    installation: Installation,
    script: Script,
    cli: Lines,
    client: SyncColdframe,
    filled: SyncSandbox,
    corpus: Path,
    tmp_path: Path,
) -> None:
    token, _ = client.tokens.create("viewer", "reviewer")
    known = corpus_of(corpus)
    with SyncColdframe(installation.url, token) as viewer:
        found = viewer.sandboxes.get(filled.id)
        assert {one.name for one in found.list_directory("python").entries} == {*NAMES, LINK}
        for name in NAMES:
            downloaded = b"".join(found.download(f"python/{name}"))
            assert {
                hashlib.sha256(one).hexdigest() for one in (downloaded, found.read_file(f"python/{name}").data)
            } == {known[name][0]}
        writes: dict[str, Callable[[], object]] = {
            "upload": lambda: found.upload("python/new", b""),
            "write_file": lambda: found.write_file("python/new", b""),
            "edit_file": lambda: found.edit_file("python/plain.txt", "file", "other"),
            "remove_file": lambda: found.remove_file("python/plain.txt"),
            "files.write": lambda: found.files.write("/tmp/new", b""),
            "files.make_directory": lambda: found.files.make_directory("new"),
            "files.move": lambda: found.files.move("python/plain.txt", "new"),
            "files.remove": lambda: found.files.remove("python/plain.txt"),
            "files.watch": lambda: found.files.watch(),
            "run_command": lambda: found.run_command("true"),
            "run_code": lambda: found.run_code("1"),
            "git.init": lambda: found.git.init("new"),
            "take_snapshot": lambda: found.take_snapshot(),
        }
        for name, write in writes.items():
            with pytest.raises(ColdframeError) as raised:
                write()
            assert (name, raised.value.code) == (name, "GRANT_MISSING")
    check(script("read", token=token, sandbox_id=filled.id, folder="typescript", names=NAMES), corpus)
    told = script("review", token=token, sandbox_id=filled.id, local=str(tmp_path / "local"))
    assert told == dict.fromkeys(("upload", "uploadFile", "write", "run"), "GRANT_MISSING")
    mine = ("--json", "--token", token, "files")
    listed = json.loads(cli(*mine, "ls", filled.id, "command").stdout)
    assert {one["name"] for one in (listed["entries"] if isinstance(listed, dict) else listed)} == {*NAMES, LINK}
    assert cli(*mine[1:], "cat", filled.id, "--", "command/line\nbreak").stdout == (corpus / "line\nbreak").read_bytes()
    one = tmp_path / "one"
    assert cli(*mine[1:], "get", filled.id, "--", "command/--help", str(one)).returncode == 0
    assert one.read_bytes() == (corpus / "--help").read_bytes()
    refused = cli(*mine, "put", filled.id, "-", "python/new", input=b"")
    assert (refused.returncode, json.loads(refused.stderr)["error"]["code"]) == (3, "GRANT_MISSING")
    assert {one.name for one in filled.list_directory("python").entries} == {*NAMES, LINK}


def test_all_but_writing_goes_on_where_it_is_stopped(
    installation: Installation, script: Script, cli: Lines, filled: SyncSandbox, corpus: Path, tmp_path: Path
) -> None:
    filled.stop()
    for number, read in enumerate(READERS):
        (tmp_path / str(number)).mkdir()
        check(read(installation, script, cli, filled, "typescript", tmp_path / str(number)), corpus)
