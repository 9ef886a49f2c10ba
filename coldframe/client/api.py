"""The SDK: a Coldframe installation and its sandboxes as Python objects.

    async with Coldframe() as coldframe:
        async with await coldframe.sandboxes.create(agent_id="builder") as sandbox:
            await sandbox.write_file("hello.py", "print('hello')")
            done = await sandbox.run_command("python3 hello.py")
            print(done.exit_code, done.stdout)

Whatever the server refuses is raised as the class of `coldframe.contract.errors` with its code. Calls that
change something carry an idempotency key: repeated over a broken connection, they are carried out once.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal, TypeAlias

from coldframe.client import models
from coldframe.client.builds import Builds
from coldframe.client.cells import execute_once
from coldframe.client.location import find_location
from coldframe.client.previews import Previews
from coldframe.client.replies import JsonObject, read_answer, read_answers, read_part
from coldframe.client.sandbox import Sandbox, make_key
from coldframe.client.templates import Templates
from coldframe.client.transfers import Content
from coldframe.client.transport import Transport, ask, ask_json, ask_stream, encode_path, raise_for
from coldframe.client.volumes import Volumes
from coldframe.client.webhooks import WebhookList

SandboxItems = list[Sandbox]
AgentItems: TypeAlias = "list[models.AgentInfo]"
CredentialItems: TypeAlias = "list[models.CredentialInfo]"
SnapshotItems: TypeAlias = "list[models.SnapshotInfo]"
TokenItems: TypeAlias = "list[models.TokenInfo]"


class Coldframe:
    """A client of one installation. Cheap to make; `aclose` gives its connections back."""

    def __init__(
        self, base_url: str | None = None, token: str | None = None, *, timeout_s: float | None = None
    ) -> None:
        """Connect lazily to *base_url* with *token*.

        What is left out comes from COLDFRAME_URL and COLDFRAME_TOKEN, or from the local installation's file.
        *timeout_s* is the longest silence of the server that is borne; None for any, since a command may be silent.
        """
        location = find_location(base_url, token)
        self._transport = Transport(location.url, location.token, timeout_s=timeout_s)
        self.url = location.url
        self.sandboxes = Sandboxes(self._transport)
        self.snapshots = Snapshots(self._transport)
        self.templates = Templates(self._transport)
        self.agents = Agents(self._transport)
        self.ledger = LedgerView(self._transport)
        self.lineage = LineageView(self._transport)
        self.policy = Policy(self._transport)
        self.tokens = TokenList(self._transport)
        self.credentials = Credentials(self._transport)
        self.sessions = SessionList(self._transport)
        self.network = NetworkView(self._transport)
        self.volumes = Volumes(self._transport)
        self.previews = Previews(self._transport)
        self.webhooks = WebhookList(self._transport)
        self.builds = Builds(self._transport)

    async def __aenter__(self) -> Coldframe:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def health(self) -> JsonObject:
        return await ask_json(self._transport, "GET", "/v1/health")

    async def execute_once(
        self,
        code: str,
        files: Mapping[str, bytes] | None = None,
        *,
        language: str | None = None,
        outputs: tuple[str, ...] = (),
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        template: str | None = None,
        keep: Literal["nothing", "io"] = "nothing",
        source: Mapping[str, str] | None = None,
        again: str | None = None,
    ) -> models.OnceAnswer:
        """Run *code* once, in a sandbox of its own that is gone when this returns, with *files* by name as `inputs/NAME`.

        It has no network. *outputs* are patterns of files that it makes, and that come back. With *keep* `io` these stay
        under the id of the run; *again* repeats such a run, and nothing runs if its inputs are others now (InputChanged).
        """
        return await execute_once(
            self._transport,
            code,
            files,
            language=language,
            outputs=outputs,
            timeout_s=timeout_s,
            env=env,
            template=template,
            keep=keep,
            source=source,
            again=again,
        )

    async def once(self, once_id: str) -> models.OnceRecord:
        """What is on record of a run, and which outputs were kept."""
        return read_answer(
            models.OnceRecord, (await ask(self._transport, "GET", f"/v1/once/{encode_path(once_id)}")).body
        )

    async def once_output(self, once_id: str, path: str) -> bytes:
        """One output that was kept."""
        place = f"/v1/once/{encode_path(once_id)}/outputs/{encode_path(path)}"
        return (await ask(self._transport, "GET", place)).body

    async def forget_once(self, once_id: str) -> None:
        """Remove the outputs that were kept."""
        await ask(self._transport, "DELETE", f"/v1/once/{encode_path(once_id)}")

    async def tools(self) -> list[models.ToolInfo]:
        return read_answers(models.ToolInfo, (await ask(self._transport, "GET", "/v1/tools")).body)

    async def receipt(self, receipt_id: str) -> JsonObject:
        """What one call really did, with digests to check it by."""
        return await ask_json(self._transport, "GET", f"/v1/receipts/{encode_path(receipt_id)}")

    async def compare_receipts(self, before: str, after: str) -> models.ReceiptDifference:
        """Files that are others after the call of *after* than they were after that of *before*, two receipts of one sandbox."""
        path = f"/v1/receipts/{encode_path(before)}/diff/{encode_path(after)}"
        return read_answer(models.ReceiptDifference, (await ask(self._transport, "GET", path)).body)

    async def compare_receipts_file(self, before: str, after: str, path: str) -> models.FileHunks:
        """One of these files hunk by hunk, where what it held is still kept: `unavailable` says where it is not.

        Raises:
            FileMissing: it does not differ.
        """
        place = f"/v1/receipts/{encode_path(before)}/hunks/{encode_path(after)}"
        reply = await ask(self._transport, "GET", place, query={"path": path})
        return read_answer(models.FileHunks, reply.body)

    async def replay(
        self, receipt_id: str, *, environment: Mapping[str, str] | None = None, stdin: bytes = b""
    ) -> models.Replay:
        """Carry the command of a receipt out again, in a fresh sandbox without a network that begins from what it began from,
        and hold both against each other. Nothing is written to where it was done first.

        A receipt has *environment* and *stdin* by digest alone: bring what the command was given of them.

        Raises:
            NotReplayable: what it began from is not to be had; `missing` says what, the hint how to have it next time.
            InvalidArgument: the variables or the input are not those of then.
            Refused: a rule is against it.
        """
        payload = {
            "environment": dict(environment or {}),
            "stdin_base64": base64.b64encode(stdin).decode() if stdin else None,
        }
        path = f"/v1/receipts/{encode_path(receipt_id)}/replay"
        reply = await ask(self._transport, "POST", path, payload=payload)
        return read_answer(models.Replay, reply.body)

    async def errors(self) -> list[models.CodeInfo]:
        """The catalogue of codes. `coldframe.client.codes.Code` has those that this version knows."""
        return read_answers(models.CodeInfo, (await ask(self._transport, "GET", "/v1/errors")).body)

    async def edge(self) -> models.EdgeInfo:
        """Where the edge of the installation is, and what certificate to trust there."""
        return read_answer(models.EdgeInfo, (await ask(self._transport, "GET", "/v1/edge")).body)

    async def pool(self) -> models.PoolStatus:
        """The boxes that stand ready on the server's machine for the next sandboxes."""
        return read_answer(models.PoolStatus, (await ask(self._transport, "GET", "/v1/pool")).body)

    async def doctor(self) -> models.IsolationReport:
        """Build a throw-away box on the server's machine and report what holds."""
        return read_answer(models.IsolationReport, (await ask(self._transport, "GET", "/v1/doctor")).body)


class Sandboxes:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(
        self,
        agent_id: str | None = None,
        *,
        background: bool = False,
        limits: models.Limits | None = None,
        network: str | None = None,
        template: str | None = None,
        profile: Literal["interpreter", "sandbox", "workspace", "computer"] | None = None,
        snapshot: str | None = None,
        volumes: Sequence[Mapping[str, str]] = (),
        spec: models.SandboxSpec | None = None,
        idempotency_key: str | None = None,
        queue_s: float | None = None,
    ) -> Sandbox:
        """Create a sandbox on the workspace of *agent_id*, on a temporary one with *background*, or by a whole *spec*.

        *network* asks for a profile of the rules, which have to give it one; without it the sandbox has what they give.
        *profile* says what it is for; unless it is said, that follows from the rest.
        *template* `debian` gives it a system of its own, with a root who may change it.
        With *snapshot* its files begin as that, and the agent has to be new.
        *volumes* are shown inside: `{"name": "data", "at": "/home/user/data", "mode": "rw"}`, of which `at` and `mode`,
        which is `ro` then, may be left out.
        With the *idempotency_key* of an earlier call the sandbox of that call is returned; without one, only a call
        that is repeated over a broken connection is known again.

        Where as many sandboxes run as the operator lets, *queue_s* has it wait for its turn for so many seconds at most:
        the answer is in state `queued`, and `wait_for_turn` returns when it is not any more.

        Raises:
            TooManySandboxes: as many run as may.
            Conflict: the key was used for another call, or the agent that is to begin as a snapshot is there.
            InvalidArgument: there is no such network profile.
            DeniedByRule: the rules give it no network, or not that volume.
            VolumeBusy: another sandbox has a volume to write to.
            IsolationUnavailable: a wall cannot be raised on that machine; nothing was started.
        """
        if spec is None:
            system: dict[str, Any] = {} if template is None else {"template": template}
            if profile is not None:
                system["profile"] = profile
            if background or profile not in ("interpreter", "sandbox"):
                system["background"] = background
            spec = models.SandboxSpec(
                **system,  # checked there
                agent_id=agent_id,
                limits=limits or models.Limits(),
                network=network,
                snapshot=snapshot,
                volumes=tuple(volumes),  # type: ignore[arg-type]  # checked there
            )
        payload = spec.model_dump(mode="json", exclude_unset=True)
        headers = {"Idempotency-Key": idempotency_key or make_key()}
        query = {"queue_s": queue_s}
        reply = await ask(self._transport, "POST", "/v1/sandboxes", payload=payload, headers=headers, query=query)
        return Sandbox(self._transport, read_answer(models.SandboxInfo, reply.body))

    async def plan(self, spec: models.SandboxSpec) -> JsonObject:
        """The contract that a sandbox of that *spec* would have now. Nothing is started. Given as `contract_sha256` of the
        spec, the `sha256` of the plan makes `create` refuse any other."""
        payload = spec.model_dump(mode="json", exclude_unset=True)
        return await ask_json(self._transport, "POST", "/v1/contracts/plan", payload=payload)

    async def get(self, sandbox_id: str) -> Sandbox:
        reply = await ask(self._transport, "GET", f"/v1/sandboxes/{encode_path(sandbox_id)}")
        return Sandbox(self._transport, read_answer(models.SandboxInfo, reply.body))

    async def list(
        self,
        *,
        state: Sequence[str] = (),
        agent_id: str | None = None,
        label: str | None = None,
        created_by: str | None = None,
        min_age_s: float | None = None,
        min_idle_s: float | None = None,
        after: str | None = None,
        limit: int | None = None,
        sort: Literal["age", "idle", "stored", "owner"] | None = None,
    ) -> SandboxItems:
        """Newest first, or by *sort* (`stored` adds up what is on disk: `stored_bytes`); of these states, this agent, this label
        of the workspace, made with the token *created_by*, so old, idle for so long. *after* the id that the page before ended with, at most *limit*."""
        query = {
            "state": list(state),
            "agent_id": agent_id,
            "label": label,
            "created_by": created_by,
            "min_age_s": min_age_s,
            "min_idle_s": min_idle_s,
            "after": after,
            "limit": limit,
            "sort": sort,
        }
        reply = await ask(self._transport, "GET", "/v1/sandboxes", query=query)
        return [Sandbox(self._transport, info) for info in read_answers(models.SandboxInfo, reply.body)]

    async def terminate_all(self, which: models.EndMany) -> models.ManyEnds:
        """End all that fit, in one call. One that cannot be ended holds up no other, and is told."""
        payload = which.model_dump(mode="json", exclude_unset=True)
        reply = await ask(self._transport, "POST", "/v1/sandboxes/terminate", payload=payload)
        return read_answer(models.ManyEnds, reply.body)


class Snapshots:
    """What was taken of the files of sandboxes. Taking one, going back and forking are acts of a sandbox."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(
        self,
        *,
        sandbox_id: str | None = None,
        agent_id: str | None = None,
        reason: str | None = None,
        label: str | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> SnapshotItems:
        """Newest first; taken through this sandbox, of this agent, for this reason, with this label. *after* the id that the
        page before ended with, at most *limit*."""
        query = {
            "sandbox_id": sandbox_id,
            "agent_id": agent_id,
            "reason": reason,
            "label": label,
            "after": after,
            "limit": limit,
        }
        return read_answers(models.SnapshotInfo, (await ask(self._transport, "GET", "/v1/snapshots", query=query)).body)

    async def get(self, snapshot_id: str) -> models.SnapshotInfo:
        reply = await ask(self._transport, "GET", f"/v1/snapshots/{encode_path(snapshot_id)}")
        return read_answer(models.SnapshotInfo, reply.body)

    async def rename(self, snapshot_id: str, name: str) -> models.SnapshotInfo:
        path = f"/v1/snapshots/{encode_path(snapshot_id)}/name"
        reply = await ask(self._transport, "PUT", path, payload={"name": name}, repeatable=True)
        return read_answer(models.SnapshotInfo, reply.body)

    async def remove(self, snapshot_id: str) -> None:
        """Forget one. What was forked from it goes on."""
        await ask(self._transport, "DELETE", f"/v1/snapshots/{encode_path(snapshot_id)}", repeatable=True)

    async def compare(
        self,
        before: str,
        after: str,
        *,
        sandbox_id: str | None = None,
        next_after: str | None = None,
        limit: int | None = None,
        part: str | None = None,
    ) -> models.Comparison:
        """A page of the paths that differ between two points: ids of snapshots, or of sandboxes for what they have now.

        The look belongs to the session of *sandbox_id*, by default of one of both points; go on with `next_after`. With
        *part* `system` it is of the systems of their own, from their root on; `template` for an id is what they began as.
        """
        path = f"/v1/compare/{encode_path(before)}/{encode_path(after)}"
        query = {"sandbox_id": sandbox_id, "next_after": next_after, "limit": limit, "part": part}
        return read_answer(models.Comparison, (await ask(self._transport, "GET", path, query=query)).body)

    async def compare_file(
        self, before: str, after: str, path: str, *, sandbox_id: str | None = None
    ) -> models.TextChange:
        """One file at two points, line by line. Raises FileMissing if it is at neither."""
        where = f"/v1/compare/{encode_path(before)}/{encode_path(after)}/files/{encode_path(path)}"
        reply = await ask(self._transport, "GET", where, query={"sandbox_id": sandbox_id})
        return read_answer(models.TextChange, reply.body)

    async def export(self, snapshot_id: str) -> AsyncGenerator[bytes, None]:
        """One tar of it, in parts. Afterwards `sha256` of the snapshot is the digest of what is in it.

        Raises:
            HostUnreachable: the connection broke; what came so far is not the whole.
        """
        stream = await ask_stream(self._transport, "GET", f"/v1/snapshots/{encode_path(snapshot_id)}/archive")
        async with aclosing(stream.parts()) as parts:
            async for part in parts:
                yield part

    async def import_archive(
        self,
        content: Content,
        *,
        name: str = "",
        label: str | None = None,
        expires_in_s: float | None = None,
        expected: str | None = None,
        idempotency_key: str | None = None,
    ) -> models.SnapshotInfo:
        """A snapshot of an archive, or nothing at all. *expected* is the digest that the export told.

        Raises:
            SnapshotCorrupt: it is cut off, was altered, or is another one than expected.
        """
        query = {"name": name, "label": label, "expires_in_s": expires_in_s, "expected": expected}
        reply = raise_for(
            await self._transport.request(
                "POST",
                "/v1/snapshots",
                query=query,
                body=content.encode() if isinstance(content, str) else content,
                headers={"Idempotency-Key": idempotency_key or make_key()},
            )
        )
        return read_answer(models.SnapshotInfo, reply.body)


class Agents:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(self, agent_id: str) -> models.AgentInfo:
        reply = await ask(self._transport, "POST", "/v1/agents", payload={"agent_id": agent_id})
        return read_answer(models.AgentInfo, reply.body)

    async def get(self, agent_id: str) -> models.AgentInfo:
        reply = await ask(self._transport, "GET", f"/v1/agents/{encode_path(agent_id)}")
        return read_answer(models.AgentInfo, reply.body)

    async def list(self) -> AgentItems:
        return read_answers(models.AgentInfo, (await ask(self._transport, "GET", "/v1/agents")).body)

    async def delete(self, agent_id: str) -> None:
        """Delete the agent and its workspace. What the ledger says of it stays."""
        await ask(self._transport, "DELETE", f"/v1/agents/{encode_path(agent_id)}")

    async def set_label(self, agent_id: str, label: str, *, reason: str) -> models.AgentInfo:
        """Set the label of a workspace, also downward. Owner and admin only, and recorded with *reason*."""
        payload = {"label": label, "reason": reason}
        reply = await ask(self._transport, "PUT", f"/v1/agents/{encode_path(agent_id)}/label", payload=payload)
        return read_answer(models.AgentInfo, reply.body)

    async def clean_scratch(self, agent_id: str) -> None:
        """Empty the `scratch` directory of the workspace and touch nothing else."""
        await ask(self._transport, "POST", f"/v1/agents/{encode_path(agent_id)}/scratch/clean")


class SessionList:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def get(self, session_id: str) -> models.SessionInfo:
        reply = await ask(self._transport, "GET", f"/v1/sessions/{encode_path(session_id)}")
        return read_answer(models.SessionInfo, reply.body)

    async def reset(self, session_id: str) -> models.SessionInfo:
        """Archive the session and open a new one at PUBLIC. Owner only; the label of the workspace stays."""
        reply = await ask(self._transport, "POST", f"/v1/sessions/{encode_path(session_id)}/reset")
        return read_answer(models.SessionInfo, reply.body)


class NetworkView:
    """Whom all sandboxes reached and tried to reach."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def search(
        self,
        *,
        host: str | None = None,
        since: str | None = None,
        until: str | None = None,
        outcome: str | None = None,
        agent_id: str | None = None,
        sandbox_id: str | None = None,
        after: int = 0,
        limit: int = 100,
        lookups: bool = False,
    ) -> models.NetworkLog:
        """Contacts of all sandboxes. Times in ISO form with a zone; *host* is a name, an address, or `*.NAME`.

        *lookups*: also names that were looked up and answered; denied look-ups are there in any case.
        """
        query = {
            "host": host,
            "since": since,
            "until": until,
            "outcome": outcome,
            "agent_id": agent_id,
            "sandbox_id": sandbox_id,
            "after": after,
            "limit": limit,
            "lookups": "true" if lookups else None,
        }
        return read_answer(models.NetworkLog, (await ask(self._transport, "GET", "/v1/network", query=query)).body)

    async def sandboxes(
        self,
        *,
        host: str | None = None,
        since: str | None = None,
        until: str | None = None,
        outcome: str | None = None,
        agent_id: str | None = None,
        limit: int = 100,
    ) -> list[models.ReachedBy]:
        """Which sandboxes have contacts like that, whoever was there last first."""
        query = {
            "host": host,
            "since": since,
            "until": until,
            "outcome": outcome,
            "agent_id": agent_id,
            "limit": limit,
        }
        reply = await ask(self._transport, "GET", "/v1/network/sandboxes", query=query)
        return read_answers(models.ReachedBy, reply.body)


class LedgerView:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def entries(
        self,
        *,
        after: int = 0,
        limit: int = 100,
        kinds: Sequence[str] = (),
        subject: str | None = None,
        sandbox_id: str | None = None,
        agent_id: str | None = None,
    ) -> list[models.LedgerEntry]:
        """At most *limit* entries after sequence number *after*."""
        query = {
            "after": after,
            "limit": limit,
            "kind": list(kinds),
            "subject": subject,
            "sandbox_id": sandbox_id,
            "agent_id": agent_id,
        }
        return read_answers(
            models.LedgerEntry, (await ask(self._transport, "GET", "/v1/ledger/entries", query=query)).body
        )

    async def verify(self) -> models.LedgerVerdict:
        return read_answer(models.LedgerVerdict, (await ask(self._transport, "GET", "/v1/ledger/verify")).body)

    async def export(self) -> AsyncGenerator[bytes, None]:
        """The whole ledger as JSON lines."""
        stream = await ask_stream(self._transport, "GET", "/v1/ledger/export")
        async with aclosing(stream.parts()) as parts:
            async for part in parts:
                yield part


class LineageView:
    """What was reached, read, printed and written, and what was derived from what."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(
        self,
        *,
        session_id: str | None = None,
        agent_id: str | None = None,
        sandbox_id: str | None = None,
        path: str | None = None,
        sha256: str | None = None,
        endpoint: str | None = None,
        label: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> models.LineagePage:
        """Items behind number *after*, in the order in which they came on record.

        *endpoint* is a name or an address, also with a port; *label* is this one or a higher.
        """
        query = {
            "session_id": session_id,
            "agent_id": agent_id,
            "sandbox_id": sandbox_id,
            "path": path,
            "sha256": sha256,
            "endpoint": endpoint,
            "label": label,
            "after": after,
            "limit": limit,
        }
        return read_answer(models.LineagePage, (await ask(self._transport, "GET", "/v1/lineage", query=query)).body)

    async def get(self, item_id: str) -> models.LineageItem:
        reply = await ask(self._transport, "GET", f"/v1/lineage/{encode_path(item_id)}")
        return read_answer(models.LineageItem, reply.body)

    async def trace(
        self, any_id: str, direction: str = "back", *, known: bool = False, after: int | None = None, limit: int = 100
    ) -> models.LineageTrace:
        """What an item, or a call by its call, command or receipt id, may have come from (`back`) or gone to (`forward`).

        All generations, newest first when going back; *after* is `next_after` of the page before. With *known* only what
        the record names, step by step.
        """
        query = {"direction": direction, "known": str(known).lower(), "after": after, "limit": limit}
        reply = await ask(self._transport, "GET", f"/v1/lineage/{encode_path(any_id)}/trace", query=query)
        return read_answer(models.LineageTrace, reply.body)


class Policy:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def show(self) -> models.LiveRules:
        return read_answer(models.LiveRules, (await ask(self._transport, "GET", "/v1/policy")).body)

    async def load(self, text: str, *, reason: str | None = None) -> models.LiveRules:
        """Put a rule file into force. *reason* is kept with the change.

        Raises:
            RulesInvalid: with the line; the old set stays.
        """
        reply = await ask(self._transport, "PUT", "/v1/policy", query={"reason": reason}, body=text.encode())
        return read_answer(models.LiveRules, reply.body)

    async def log(self, *, after: int = 0, limit: int = 100) -> list[models.PolicyChange]:
        """How the rules have changed, the first first: who, when, why, and from which version to which."""
        query = {"after": after, "limit": limit}
        return read_answers(
            models.PolicyChange, (await ask(self._transport, "GET", "/v1/policy/log", query=query)).body
        )

    async def version(self, sha256: str) -> models.LiveRules:
        """A version that is or was in force. Raises NotFound."""
        path = f"/v1/policy/versions/{encode_path(sha256)}"
        return read_answer(models.LiveRules, (await ask(self._transport, "GET", path)).body)

    async def check(self, sandbox_id: str, tool: str, arguments: Mapping[str, Any]) -> JsonObject:
        """The decision that a call would get now. Nothing is run or recorded as run."""
        payload = {"sandbox_id": sandbox_id, "tool": tool, "arguments": dict(arguments)}
        return await ask_json(self._transport, "POST", "/v1/policy/check", payload=payload)

    async def replay(self, seq: int) -> JsonObject:
        """The stored decision of a ledger entry, and the same recomputed."""
        return await ask_json(self._transport, "GET", f"/v1/policy/replay/{seq}")


class TokenList:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(
        self,
        role: str,
        name: str,
        *,
        agent_id: str | None = None,
        expires_at: str | None = None,
        form: Literal["native", "e2b"] = "native",
    ) -> tuple[str, models.TokenInfo]:
        """Make a token. Its secret is given this once and kept nowhere. With *form* `e2b` it is a key that SDKs of E2B take."""
        payload = {"role": role, "name": name, "agent_id": agent_id, "expires_at": expires_at, "form": form}
        answer = await ask_json(self._transport, "POST", "/v1/tokens", payload=payload)
        return str(answer["secret"]), read_part(models.TokenInfo, answer["token"])

    async def list(self) -> TokenItems:
        return read_answers(models.TokenInfo, (await ask(self._transport, "GET", "/v1/tokens")).body)

    async def revoke(self, token_id: str) -> None:
        await ask(self._transport, "DELETE", f"/v1/tokens/{encode_path(token_id)}")


class Credentials:
    """Secrets that sandboxes use and never see. What is kept is never given out again."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def add(self, terms: Mapping[str, Any], secret: str, *, confirm: str = "") -> models.CredentialInfo:
        """Keep *secret* for what *terms* say: those of `CredentialTerms`, at least `name`, `base`, `variable`, and who.

        Raises:
            InvalidArgument: among others, one of production without *confirm*: the fact `confirm` has the words for it.
            Conflict: there is one of that name.
        """
        payload = {**terms, "secret": secret, "confirm": confirm}
        reply = await ask(self._transport, "POST", "/v1/credentials", payload=payload)
        return read_answer(models.CredentialInfo, reply.body)

    async def get(self, name: str) -> models.CredentialInfo:
        reply = await ask(self._transport, "GET", f"/v1/credentials/{encode_path(name)}")
        return read_answer(models.CredentialInfo, reply.body)

    async def list(self) -> CredentialItems:
        return read_answers(models.CredentialInfo, (await ask(self._transport, "GET", "/v1/credentials")).body)

    async def rotate(self, name: str, secret: str) -> models.CredentialInfo:
        """Put another secret in place of the one before, from the next request on."""
        path = f"/v1/credentials/{encode_path(name)}/rotate"
        reply = await ask(self._transport, "POST", path, payload={"secret": secret})
        return read_answer(models.CredentialInfo, reply.body)

    async def revoke(self, name: str) -> models.CredentialInfo:
        """Take it back at once. Idempotent."""
        reply = await ask(self._transport, "DELETE", f"/v1/credentials/{encode_path(name)}")
        return read_answer(models.CredentialInfo, reply.body)

    async def uses(self, name: str, *, after: int = 0, limit: int = 100) -> Sequence[models.CredentialUse]:
        """What it was used for, and what for in vain: entries of the ledger after number *after*."""
        path = f"/v1/credentials/{encode_path(name)}/uses"
        reply = await ask(self._transport, "GET", path, query={"after": after, "limit": limit})
        return read_answers(models.CredentialUse, reply.body)
