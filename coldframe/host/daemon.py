"""The privileged process of one machine: Machine behind a unix socket.

Holds the rights and decides nothing. It may be killed and started again at any time: boxes are kept by
their keepers, and everything else is on disk. Only the server's user (and root) may connect; what it
may ask is the table below and no more.
"""

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from coldframe.contract.errors import ColdframeError, Internal, InvalidArgument
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.network import NetworkAccess, NetworkAnswer, NetworkQuestion
from coldframe.contract.policy import Label
from coldframe.contract.sandbox import SandboxSpec
from coldframe.contract.volume import VolumeAttachment
from coldframe.guest.frames import MALFORMED, PREFIX, BadFrame, decode_head, encode, lengths
from coldframe.host.confine import ConfineError
from coldframe.host.daemon_snapshots import DaemonSnapshots, Pieces
from coldframe.host.daemon_templates import DaemonTemplates
from coldframe.host.daemon_volumes import DaemonVolumes
from coldframe.host.link import DAEMON_SOCKET_NAME
from coldframe.host.machine import Machine
from coldframe.host.ways_out import BROKER_UID

MOST_HEAD_BYTES = 4 * 1024 * 1024
MOST_BODY_BYTES = 64 * 1024 * 1024
"""Of one request. The process holds rights and serves every sandbox, so a caller may not make it hold much."""

_log = logging.getLogger(__name__)

Answer = dict[str, Any]
Verb = Callable[[dict[str, Any], bytes], Awaitable[Answer | IsolationReport | bytes]]
"""A report goes as the body of its frame, in its own JSON: the largest answer, and the one that a creation waits for.
Bytes are the frame itself."""


class Daemon:
    def __init__(self, machine: Machine, *, allowed_uids: set[int], program: str) -> None:
        self._machine = machine
        self._program = program
        self._allowed = allowed_uids
        self._preparing: asyncio.Task[None] | None = None
        self._verbs: dict[str, Verb] = {
            "create": self._create,
            "report": self._report,
            "end": self._end,
            "pause": self._pause,
            "resume": self._resume,
            "boxes": self._boxes,
            "create_workspace": self._create_workspace,
            "delete_workspace": self._delete_workspace,
            "moment": self._moment,
            "sweep": self._sweep,
            "doctor": self._doctor,
            "pool": self._pool,
            "use_network_rules": self._use_network_rules,
            "raise_taint": self._raise_taint,
            "renew_session": self._renew_session,
            "withdraw_credential": self._withdraw_credential,
            "answer": self._answer_question,
            "network_records": self._network_records,
            "forget_stored": self._forget_stored,
            "forget_network_records": self._forget_network_records,
            "cached_packages": self._cached_packages,
            "ping": self._ping,
        }
        self._snapshots = DaemonSnapshots(machine.snapshots)
        self._verbs.update(self._snapshots.verbs())
        self._templates = DaemonTemplates(machine.templates)
        self._verbs.update(self._templates.verbs())
        self._volumes = DaemonVolumes(machine.volumes)
        self._verbs.update(self._volumes.verbs())

    async def serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request at a time until the client leaves."""
        try:
            if not self._may_connect(writer.get_extra_info("socket")):
                return
            while True:
                head_bytes, body_bytes = lengths(await reader.readexactly(PREFIX.size))
                if head_bytes > MOST_HEAD_BYTES or body_bytes > MOST_BODY_BYTES:
                    raise BadFrame("a request over the caps of the daemon")
                head = decode_head(await reader.readexactly(head_bytes))
                body = await reader.readexactly(body_bytes)
                if head.get("verb") == "stored":
                    await self._stored(head, writer)
                elif head.get("verb") == "network_events":
                    await self._network_events(reader, writer)
                    return
                elif head.get("verb") == "ask_at_rest":
                    writer.write(await self._guarded(self._ask_at_rest, head, body))
                elif head.get("verb") == "export":
                    await self._export(head, writer)
                elif head.get("verb") == "build_template":
                    writer.write(await self._guarded(partial(self._build_template, reader, writer), head, body))
                elif head.get("verb") in ("take_in", "put_input"):
                    pieces = Pieces(reader)
                    take = self._take_in if head["verb"] == "take_in" else self._put_input
                    writer.write(await self._guarded(partial(take, pieces), head, body))
                    await writer.drain()
                    await pieces.drop_rest()
                elif head.get("verb") == "write_volume":
                    pieces = Pieces(reader)
                    writer.write(await self._guarded(partial(self._write_volume, pieces), head, body))
                    await writer.drain()
                    await pieces.drop_rest()
                elif head.get("verb") == "append_history":
                    await self._append_history(head, body, writer)
                else:
                    writer.write(await self._answer(head, body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, BadFrame):
            pass
        finally:
            writer.close()

    def _may_connect(self, peer: socket.socket) -> bool:
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        _, uid, _ = struct.unpack("3i", credentials)
        return uid in self._allowed

    async def _answer(self, head: dict[str, Any], body: bytes) -> bytes:
        verb = self._verbs.get(str(head.get("verb")))
        if verb is None:
            return encode({"error": InvalidArgument("unknown verb of the host daemon").to_wire()})
        return await self._guarded(verb, head, body)

    async def _guarded(self, verb: Verb, head: dict[str, Any], body: bytes) -> bytes:
        """The frame of the answer."""
        failure: ColdframeError
        try:
            answer = await verb(head, body)
            if isinstance(answer, bytes):
                return answer
            if isinstance(answer, IsolationReport):
                return encode({"answer": {}}, answer.model_dump_json().encode())
            return encode({"answer": answer})
        except ColdframeError as error:
            failure = error
        except MALFORMED as error:
            failure = InvalidArgument(f"malformed request: {error!r}")
        except (OSError, ConfineError) as error:
            failure = Internal(f"the host could not do it: {error}")
        except Exception as error:  # noqa: BLE001 - the edge of a request: told and logged, never silent
            _log.exception("request `%s` failed", str(head.get("verb"))[:40])
            failure = Internal(f"the host daemon failed: {type(error).__name__}")
        return encode({"error": failure.to_wire()})

    async def _ping(self, _: dict[str, Any], __: bytes) -> Answer:
        return {
            "installation": self._machine.installation,
            "pid": os.getpid(),
            "own_disks": self._machine.workspaces.own_disks,
            "program": self._program,
        }

    async def _create(self, head: dict[str, Any], _: bytes) -> IsolationReport:
        spec = SandboxSpec.model_validate(head["spec"])
        network = head.get("network")
        access = None if network is None else NetworkAccess.model_validate(network)
        return await self._machine.create(
            head["sandbox_id"],
            spec,
            session_id=head["session_id"],
            network=access,
            anew=bool(head.get("anew")),
            volumes=[VolumeAttachment.model_validate(one) for one in head.get("volumes", ())],
        )

    async def _report(self, head: dict[str, Any], _: bytes) -> IsolationReport:
        return await (await self._machine.life(head["sandbox_id"])).report()

    async def _end(self, head: dict[str, Any], _: bytes) -> Answer:
        keep_workspace = bool(head.get("keep_workspace"))
        return {"gone": await self._machine.end_box(head["sandbox_id"], keep_workspace=keep_workspace)}

    async def _pause(self, head: dict[str, Any], _: bytes) -> Answer:
        await (await self._machine.life(head["sandbox_id"])).pause()
        return {}

    async def _resume(self, head: dict[str, Any], _: bytes) -> Answer:
        await (await self._machine.life(head["sandbox_id"])).resume()
        return {}

    async def _boxes(self, _: dict[str, Any], __: bytes) -> Answer:
        return {"boxes": [status.model_dump(mode="json") for status in await self._machine.boxes()]}

    async def _create_workspace(self, head: dict[str, Any], _: bytes) -> Answer:
        await self._machine.create_workspace(head["agent_id"])
        return {}

    async def _delete_workspace(self, head: dict[str, Any], _: bytes) -> Answer:
        await self._machine.delete_workspace(head["agent_id"])
        return {}

    async def _moment(self, _: dict[str, Any], __: bytes) -> Answer:
        return {"moment": await self._machine.moment()}

    async def _sweep(self, head: dict[str, Any], _: bytes) -> Answer:
        removed = await self._machine.sweep(
            keep_boxes=set(head["keep_boxes"]), keep_sessions=set(head["keep_sessions"]), since=head["since"]
        )
        if self._preparing is None:  # not before: with this first request of its the server has come up as well
            self._preparing = asyncio.create_task(self._machine.prepare())
        return {"removed": removed}

    async def _pool(self, _: dict[str, Any], __: bytes) -> Answer:
        return (await self._machine.pool()).model_dump(mode="json")

    async def _doctor(self, _: dict[str, Any], __: bytes) -> IsolationReport:
        return await self._machine.doctor()

    async def _use_network_rules(self, _: dict[str, Any], text: bytes) -> Answer:
        await self._machine.use_network_rules(text.decode())
        return {}

    async def _raise_taint(self, head: dict[str, Any], _: bytes) -> Answer:
        await self._machine.raise_taint(head["sandbox_id"], Label(head["taint"]))
        return {}

    async def _renew_session(self, head: dict[str, Any], _: bytes) -> Answer:
        await self._machine.renew_session(head["sandbox_id"], Label(head["taint"]))
        return {}

    async def _withdraw_credential(self, head: dict[str, Any], _: bytes) -> Answer:
        await self._machine.withdraw_credential(head["name"])
        return {}

    async def _answer_question(self, head: dict[str, Any], _: bytes) -> Answer:
        await self._machine.answer(head["question_id"], NetworkAnswer.model_validate(head["answer"]))
        return {}

    async def _network_records(self, head: dict[str, Any], _: bytes) -> Answer:
        page = await self._machine.network_records(
            head["sandbox_id"], after_seq=int(head["after_seq"]), limit=int(head["limit"])
        )
        return page.model_dump(mode="json")

    async def _forget_stored(self, head: dict[str, Any], _: bytes) -> Answer:
        names = head["command_ids"]
        await self._machine.forget_stored(head["sandbox_id"], None if names is None else [str(name) for name in names])
        return {}

    async def _cached_packages(self, head: dict[str, Any], _: bytes) -> Answer:
        return {"digests": sorted(await self._machine.cached_packages([str(one) for one in head["digests"]]))}

    async def _forget_network_records(self, head: dict[str, Any], _: bytes) -> Answer:
        await self._machine.forget_network_records(head["sandbox_id"])
        return {}

    async def _network_events(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Frames of events, as they happen, until the client leaves or another one takes over; then the connection ends."""

        async def pass_on() -> None:
            async with contextlib.aclosing(self._machine.network_events()) as events:
                async for event in events:
                    kind = "question" if isinstance(event, NetworkQuestion) else "news"
                    writer.write(encode({"event": kind, kind: event.model_dump(mode="json")}))
                    await writer.drain()
            writer.write(encode({"answer": {}}))

        passing = asyncio.ensure_future(pass_on())
        leaving = asyncio.ensure_future(reader.read(1))  # nothing is said here any more: it is told to have left
        try:
            await asyncio.wait({passing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (passing, leaving):
                task.cancel()
            await asyncio.gather(passing, leaving, return_exceptions=True)

    async def _append_history(self, head: dict[str, Any], lines: bytes, writer: asyncio.StreamWriter) -> None:
        """Append, and hand over a descriptor to append more with: the server asks once per workspace, not for every call
        (but for one with a disk of its own, see there).

        Whoever holds it can write this one file and nothing else, and the server is who says what is in it.
        """
        file = None

        async def appended(_: dict[str, Any], __: bytes) -> Answer:
            nonlocal file
            home = head["owner"], head.get("session_id")
            await self._machine.append_history(*home, lines)
            file = self._machine.workspaces.history_to_keep(*home)
            return {}

        frame = await self._guarded(appended, head, lines)
        try:
            await writer.drain()
            if writer.transport.get_write_buffer_size():
                raise ConnectionError("the peer does not read")
            with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as peer:
                sent = socket.send_fds(peer, [frame], [] if file is None else [file])
            if sent != len(frame):
                raise ConnectionError("the peer does not read")
        except OSError as error:  # it does not read, or is gone
            raise ConnectionError("the answer could not be given") from error
        finally:
            if file is not None:
                os.close(file)

    async def _ask_at_rest(self, head: dict[str, Any], _: bytes) -> bytes:
        return await self._snapshots.ask(head)

    async def _take_in(self, pieces: Pieces, head: dict[str, Any], _: bytes) -> Answer:
        return await self._snapshots.take_in(head, pieces)

    async def _write_volume(self, pieces: Pieces, head: dict[str, Any], _: bytes) -> Answer:
        return await self._volumes.write(head, pieces)

    async def _put_input(self, pieces: Pieces, head: dict[str, Any], _: bytes) -> Answer:
        return await self._templates.put(head, pieces)

    async def _build_template(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: dict[str, Any], _: bytes
    ) -> bytes:
        return await self._templates.build(head, reader, writer)

    async def _export(self, head: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        async def exported(head: dict[str, Any], _: bytes) -> bytes:
            await self._snapshots.export(head, writer)
            return b""

        writer.write(await self._guarded(exported, head, b""))

    async def _stored(self, head: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Frames of events, then an empty answer."""
        try:
            events = await self._machine.stored(
                head["sandbox_id"], head["command_id"], after_seq=int(head["after_seq"])
            )
            async for event in events:
                body = getattr(event, "data", b"")
                writer.write(encode(event.model_dump(mode="json", exclude={"data"}), body))
                await writer.drain()
            writer.write(encode({"answer": {}}))
        except ColdframeError as error:
            writer.write(encode({"error": error.to_wire()}))
        except MALFORMED as error:
            writer.write(encode({"error": InvalidArgument(f"malformed request: {error!r}").to_wire()}))
        except ConnectionError:
            raise
        except OSError as error:
            writer.write(encode({"error": Internal(f"the host could not do it: {error}").to_wire()}))


def socket_path(data_dir: str) -> str:
    return os.path.join(data_dir, "host", DAEMON_SOCKET_NAME)


async def serve(
    data_dir: str,
    *,
    server_uid: int | None = None,
    own_disks: bool = False,
    broker_uid: int = BROKER_UID,
    ready_boxes: int = 0,
    program: str = "",
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until cancelled. *server_uid* is the user of the unprivileged server, if it is another one. *program* is told
    to whoever asks, who may be of a later version."""
    machine = Machine(
        data_dir, server_uid=server_uid, own_disks=own_disks, broker_uid=broker_uid, pool_size=ready_boxes
    )
    own = os.getuid()
    allowed = {0, own} | ({server_uid} if server_uid is not None else set())
    daemon = Daemon(machine, allowed_uids=allowed, program=program)
    directory = os.path.join(data_dir, "host")
    if server_uid is not None:
        os.chmod(directory, 0o711)
    path = os.path.join(directory, DAEMON_SOCKET_NAME)
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{DAEMON_SOCKET_NAME}")
    finally:
        os.close(folder)
    os.chmod(path, 0o600)
    if server_uid is not None:
        os.chown(path, server_uid, -1)
    listener.listen(64)
    server = await asyncio.start_unix_server(daemon.serve_connection, sock=listener, limit=1 << 20)
    ready()
    try:
        async with server:
            await server.serve_forever()
    finally:
        await machine.close()
