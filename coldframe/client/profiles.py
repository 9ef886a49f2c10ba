"""Profiles of a sandbox: the way to a larger one, and what whoever evaluates it or goes on with its work needs to know."""

from __future__ import annotations

from typing import Literal

from coldframe.client import models
from coldframe.client.replies import read_answer
from coldframe.client.transport import Transport, ask


class Profiled:
    """That part of one sandbox."""

    _transport: Transport
    _path: str

    async def promote(
        self,
        to: Literal["interpreter", "sandbox", "workspace", "computer"],
        *,
        agent_id: str | None = None,
        template: str | None = None,
    ) -> models.Promotion:
        """Let it go on in a larger profile: the same id, files, record, session and label. A `workspace` takes a new
        *agent_id*; a `computer` begins from *template*, `debian` where nothing is said. `lost` of the answer says what ran.

        Raises:
            DemotionRefused: there is no way back to a smaller one.
            Conflict: the agent has a workspace already. InvalidArgument: an agent is missing.
            And what starting it again raises; it is what it was then.
        """
        said = {"to": to, "agent_id": agent_id, "template": template}
        payload = {name: value for name, value in said.items() if value is not None}
        reply = await ask(self._transport, "POST", f"{self._path}/promote", payload=payload)
        return read_answer(models.Promotion, reply.body)

    async def describe(self) -> models.Description:
        """What the agent can do in it, which state remains, and how reliably people can look at the result or take it back;
        each statement with what vouches for it."""
        return read_answer(models.Description, (await ask(self._transport, "GET", f"{self._path}/description")).body)

    async def summary(self) -> models.WorkspaceSummary:
        """In at most 8 KiB what whoever goes on needs first: files, recent changes, commands that run or have failed, open
        ports, notes, essentials of the contract. Its files are read as by the tools, and the session takes their label."""
        return read_answer(models.WorkspaceSummary, (await ask(self._transport, "GET", f"{self._path}/summary")).body)

    async def overview(self) -> models.WorkspaceOverview:
        """Files, Git, activity, builds, logs, previews and deployment of its workspace, also when it has ended: each entry with its
        receipt, links, and what can be done from there. Nothing is started for it."""
        return read_answer(models.WorkspaceOverview, (await ask(self._transport, "GET", f"{self._path}/overview")).body)
