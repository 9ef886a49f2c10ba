"""The main job, watched: an agent-style client mends a real project in a real sandbox, every call judged and recorded.

Only the public surface is used: the command line to start the installation, the SDK for the rest. The project is the
source distribution of a package from the index pip is set up with, pinned by digest. Its tests need pytest, which comes
from a folder of wheels made on this machine, since its sandbox reaches no network. Another one then has the way out that
package registries are, and shows what it reached by it.

    scripts/demo                     in a new directory below /tmp; waits at the end if somebody watches, then ends all
    scripts/demo --data-dir DIR      in DIR, which is kept
    scripts/demo --keep              leaves the installation running
"""

import argparse
import asyncio
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from coldframe.client.answers import CommandAnswer
from coldframe.client.api import Coldframe
from coldframe.client.sandbox import Sandbox
from coldframe.contract.errors import ColdframeError, Refused, WrongState
from coldframe.contract.network import NetworkContact
from coldframe.contract.snapshot import SnapshotInfo

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "inflection"
VERSION = "0.5.1"
SDIST_SHA256 = "1a29730d366e996aaacffb2f1f1cb9593dc38e2ddd30c91250c6dde09ea9b417"
INSTALLED = "iniconfig"
"""A small package without dependencies, which is installed from inside."""
HOME = "/home/user"
WORK = f"integrations/{PROJECT}-{VERSION}"
MODULE = f"{WORK}/{PROJECT}/__init__.py"
GOOD = 'word = re.sub(r"_id$", "", word)'
BROKEN = 'word = re.sub(r"_ids$", "", word)'
START_S = 60.0
console = Console(highlight=False)


class DemoFailed(Exception):
    """Something was not as the demonstration says; the text tells what."""


def step(text: str) -> None:
    console.print(f"\n[bold cyan]▸[/] [bold]{text}[/]")


def told(text: str) -> None:
    console.print(f"  [green]✓[/] {text}")


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise DemoFailed(what)


# -- what comes from outside ------------------------------------------------------------------------------------------


def pip_download(folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "download",
            "--quiet",
            "--dest",
            str(folder),
            *arguments,
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    expect(done.returncode == 0, f"pip download failed:\n{done.stderr}")


def fetch_project(folder: Path) -> Path:
    """The pinned source distribution; pip refuses any other bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    pin = folder / "pinned.txt"
    pin.write_text(f"{PROJECT}=={VERSION} --hash=sha256:{SDIST_SHA256}\n", encoding="ascii")
    pip_download(folder, "--no-deps", "--no-binary", PROJECT, "--require-hashes", "--requirement", str(pin))
    (found,) = folder.glob("*.tar.gz")
    return found


def fetch_wheels(folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    pip_download(folder, "--only-binary", ":all:", "pytest")
    return sorted(folder.glob("*.whl"))


def packed(wheels: list[Path]) -> bytes:
    """One archive of the wheel folder, so that it goes over in one upload."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for wheel in wheels:
            archive.add(wheel, arcname=f"wheels/{wheel.name}")
    return buffer.getvalue()


# -- the installation -------------------------------------------------------------------------------------------------


def start_server(data_dir: str) -> "subprocess.Popen[bytes]":
    Path(data_dir, "control", "client.json").unlink(missing_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COLDFRAME_")}
    with log_of(data_dir).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "coldframe.cli", "up", "--data-dir", data_dir, "--port", "0"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the demonstration, which ends the server itself
        )


def end_server(server: "subprocess.Popen[bytes]") -> None:
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
    try:
        server.wait(30)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def log_of(data_dir: str) -> Path:
    return Path(data_dir).with_name("server.log")


@asynccontextmanager
async def installation(data_dir: str, *, keep: bool) -> AsyncIterator[tuple[Coldframe, int]]:
    """`coldframe up` as a process of its own: a client with the owner's token, and the server's pid."""
    server = await asyncio.to_thread(start_server, data_dir)
    try:
        async with await connect(server, data_dir) as client:
            yield client, server.pid
    finally:
        if not keep:
            await asyncio.to_thread(end_server, server)


async def connect(server: "subprocess.Popen[bytes]", data_dir: str) -> Coldframe:
    client_file = Path(data_dir, "control", "client.json")
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        try:
            found = json.loads(client_file.read_text(encoding="utf-8"))
            client = Coldframe(found["url"], found["token"])
            await client.health()
            return client
        except (OSError, ValueError, ColdframeError):
            await asyncio.sleep(0.05)
    raise DemoFailed(
        f"the installation did not start; its log:\n{log_of(data_dir).read_text(errors='replace')[-4000:]}"
    )


# -- the acts -----------------------------------------------------------------------------------------------------------


async def bring_in(sandbox: Sandbox, sdist: Path, wheels: list[Path]) -> None:
    step("Bring in the project and a folder of wheels")
    sent = await sandbox.upload(f"scratch/{sdist.name}", sdist.read_bytes())
    expect(sent.sha256 == SDIST_SHA256, "the digest inside differs from the pinned one")
    told(f"{sdist.name}, {sent.bytes_written:,} bytes, SHA-256 {sent.sha256[:16]}… as pinned")
    await sandbox.upload("scratch/wheels.tar", packed(wheels))
    unpack = (
        f"tar -xf scratch/{sdist.name} -C integrations && tar -xf scratch/wheels.tar -C scratch && mkdir -p scratch/deps"
        ' && for wheel in scratch/wheels/*.whl; do python3 -m zipfile -e "$wheel" scratch/deps || exit 1; done'
    )
    done = await sandbox.run_command(unpack)
    expect(done.exit_code == 0, f"unpacking failed: {done.stderr}")
    told(f"unpacked inside the sandbox; {len(wheels)} wheels for the tests, nothing fetched from inside")
    listing = await sandbox.list_directory(WORK)
    told("list_directory: " + ", ".join(entry.name for entry in listing.entries))


async def run_tests(sandbox: Sandbox) -> CommandAnswer:
    done = await sandbox.run_command(
        ["python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no"],
        cwd=WORK,
        env={"PYTHONPATH": f"{HOME}/scratch/deps"},
        timeout_s=120,
    )
    expect(done.complete and not done.timed_out, "the tests did not run to their end")
    return done


def last_line(done: CommandAnswer) -> str:
    return ((done.stdout or "").strip().splitlines() or [""])[-1]


async def mend(sandbox: Sandbox) -> None:
    step("Run its own tests")
    green = await run_tests(sandbox)
    expect(green.exit_code == 0, f"the tests were to pass:\n{green.stdout}{green.stderr}")
    told(f"exit code 0 in {green.duration_ms:.0f} ms: {last_line(green)}")

    step("Break one line with edit_file")
    broken = await sandbox.edit_file(MODULE, GOOD, BROKEN)
    told(f"{MODULE}, {broken.replacements} replacement:")
    console.print(Syntax(f"-{GOOD}\n+{BROKEN}", "diff", theme="ansi_dark"))

    step("Run again: which test fails, and why")
    red = await run_tests(sandbox)
    output = red.stdout or ""
    expect(red.exit_code == 1 and "1 failed" in output and "Error" in output, f"one test was to fail:\n{output}")
    failure = output[output.find("====") :].rstrip()
    console.print(Panel(Syntax(failure, "pytb", theme="ansi_dark", word_wrap=True), title="the failure, whole"))
    told(
        f"exit code {red.exit_code}, {red.stdout_info.bytes if red.stdout_info else 0:,} bytes, complete: {red.complete}"
    )

    step("Find the line with search_files and fix it")
    found = await sandbox.search_files('re.sub(r"_id', WORK, glob="*.py", regex=False)
    for match in found.matches:
        console.print(f"    {match.path}:{match.line}: {match.text.strip()}", markup=False)
    await sandbox.edit_file(MODULE, BROKEN, GOOD, if_version=broken.version)
    again = await run_tests(sandbox)
    expect(again.exit_code == 0, f"the tests were to pass again:\n{again.stdout}")
    told(f"green again: {last_line(again)}")


async def come_back(client: Coldframe, sandbox: Sandbox) -> None:
    step("Keep this state, ruin everything, and come back")
    kept = await take_snapshot(sandbox)
    ruined = await sandbox.run_command(["rm", "-r", "integrations", "scratch"])
    expect(ruined.exit_code == 0, f"it was to be removed: {ruined.stderr}")
    lost = await client.snapshots.compare(kept.snapshot_id, sandbox.id, limit=1000)
    expect(bool(lost.changes), "the difference was to name what is gone")
    told(f"rm -r integrations scratch: {len(lost.changes)}{' or more' if lost.next_after else ''} paths differ")
    back = await sandbox.reset(kept.snapshot_id)
    expect(not (await client.snapshots.compare(kept.snapshot_id, sandbox.id)).changes, "all was to be as before")
    again = await run_tests(sandbox)
    expect(again.exit_code == 0, f"the tests were to pass again:\n{again.stdout}")
    told(
        f"reset: nothing differs any more; what was ruined is kept for a day, too, as {back.kept.snapshot_id if back.kept else None}"
    )
    told(f"green again: {last_line(again)}")


async def take_snapshot(sandbox: Sandbox) -> SnapshotInfo:
    """While it runs, where its processes can be held still for that moment: not for an ordinary user without control groups."""
    begun = time.monotonic()
    try:
        kept = await sandbox.take_snapshot("mended")
    except WrongState as refusal:
        told(f"not while it runs: {refusal.message}; so it is stopped for it, and started again")
        await sandbox.stop()
        kept = await sandbox.take_snapshot("mended")
        await sandbox.start_again()
    told(f"{kept.snapshot_id} `{kept.name}` after {1000 * (time.monotonic() - begun):.0f} ms")
    return kept


async def overstep(sandbox: Sandbox) -> Table:
    """What an agent may not do. Each attempt is real; each answer is the product's."""
    step("Overstep, on purpose")
    table = Table("attempt", "answer", "why", title="refused on the way", title_justify="left")

    async def refused(attempt: str, call: Any) -> None:
        try:
            await call
        except Refused as error:
            table.add_row(attempt, f"[red]{error.wire_code or error.code}[/]", error.message)
        else:
            raise DemoFailed(f"{attempt} was not refused")

    await refused("run_command: sudo rm -rf /", sandbox.run_command("sudo rm -rf /"))
    await refused("write_file: ../../etc/passwd", sandbox.write_file("../../etc/passwd", "root::0:0:::\n"))
    outside = await sandbox.run_command("echo x > /etc/coldframe-was-here")
    expect(outside.exit_code != 0, "a write to /etc succeeded")
    table.add_row("run_command: echo x > /etc/…", f"exit code {outside.exit_code}", (outside.stderr or "").strip())
    dial = "import socket; socket.create_connection(('203.0.113.9', 443), timeout=5)"
    reached = await sandbox.run_command(["python3", "-c", dial])
    expect(reached.exit_code != 0, "a connection left the sandbox")
    contact = reached.contacts[0] if reached.contacts else None
    seen = (
        f"contact {contact.protocol}:{contact.address}:{contact.port} {contact.verdict}"
        if contact
        else "no contact recorded"
    )
    table.add_row(
        "run_command: connect 203.0.113.9:443", seen, ((reached.stderr or "").strip().splitlines() or [""])[-1]
    )
    console.print(table)
    return table


async def install(client: Coldframe) -> None:
    """In a sandbox of its own: one that was made without a network stays without."""
    step("Give another sandbox one way out: the package registries of this machine")
    async with await client.sandboxes.create("demo-packages", network="packages") as sandbox:
        told(f"{sandbox.id}, network profile {', '.join(sandbox.info.network or ())}")
        done = await sandbox.run_command(
            f"pip install --no-cache-dir --disable-pip-version-check --target site {INSTALLED} && PYTHONPATH=site python3 -c"
            f" 'import {INSTALLED}; print({INSTALLED}.__file__)'",
            timeout_s=120,
        )
        if done.exit_code == 0:
            told(f"pip install {INSTALLED}: exit code 0, imported from {last_line(done)}")
        else:
            reason = ((done.stderr or done.stdout or "").strip().splitlines() or ["no reason was printed"])[-1]
            console.print(f"  [yellow]![/] pip install {INSTALLED}: exit code {done.exit_code}:", end=" ")
            console.print(
                f"{reason}. `coldframe doctor` and docs/network.md say which registries can be used.", markup=False
            )
        refused = await sandbox.run_command(["curl", "-sS", "-m", "20", "https://example.com/"])
        expect(refused.exit_code != 0, "a name that is no registry was reached")
        log = Table("whom", "verdict", "rule", "what", title="whom it reached and tried to reach", title_justify="left")
        contacts = [one.contact for one in (await sandbox.network_log(limit=100)).contacts]
        for row in dict.fromkeys(row for contact in contacts for row in rows_of(contact)):
            log.add_row(*row)
        console.print(log)


def rows_of(contact: NetworkContact) -> list[tuple[str, str, str, str]]:
    """One for each request, or for the contact where none is read."""
    whom = f"{contact.name or contact.address}:{contact.port}"
    rows = []
    for request in contact.requests:
        what, package = f"{request.method} {request.path}", request.package
        if package is not None:
            what = f"{package.file or package.name} from the {package.source} {package.digest[:20]}".rstrip()
        rows.append((whom, request.outcome.value, request.rule_id, what))
    return rows or [(whom, contact.outcome.value, contact.rule_id, "")]


async def account(client: Coldframe, sandbox: Sandbox) -> None:
    step("What is on record")
    history = [json.loads(line) for line in (await sandbox.read_file(".exec_history")).data.splitlines()]
    told(f".exec_history, read-only inside: {len(history)} lines; a part of the last ones:")
    table = Table("at", "tool", "attempt", "command or path", "exit code", box=None, padding=(0, 2))
    for entry in history[-6:]:
        asked = entry.get("command") or " ".join(entry.get("argv") or ()) or str(entry.get("path") or "")
        code = entry.get("exit_code")
        table.add_row(
            str(entry.get("started_at") or entry.get("at") or "")[11:19],
            entry.get("tool"),
            entry.get("attempt"),
            Text(asked, overflow="ellipsis", no_wrap=True),
            "" if code is None else str(code),
        )
    console.print(table)
    verdict = await client.ledger.verify()
    expect(verdict.intact, f"the ledger does not verify: {verdict.faults}")
    told(
        f"ledger verified: {verdict.entries} entries, head {verdict.head_hash[:16]}…, {verdict.checkpoints} checkpoints"
    )

    step("What holds this sandbox, measured now")
    report = await sandbox.report()
    colours = {"enforced": "green", "partial": "yellow", "absent": "red"}
    walls = Table("wall", "state", "by", "evidence")
    for wall in report.properties:
        walls.add_row(wall.name, f"[{colours[wall.state]}]{wall.state}[/]", wall.mechanism, wall.evidence[:100])
    limits = Table("limit", "value", "strength", "kept by")
    for limit in report.limits:
        limits.add_row(limit.kind, f"{limit.limit:g} {limit.unit}", limit.strength, limit.enforced_by)
    console.print(walls, limits)
    for sentence in report.sentences:
        console.print(f"  [yellow]![/] {sentence}")


def look_further(data_dir: str, sandbox: Sandbox) -> None:
    command = ".venv/bin/coldframe"
    lines = [
        f"export COLDFRAME_DATA_DIR={data_dir}",
        f"{command} files ls {sandbox.id} integrations",
        f"{command} files cat {sandbox.id} {MODULE}",
        f"{command} exec {sandbox.id} -- python3 --version",
        f"{command} ledger history",
        f"{command} network search",
        f"{command} ledger verify",
        f"{command} policy show",
        f"{command} sandbox list",
    ]
    console.print("\n[bold]Look further:[/]")
    for line in lines:
        console.print(f"  {line}", soft_wrap=True)


async def perform(data_dir: str, *, keep: bool) -> None:
    downloads = Path(data_dir).with_name("downloads")
    step("Fetch the project (pinned by digest) and the wheels of its tests")
    sdist, wheels = await asyncio.gather(
        asyncio.to_thread(fetch_project, downloads / "project"), asyncio.to_thread(fetch_wheels, downloads / "wheels")
    )
    told(f"{sdist.name}; {', '.join(wheel.name.split('-')[0] for wheel in wheels)}")

    step("Start an installation and create a sandbox")
    async with installation(data_dir, keep=keep) as (client, pid):
        begun = time.monotonic()
        sandbox = await client.sandboxes.create("demo")
        told(f"{client.url}, data in {data_dir}")
        told(f"{sandbox.id} for agent `demo` after {1000 * (time.monotonic() - begun):.0f} ms")
        try:
            await bring_in(sandbox, sdist, wheels)
            await mend(sandbox)
            await come_back(client, sandbox)
            await overstep(sandbox)
            await install(client)
            await account(client, sandbox)
            console.print("\n[bold green]Done.[/] The project is mended, every call is on record.")
            look_further(data_dir, sandbox)
            await linger(pid, keep=keep)
        finally:
            if not keep:  # a sandbox outlives its server, so that somebody has to end it
                await sandbox.terminate()


async def linger(pid: int, *, keep: bool) -> None:
    if keep:
        console.print(f"The installation keeps running; end it with: kill {pid}")
    elif sys.stdin.isatty():
        console.print("These work in another terminal while this waits. [bold]Enter[/] ends the installation.")
        await asyncio.to_thread(sys.stdin.readline)
    else:
        console.print("Nobody watches, so the installation ends now; with --keep these work afterwards.")


def main() -> int:
    options = argparse.ArgumentParser(description="watch a real project being mended inside a sandbox")
    options.add_argument(
        "--data-dir", help="where the installation lives; kept afterwards (default: a new one below /tmp)"
    )
    options.add_argument("--keep", action="store_true", help="leave the installation running")
    chosen = options.parse_args()
    folder = None
    if chosen.data_dir:
        data_dir = os.path.abspath(chosen.data_dir)
        os.makedirs(os.path.dirname(data_dir), exist_ok=True)
    else:
        folder = tempfile.mkdtemp(prefix="coldframe-demo-")
        os.chmod(folder, 0o711)  # server and sandboxes run as other users when this is root
        data_dir = os.path.join(folder, "data")
    try:
        asyncio.run(perform(data_dir, keep=chosen.keep))
    except DemoFailed as failure:
        console.print(f"\nNot as it should be: {failure}", style="red", markup=False)
        return 1
    except ColdframeError as error:
        console.print(
            f"\n{error.wire_code or error.code}: {error.message}\n  {error.advice}", style="red", markup=False
        )
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if folder is not None and not chosen.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
