"""Host as the unprivileged server has it: the daemon for what needs rights, keepers directly for the rest.

A command or file request goes straight to the keeper's socket; the daemon is not on that path, so it
may be restarted while commands run. The history of a workspace is written through a descriptor that the
daemon hands over once.
"""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial
from typing import Any

from coldframe.contract.command import CommandEvent, Contact, EndedWith
from coldframe.contract.errors import HostUnreachable
from coldframe.contract.files import AtStake, ListTemporary, LookAtStake, TemporaryPaths
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.network import NetworkAccess, NetworkAnswer, NetworkNews, NetworkPage, NetworkQuestion
from coldframe.contract.policy import Label
from coldframe.contract.pool import PoolStatus
from coldframe.contract.ports import Box, BoxLife, BoxStatus
from coldframe.contract.sandbox import SandboxSpec
from coldframe.contract.volume import VolumeAttachment
from coldframe.host.box import KeeperBox, parse_event
from coldframe.host.history_files import HistoryFiles
from coldframe.host.link import DAEMON_SOCKET_NAME, Link, LinkLost
from coldframe.host.remote_snapshots import RemoteSnapshots
from coldframe.host.remote_templates import RemoteTemplates
from coldframe.host.remote_volumes import RemoteVolumes
from coldframe.host.successor import is_coming


class RemoteHost:
    """Implements Host over the daemon of the installation at *data_dir*."""

    def __init__(self, data_dir: str) -> None:
        self._data = os.path.abspath(data_dir)
        directory = os.path.join(self._data, "host")
        self._link = Link(directory, socket_name=DAEMON_SOCKET_NAME, is_coming=partial(is_coming, directory))
        self._boxes: dict[str, KeeperBox] = {}
        self._connecting: set[asyncio.Future[None]] = set()
        """To new boxes, ahead of their first command."""
        self.snapshots = RemoteSnapshots(self._link)
        self.templates = RemoteTemplates(self._link)
        self.volumes = RemoteVolumes(self._link)
        self._histories = HistoryFiles(os.path.join(self._data, "host"), DAEMON_SOCKET_NAME)

    async def _ask(self, verb: str, body: bytes = b"", **fields: Any) -> dict[str, Any]:
        return (await self._request(verb, fields, body))[0]

    async def _ask_report(self, verb: str, **fields: Any) -> IsolationReport:
        return IsolationReport.model_validate_json((await self._request(verb, fields))[1])

    async def _request(self, verb: str, fields: dict[str, Any], body: bytes = b"") -> tuple[dict[str, Any], bytes]:
        try:
            return await self._link.request({"verb": verb, **fields}, body)
        except LinkLost as error:
            raise _unreachable() from error

    async def ping(self) -> dict[str, Any]:
        """Installation id and process id of the daemon, and whether it gives new workspaces disks of their own."""
        return await self._ask("ping")

    async def create(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        *,
        session_id: str,
        network: NetworkAccess | None = None,
        anew: bool = False,
        volumes: Sequence[VolumeAttachment] = (),
    ) -> IsolationReport:
        report = await self._ask_report(
            "create",
            sandbox_id=sandbox_id,
            spec=spec.model_dump(mode="json"),
            session_id=session_id,
            network=None if network is None else network.model_dump(mode="json"),
            anew=anew,
            volumes=[one.model_dump(mode="json") for one in volumes],
        )
        connecting = asyncio.ensure_future((await self._box(sandbox_id)).connect())
        self._connecting.add(connecting)
        connecting.add_done_callback(self._connecting.discard)
        return report

    async def box(self, sandbox_id: str) -> Box:
        return await self._box(sandbox_id)

    async def _box(self, sandbox_id: str) -> KeeperBox:
        if sandbox_id not in self._boxes:
            self._boxes[sandbox_id] = KeeperBox(sandbox_id, os.path.join(self._data, "boxes", sandbox_id))
        return self._boxes[sandbox_id]

    async def life(self, sandbox_id: str) -> BoxLife:
        return _RemoteLife(self, sandbox_id, await self._box(sandbox_id))

    async def boxes(self) -> list[BoxStatus]:
        return [BoxStatus.model_validate(item) for item in (await self._ask("boxes"))["boxes"]]

    async def stored(self, sandbox_id: str, command_id: str, *, after_seq: int = -1) -> AsyncIterator[CommandEvent]:
        return self._stored(sandbox_id, command_id, after_seq)

    async def _stored(self, sandbox_id: str, command_id: str, after_seq: int) -> AsyncIterator[CommandEvent]:
        request = {"verb": "stored", "sandbox_id": sandbox_id, "command_id": command_id, "after_seq": after_seq}
        async with self._link.connection() as connection:
            await connection.send(request)
            while True:
                head, body = await connection.receive()
                if "answer" in head:
                    break
                yield parse_event(head, body)

    async def create_workspace(self, agent_id: str) -> None:
        await self._ask("create_workspace", agent_id=agent_id)

    async def delete_workspace(self, agent_id: str) -> None:
        async with self._histories.removed(agent_id):
            await self._ask("delete_workspace", agent_id=agent_id)

    async def append_history(self, owner: str, session_id: str | None, lines: bytes) -> None:
        await self._histories.append(owner, session_id, lines)

    async def moment(self) -> str:
        return str((await self._ask("moment"))["moment"])

    async def sweep(self, *, keep_boxes: set[str], keep_sessions: set[str], since: str | None = None) -> list[str]:
        lists: dict[str, Any] = {"keep_boxes": sorted(keep_boxes), "keep_sessions": sorted(keep_sessions)}
        try:
            answer = await self._ask("sweep", **lists, since=since)
        finally:
            self._histories.drop(lambda _, session_id: session_id is not None and session_id not in keep_sessions)
        return list(answer["removed"])

    async def pool(self) -> PoolStatus:
        return PoolStatus.model_validate(await self._ask("pool"))

    async def doctor(self) -> IsolationReport:
        return await self._ask_report("doctor")

    async def use_network_rules(self, text: str) -> None:
        await self._ask("use_network_rules", text.encode())

    async def raise_taint(self, sandbox_id: str, taint: Label) -> None:
        await self._ask("raise_taint", sandbox_id=sandbox_id, taint=taint.value)

    async def renew_session(self, sandbox_id: str, taint: Label) -> None:
        await self._ask("renew_session", sandbox_id=sandbox_id, taint=taint.value)

    async def withdraw_credential(self, name: str) -> None:
        await self._ask("withdraw_credential", name=name)

    async def network_events(self) -> AsyncGenerator[NetworkQuestion | NetworkNews, None]:
        try:
            async with self._link.connection() as connection:
                await connection.send({"verb": "network_events"})
                while True:
                    head, _ = await connection.receive()
                    match head.get("event"):
                        case "question":
                            yield NetworkQuestion.model_validate(head["question"])
                        case "news":
                            yield NetworkNews.model_validate(head["news"])
                        case _:
                            break
        except LinkLost as error:
            raise _unreachable() from error

    async def answer(self, question_id: str, answer: NetworkAnswer) -> None:
        await self._ask("answer", question_id=question_id, answer=answer.model_dump(mode="json"))

    async def network_records(self, sandbox_id: str, *, after_seq: int = 0, limit: int = 1000) -> NetworkPage:
        page = await self._ask("network_records", sandbox_id=sandbox_id, after_seq=after_seq, limit=limit)
        return NetworkPage.model_validate(page)

    async def forget_stored(self, sandbox_id: str, command_ids: Sequence[str] | None = None) -> None:
        names = None if command_ids is None else list(command_ids)
        await self._ask("forget_stored", sandbox_id=sandbox_id, command_ids=names)

    async def cached_packages(self, digests: Sequence[str]) -> frozenset[str]:
        answer = await self._ask("cached_packages", digests=list(digests))
        return frozenset(map(str, answer["digests"]))

    async def forget_network_records(self, sandbox_id: str) -> None:
        await self._ask("forget_network_records", sandbox_id=sandbox_id)

    async def report(self, sandbox_id: str) -> IsolationReport:
        return await self._ask_report("report", sandbox_id=sandbox_id)

    async def pause(self, sandbox_id: str) -> None:
        await self._ask("pause", sandbox_id=sandbox_id)

    async def resume(self, sandbox_id: str) -> None:
        await self._ask("resume", sandbox_id=sandbox_id)

    async def end(self, sandbox_id: str, *, keep_workspace: bool = False) -> None:
        gone = (await self._ask("end", sandbox_id=sandbox_id, keep_workspace=keep_workspace))["gone"]
        if gone is not None:
            self._histories.drop(lambda _, session_id: session_id == gone)
        box = self._boxes.pop(sandbox_id, None)
        if box is not None:
            box.close()

    async def close(self) -> None:
        for connecting in tuple(self._connecting):
            connecting.cancel()
        self._link.close()
        self._histories.drop(lambda *_: True)
        for box in self._boxes.values():
            box.close()
        self._boxes.clear()


def _unreachable() -> HostUnreachable:
    return HostUnreachable("the host daemon does not answer", hint="start it with `coldframe up`")


class _RemoteLife:
    def __init__(self, host: RemoteHost, sandbox_id: str, box: KeeperBox) -> None:
        self._host = host
        self._sandbox_id = sandbox_id
        self._box = box

    async def report(self) -> IsolationReport:
        return await self._host.report(self._sandbox_id)

    async def contacts(self) -> list[Contact]:
        return await self._box.contacts()

    async def pause(self) -> None:
        await self._host.pause(self._sandbox_id)

    async def resume(self) -> None:
        await self._host.resume(self._sandbox_id)

    async def at_stake(self, ending: EndedWith | None = None, *, ends: bool = False) -> AtStake:
        return await self._box.ask(LookAtStake(ending=ending, ends=ends))

    async def temporary(self, most: int) -> TemporaryPaths:
        return await self._box.ask(ListTemporary(most=most))

    async def connect(self, port: int) -> socket.socket:
        return await self._box.connect_port(port)

    async def end(self, *, keep_workspace: bool = False) -> None:
        await self._host.end(self._sandbox_id, keep_workspace=keep_workspace)


def daemon_answers(data_dir: str) -> bool:
    """Whether a daemon listens for the installation at *data_dir*."""
    try:
        folder = os.open(os.path.join(data_dir, "host"), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.connect(f"/proc/self/fd/{folder}/{DAEMON_SOCKET_NAME}")
    except OSError:
        return False
    finally:
        os.close(folder)
        peer.close()
    return True
