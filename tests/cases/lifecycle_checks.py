"""Checks of the lifecycle cases: time limits, clients that go away, bursts of creating and ending, owners beside each other."""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from coldframe.client.api import Coldframe
from coldframe.client.models import SnapshotInfo
from coldframe.client.sandbox import Sandbox
from coldframe.contract.errors import ColdframeError, NotFound, PauseKindUnsupported, WrongState
from coldframe.contract.sandbox import SandboxSpec
from tests.cases.checks import Lab, check
from tests.installation import CHECKOUT, Installation, wait_until

BURST = 50
AT_ONCE = 10
"""How many of the burst are under way at a time: as many as one client opens connections for without waiting."""

CLIENT = """
import asyncio, sys
from coldframe.client.api import Coldframe
from coldframe.contract.sandbox import SandboxSpec

async def main():
    async with Coldframe() as client:
        spec = SandboxSpec(agent_id=sys.argv[1], idle_timeout_s=1, on_timeout="terminate")
        sandbox = await client.sandboxes.create(spec=spec)
        print(sandbox.id, flush=True)
        await sandbox.run_command("echo begun > begun; sleep 3600", timeout_s=3)

asyncio.run(main())
"""
HANDSHAKE = """
import socket, ssl, threading
server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
server.load_cert_chain("certificate", "key")
listener = socket.create_server(("127.0.0.1", 0))

def serve():
    with server.wrap_socket(listener.accept()[0], server_side=True) as peer:
        peer.send(b"trusted")

threading.Thread(target=serve, daemon=True).start()
client = ssl.create_default_context(cafile="certificate")
with client.wrap_socket(socket.create_connection(listener.getsockname()), server_hostname="localhost") as peer:
    print(peer.recv(100).decode())
"""


@check("B091")
async def state_after_every_resume(lab: Lab) -> None:
    bench = await lab.bench()
    sandbox = lab.sandbox_of(bench)
    for number in range(1, 5):
        await bench.run(
            f"echo {number} > f{number}.txt; echo {number} >> log.txt; rm -f f{number - 1}.txt; chmod 755 f{number}.txt"
        )
        await pause(sandbox)
        await (await lab.adopt(sandbox.id)).resume()
        found = {one.name: one for one in (await sandbox.list_directory()).entries if one.name.endswith(".txt")}
        assert set(found) == {f"f{number}.txt", "log.txt"}, found
        assert found[f"f{number}.txt"].mode & 0o777 == 0o755
        assert (await sandbox.read_file("log.txt")).content == "".join(f"{one}\n" for one in range(1, number + 1))


@check("B093")
async def a_command_sent_to_a_paused_sandbox(lab: Lab) -> None:
    sandbox = lab.sandbox_of(await lab.bench())
    await pause(sandbox)
    refused = await asyncio.gather(*(sandbox.run_command("echo x") for _ in range(10)), return_exceptions=True)
    for error in refused:
        assert isinstance(error, WrongState), error
        assert error.facts["state"] in ("paused", "stopped")
        action = error.next_actions[0]
        assert action["op"] in ("sandbox.resume", "sandbox.start") and action["args"] == {"sandbox_id": sandbox.id}
    await sandbox.resume()
    assert (await sandbox.run_command("echo x")).stdout == "x\n"
    # What resumes a sandbox by itself is a word of the E2B protocol: tests/e2b/test_control.py.


@check("B097")
async def the_clock_after_a_resume(lab: Lab) -> None:
    bench = await lab.bench()
    sandbox = lab.sandbox_of(bench)
    await pause(sandbox)
    begun = time.time()
    certificate, key = issue()
    await until(lambda: has_passed(begun + 1))
    await sandbox.resume()
    assert abs(float((await bench.run("date +%s.%N")).out) - time.time()) < 1
    for name, content in (("certificate", certificate), ("key", key), ("handshake.py", HANDSHAKE.encode())):
        await sandbox.write_file(name, content)
    assert (await bench.run("python3 handshake.py")).out == "trusted\n"


async def pause(sandbox: Sandbox) -> None:
    """With its memory if this user has what that takes, else without."""
    try:
        await sandbox.pause()
    except PauseKindUnsupported:
        await sandbox.pause("files")


async def has_passed(moment: float) -> bool:
    return time.time() > moment


def issue() -> tuple[bytes, bytes]:
    """A certificate of now for `localhost`, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    secret = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(encoding), secret


@check("B109")
async def records_after_a_restore(lab: Lab) -> None:
    bench = await lab.bench()
    ran = await bench.run("echo kept; exit 7")
    sandbox = lab.sandbox_of(bench)
    taken = await sandbox.take_snapshot()
    async with Coldframe(lab.installation.url, lab.installation.token) as client:
        fork = await client.sandboxes.create(
            spec=SandboxSpec(background=True, snapshot=taken.snapshot_id, on_missing="degrade")
        )
        again = await fork.run_command("echo restored; exit 8")
        await fork.terminate(discard=True)
        await lab.end(bench)
        for one, command_id, printed, code in (
            (sandbox, ran.value["command_id"], b"kept\n", 7),
            (fork, again.command_id, b"restored\n", 8),
        ):
            command = await one.command(command_id)
            assert command.result is not None and command.result.exit_code == code, command
            assert command.result.started_at is not None
            assert (await one.output(command_id)).data == printed
        with pytest.raises(NotFound) as missing:
            await client.sandboxes.create(spec=SandboxSpec(background=True, template="not-there"))
        assert "template" in missing.value.message
        await client.snapshots.remove(taken.snapshot_id)


@check("B095")
async def three_limits_with_three_names(lab: Lab) -> None:
    bench = await lab.bench()
    sandbox = lab.sandbox_of(bench)
    running = await bench.call("run_command", command=["sleep", "3600.095"], background=True)

    limited = await bench.run("sleep 3600.096", timeout_s=1)
    assert limited.error is None and limited.timed_out, limited
    assert (limited.value["limit"]["kind"], limited.value["ended"]) == ("wall", "timed_out")
    assert await bench.processes("3600.096") == 0

    installation = lab.installation
    async with Coldframe(installation.url, installation.token, timeout_s=1) as hasty:
        try:
            await Sandbox(hasty._transport, sandbox.info).run_command(
                "until test -f go; do sleep 0.05; done; echo late; exit 5", timeout_s=120
            )
        except ColdframeError as error:
            assert error.code == "HOST_UNREACHABLE", error
        else:
            raise AssertionError("the request had a limit of 1 s and was answered")
    await until(lambda: is_listed(sandbox, "test -f go"))
    (command,) = [one for one in await sandbox.commands() if "test -f go" in one.command_line]
    assert command.state == "running", command
    await bench.call("write_file", path="go", content="")
    await until(lambda: ended(sandbox, command.command_id))
    result = (await sandbox.command(command.command_id)).result
    assert result is not None and (result.exit_code, result.timed_out) == (5, False)
    assert (await sandbox.output(command.command_id)).data == b"late\n"

    still = await sandbox.command(running["command_id"])
    assert still.state == "running", "a background command without a limit of its own goes on"
    await sandbox.signal(running["command_id"], cancel=True)


@check("B101")
async def limits_live_in_the_server(lab: Lab) -> None:
    """Of a command, and of the sandbox itself."""
    installation = lab.installation
    environment = {
        **installation.environment,
        "COLDFRAME_URL": installation.url,
        "COLDFRAME_TOKEN": installation.token,
    }
    agent_id = lab.agent("gone")
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, agent_id, cwd=CHECKOUT, env=environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert client.stdout is not None
        sandbox = await lab.adopt((await client.stdout.readline()).decode().strip())
        await until(lambda: has_file(sandbox, "begun"))
    finally:
        client.kill()
        await client.wait()
    (command,) = [one for one in await sandbox.commands() if "sleep 3600" in one.command_line]
    await until(lambda: ended(sandbox, command.command_id))
    result = (await sandbox.command(command.command_id)).result
    assert result is not None and result.timed_out

    async def is_over() -> bool:
        return (await sandbox.refresh()).state.state == "terminated"

    await until(is_over)
    mark = os.path.join(installation.data_dir, "boxes", sandbox.id, "keeper.json")
    await until(lambda: is_missing(mark))


async def is_missing(path: str) -> bool:
    return not os.path.exists(path)


@check("B103")
async def a_burst_of_creating_and_ending_leaves_nothing(lab: Lab) -> None:
    installation = lab.installation
    names = [lab.agent(f"burst-{number}") for number in range(BURST)]
    server = server_pid(installation)

    def held() -> tuple[int, int]:
        return len(os.listdir(f"/proc/{server}/fd")), len(installation.processes())

    gate = asyncio.Semaphore(AT_ONCE)
    async with Coldframe(installation.url, installation.token) as client:

        async def create_and_end(name: str) -> str:
            async with gate:
                sandbox = await client.sandboxes.create(spec=SandboxSpec(agent_id=name, track_files=False))
                assert (await sandbox.run_command("echo first")).stdout == "first\n"
                await asyncio.gather(sandbox.terminate(), sandbox.terminate())
                await sandbox.terminate()
                return (await sandbox.refresh()).state.state

        async def burst() -> None:
            assert set(await asyncio.gather(*map(create_and_end, names))) == {"terminated"}
            listed = await client.sandboxes.list()
            assert [
                one.id for one in listed if one.info.agent_id in names and one.info.state.state != "terminated"
            ] == []

        await burst()
        before = held()  # the first burst has filled what is kept for later: connections, the zygote
        await burst()

    def as_before() -> bool:
        descriptors, processes = held()
        # One more: the keeper that waits for the next order may just have been taken when the first look was.
        return descriptors < before[0] + BURST // 2 and processes <= before[1] + 1

    await asyncio.to_thread(wait_until, as_before, f"descriptors and processes are as before, {before}", timeout_s=60)


def server_pid(installation: Installation) -> int:
    """The process with the database open: `coldframe up` is its parent."""
    for pid in installation.processes():
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if b"\0server" in file.read():
                    return pid
        except OSError:
            continue
    raise AssertionError("no server process")


@check("B105")
async def clearing_away_ends_at_the_owner(lab: Lab) -> None:
    mine = [await lab.bench() for _ in range(3)]
    other = Installation()
    try:
        await asyncio.to_thread(other.start)
        async with Coldframe(other.url, other.token) as client:
            theirs = [await client.sandboxes.create(agent_id=f"theirs-{number}") for number in range(3)]
        await asyncio.to_thread(other.end_sandboxes)
        for bench in mine:
            assert (await bench.run("echo here")).out == "here\n"
        async with Coldframe(other.url, other.token) as client:
            states = [(await client.sandboxes.get(one.id)).info.state.state for one in theirs]
            assert states == ["terminated"] * 3
        await asyncio.to_thread(other.stop)
        await asyncio.to_thread(other.start)
        for bench in mine:
            assert (await bench.run("echo here")).out == "here\n"
    finally:
        left = await asyncio.to_thread(other.close)
    assert left == []


@check("B107")
async def what_is_asked_straight_after_creating_works(lab: Lab) -> None:
    async with Coldframe(lab.installation.url, lab.installation.token) as client:
        for bench in await asyncio.gather(*(lab.bench() for _ in range(3))):
            sandbox = lab.sandbox_of(bench)
            taken = await straight_after(sandbox)
            spec = SandboxSpec(background=True, snapshot=taken.snapshot_id, on_missing="degrade")
            fork = await client.sandboxes.create(spec=spec)
            again = await straight_after(fork)
            await fork.terminate(discard=True)
            for one in (again, taken):
                await client.snapshots.remove(one.snapshot_id)


async def straight_after(sandbox: Sandbox) -> SnapshotInfo:
    """Everything at once; a snapshot is refused by a typed error where this user can hold nothing still that runs."""
    taking = asyncio.ensure_future(sandbox.take_snapshot())
    written, ran = await asyncio.gather(sandbox.write_file("f", "x"), sandbox.run_command("echo ready"))
    assert (written.bytes_written, ran.stdout) == (1, "ready\n")
    try:
        return await taking
    except WrongState:
        assert "memory" not in (await sandbox.report()).pause_kinds
    return await sandbox.take_snapshot()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110  asks the server, which tells nobody by itself
            await asyncio.sleep(0.02)


async def ended(sandbox: Sandbox, command_id: str) -> bool:
    return (await sandbox.command(command_id)).state == "ended"


async def has_file(sandbox: Sandbox, path: str) -> bool:
    return any(entry.name == path for entry in (await sandbox.list_directory()).entries)


async def is_listed(sandbox: Sandbox, text: str) -> bool:
    return any(text in command.command_line for command in await sandbox.commands())
