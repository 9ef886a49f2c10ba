"""What is told of one sandbox: whom it reached, what it is held to, what went in and came out, and what is in it now."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal, TypeAlias

from coldframe.client import models
from coldframe.client.replies import JsonObject, read_answer, read_answers, read_object
from coldframe.client.transport import Transport, ask, ask_json, ask_stream, encode_path
from coldframe.contract.errors import from_wire

ArtifactKind: TypeAlias = Literal["source", "output", "test", "log", "screenshot", "input"]
"""Of an artifact."""


class Facts:
    """Of one sandbox."""

    _transport: Transport
    _path: str

    # Whom it reached.

    async def network_log(
        self,
        *,
        after: int = 0,
        limit: int = 100,
        outcome: Literal["allow", "ask", "deny"] | None = None,
        host: str | None = None,
        command_id: str | None = None,
        lookups: bool = False,
    ) -> models.NetworkLog:
        """At most *limit* contacts after number *after*, allowed and denied; also of a sandbox that has ended.

        *host* is a name, an address, or `*.NAME` for all names below it. Read on with `next_after` of the answer.
        *lookups*: also names that were looked up and answered; denied look-ups are there in any case.
        """
        query = {
            "after": after,
            "limit": limit,
            "outcome": outcome,
            "host": host,
            "command_id": command_id,
            "lookups": "true" if lookups else None,
        }
        return read_answer(
            models.NetworkLog, (await ask(self._transport, "GET", f"{self._path}/network", query=query)).body
        )

    async def follow_network(
        self,
        *,
        after_change: int = 0,
        outcome: Literal["allow", "ask", "deny"] | None = None,
        host: str | None = None,
        command_id: str | None = None,
        lookups: bool = False,
    ) -> AsyncGenerator[models.LoggedContact, None]:
        """Yield contacts as they come on record, and each again when more is known of it, until the sandbox has ended."""
        query = {
            "after_change": after_change,
            "outcome": outcome,
            "host": host,
            "command_id": command_id,
            "lookups": "true" if lookups else None,
        }
        stream = await ask_stream(self._transport, "GET", f"{self._path}/network/events", query=query)
        async with aclosing(stream.lines()) as lines:
            async for line in lines:
                if line.startswith(b'{"event":"error"'):
                    raise from_wire(read_object(line)["error"])
                yield read_answer(models.LoggedContact, line)

    async def contract(self, *, version: int | None = None) -> JsonObject:
        """The newest, for which the walls are measured now, or an earlier *version* as it was issued."""
        return await ask_json(self._transport, "GET", f"{self._path}/contract", query={"version": version})

    async def persistence(self) -> list[models.ItemNow]:
        """What remains when, whose it is, and how much of it there is now."""
        return read_answers(models.ItemNow, (await ask(self._transport, "GET", f"{self._path}/persistence")).body)

    async def outputs(self) -> models.DeclaredOutputs:
        """What there is of the `outputs` of the spec, each with digest, size and type, and what was made beside them."""
        return read_answer(models.DeclaredOutputs, (await ask(self._transport, "GET", f"{self._path}/outputs")).body)

    async def artifacts(self, *kinds: ArtifactKind, after: str | None = None, limit: int = 1000) -> models.ArtifactPage:
        """What the work has left, also when it has ended: files of the workspace, and what commands have printed, each with kind,
        origin and digest. *kinds* are of `source`, `output`, `test`, `log`, `screenshot`, `input`; all without."""
        query = {"kind": list(kinds), "after": after, "limit": limit}
        reply = await ask(self._transport, "GET", f"{self._path}/artifacts", query=query)
        return read_answer(models.ArtifactPage, reply.body)

    async def correct_artifact(self, name: str, kind: ArtifactKind | None) -> models.Artifact:
        """Say of what kind something is, where the rules are wrong; None takes that back. It is recorded."""
        payload = {"name": name, "kind": kind}
        reply = await ask(self._transport, "POST", f"{self._path}/artifacts/kind", payload=payload, repeatable=True)
        return read_answer(models.Artifact, reply.body)

    async def inputs(self) -> models.InputsPage:
        """What went in: each version with its source, digest, label, and the time it held."""
        return read_answer(models.InputsPage, (await ask(self._transport, "GET", f"{self._path}/inputs")).body)

    async def where(self, path: str) -> models.Whereabouts:
        """What a place inside belongs to. A relative one is of the workspace."""
        reply = await ask(self._transport, "GET", f"{self._path}/where", query={"path": path})
        return read_answer(models.Whereabouts, reply.body)

    async def report(self) -> models.IsolationReport:
        """Measure the walls now."""
        return read_answer(models.IsolationReport, (await ask(self._transport, "GET", f"{self._path}/report")).body)

    async def allowed(self) -> list[models.AllowedOperation]:
        return read_answers(models.AllowedOperation, (await ask(self._transport, "GET", f"{self._path}/allowed")).body)

    async def contacts(self) -> list[models.Contact]:
        return read_answers(models.Contact, (await ask(self._transport, "GET", f"{self._path}/contacts")).body)

    async def processes(self) -> list[models.ProcessInfo]:
        return read_answers(models.ProcessInfo, (await ask(self._transport, "GET", f"{self._path}/processes")).body)

    async def shells(self) -> list[models.ShellInfo]:
        """Shell sessions, each with the command that runs in it."""
        return read_answers(models.ShellInfo, (await ask(self._transport, "GET", f"{self._path}/shells")).body)

    async def end_shell(self, name: str) -> None:
        """Forget a shell session: the next command of that name begins anew. Raises Conflict while it runs a command."""
        await ask(self._transport, "DELETE", f"{self._path}/shells/{encode_path(name)}")

    async def ports(self) -> list[models.ProcessInfo]:
        """Processes that listen at a port."""
        return read_answers(models.ProcessInfo, (await ask(self._transport, "GET", f"{self._path}/ports")).body)

    async def runtimes(self, *, measure: bool = False) -> list[models.Runtime]:
        """Languages and managers of packages: which are there, whether they may be started, and how to get the others. With
        *measure* also the versions of those that somebody inside may have changed, by a command that starts them."""
        query = {"measure": measure or None}
        return read_answers(
            models.Runtime, (await ask(self._transport, "GET", f"{self._path}/runtimes", query=query)).body
        )

    async def packages(self, *, snapshot: str | None = None) -> models.PackageView:
        """Packages of pip, npm and apt: installed, cached, in the template, in a *snapshot* (by default the newest of its
        workspace), with size, time and command; and line by line what differs from both."""
        query = {"snapshot": snapshot}
        return read_answer(
            models.PackageView, (await ask(self._transport, "GET", f"{self._path}/packages", query=query)).body
        )

    async def credentials(self) -> list[models.HandleInfo]:
        """What commands have in place of secrets, and in which variables."""
        return read_answers(models.HandleInfo, (await ask(self._transport, "GET", f"{self._path}/credentials")).body)
