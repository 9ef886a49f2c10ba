"""Previews of an installation: ports of sandboxes that are shared, and how what they show stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, cast

from coldframe.client import models
from coldframe.client.replies import read_answer, read_answers, read_object
from coldframe.client.transport import Transport, ask, encode_path

PreviewItems: TypeAlias = "list[models.PreviewInfo]"


class Previews:
    """Of every sandbox that the caller may see."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(
        self,
        sandbox_id: str,
        port: int,
        *,
        name: str | None = None,
        public: bool = False,
        up_to: str | None = None,
        expires_in_s: float | None = None,
        start: str | Sequence[str] | None = None,
        cwd: str = "",
        user: str = "user",
        env: Mapping[str, str] | None = None,
        setup: Sequence[str] = (),
        record: bool | None = None,
        health_path: str = "/",
        ready_timeout_s: float = 60.0,
        answer_timeout_s: float = 60.0,
    ) -> models.PreviewCreated:
        """Share a port, and start what serves on it with *start*, after the lines of *setup*; answers when it serves.

        *up_to* is the highest label that it may show; None for that of the session now. With *record* it can be rebuilt
        elsewhere; None: where it has a *start*. Of *env* the names alone are kept.

        Raises:
            Conflict: the port is shared already.
            PreviewUnavailable: it was started and does not serve; `facts["log_lines"]` has the end of its log.
            PreviewLabelled: what it shows is labelled higher than *up_to*.
        """
        payload: dict[str, object] = {
            "port": port,
            "name": name,
            "public": public,
            "up_to": up_to,
            "expires_in_s": expires_in_s,
            "setup": list(setup),
            "record": record,
            "health_path": health_path,
            "answer_timeout_s": answer_timeout_s,
        }
        if start is not None:
            payload["start"] = {
                "command": start if isinstance(start, str) else list(start),
                "cwd": cwd,
                "user": user,
                "env": dict(env or {}),
                "ready_timeout_s": ready_timeout_s,
            }
        path = f"/v1/sandboxes/{encode_path(sandbox_id)}/previews"
        reply = await ask(self._transport, "POST", path, payload=payload)
        return read_answer(models.PreviewCreated, reply.body)

    async def list(self, sandbox_id: str | None = None) -> PreviewItems:
        """All of them, or those that a sandbox serves, newest first; those that were taken back too."""
        path = "/v1/previews" if sandbox_id is None else f"/v1/sandboxes/{encode_path(sandbox_id)}/previews"
        return read_answers(models.PreviewInfo, (await ask(self._transport, "GET", path)).body)

    async def get(self, preview_id: str) -> models.PreviewInfo:
        """One of them, with how it stands now, why, and the end of its log."""
        return read_answer(models.PreviewInfo, (await ask(self._transport, "GET", _preview_path(preview_id))).body)

    async def change(
        self,
        preview_id: str,
        *,
        public: bool | None = None,
        up_to: str | None = None,
        expires_in_s: float | None = None,
        end_links: bool = False,
        record: bool = False,
    ) -> models.PreviewInfo:
        """Share it otherwise; what is None stays. Whoever would not be let in now is sent away at once; with *end_links*
        also whoever came in by a link, or by typing the token, and links that were given open nothing any more. With *record*
        it can be rebuilt from now on."""
        given = {"public": public, "up_to": up_to, "expires_in_s": expires_in_s}
        given |= {"end_links": end_links or None, "record": record or None}
        payload = {key: value for key, value in given.items() if value is not None}
        reply = await ask(self._transport, "PATCH", _preview_path(preview_id), payload=payload, repeatable=True)
        return read_answer(models.PreviewInfo, reply.body)

    async def revoke(self, preview_id: str) -> models.PreviewInfo:
        """Take it back. What serves goes on."""
        reply = await ask(self._transport, "DELETE", _preview_path(preview_id), repeatable=True)
        return read_answer(models.PreviewInfo, reply.body)

    async def link(
        self, preview_id: str, *, role: str = "member", expires_in_s: float | None = None
    ) -> models.PreviewLink:
        """A link that opens it in one browser, once, within ten minutes.

        As *role* `viewer` that browser only looks: GET, HEAD and OPTIONS, and no web sockets. It is let in for *expires_in_s*
        from then on; None for as long as the preview lives, at most 30 days.
        """
        asked = {"role": role} | ({} if expires_in_s is None else {"expires_in_s": str(expires_in_s)})
        reply = await ask(self._transport, "POST", f"{_preview_path(preview_id)}/link", query=asked)
        return read_answer(models.PreviewLink, reply.body)

    async def stop(self, preview_id: str) -> models.PreviewInfo:
        """End what serves; the address stays."""
        reply = await ask(self._transport, "POST", f"{_preview_path(preview_id)}/stop", repeatable=True)
        return read_answer(models.PreviewInfo, reply.body)

    async def restart(self, preview_id: str, *, env: Mapping[str, str] | None = None) -> models.PreviewInfo:
        """Wake its sandbox, and start what serves again; answers when it does.

        Raises:
            WrongState: no command is on record.
            PreviewEnded: the sandbox has ended; `rebuild` makes it again.
            PreviewUnavailable: it was started and does not serve.
        """
        payload = {"env": dict(env or {})}
        reply = await ask(self._transport, "POST", f"{_preview_path(preview_id)}/restart", payload=payload)
        return read_answer(models.PreviewInfo, reply.body)

    async def rebuild(
        self,
        preview_id: str,
        *,
        sandbox_id: str | None = None,
        agent_id: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> models.PreviewRebuilt:
        """Make it again on another sandbox from what is on record, and have the address lead there.

        Raises:
            InputMissing, InputChanged: `facts["input"]` says what. CredentialMissing: `facts["name"]` says which.
        """
        payload = {"sandbox_id": sandbox_id, "agent_id": agent_id, "env": dict(env or {})}
        reply = await ask(self._transport, "POST", f"{_preview_path(preview_id)}/rebuild", payload=payload)
        return read_answer(models.PreviewRebuilt, reply.body)

    async def log(self, preview_id: str, *, lines: int = 50) -> tuple[str, ...]:
        """The end of what it has printed."""
        reply = await ask(self._transport, "GET", f"{_preview_path(preview_id)}/log", query={"lines": lines})
        return tuple(map(str, cast("Sequence[object]", read_object(reply.body)["lines"])))


def _preview_path(preview_id: str) -> str:
    return f"/v1/previews/{encode_path(preview_id)}"
