"""Web hooks of an installation: addresses that events are announced to, signed, until they are taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from coldframe.client import models
from coldframe.client.replies import read_answer, read_answers
from coldframe.client.transport import Transport, ask, encode_path

WebhookItems: TypeAlias = "list[models.WebhookInfo]"


class WebhookList:
    """For owners and admins. What a delivery is like, and how to check it, is in docs/webhooks.md."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def add(
        self,
        url: str,
        *,
        events: Sequence[str] = ("command.ended",),
        label: str | None = None,
        sandbox_id: str | None = None,
        agent_id: str | None = None,
        min_duration_s: float | None = None,
        allow_private: bool = False,
    ) -> models.MadeWebhook:
        """Announce *events* to *url* from now on; the `secret` of the answer, which they are signed with, is not shown again.

        *label* is the highest of what the receiver may be told, *min_duration_s* how long a command has to take.

        Raises:
            GrantMissing: the caller may not, or only an owner may open that address.
            InvalidArgument: it is no address of a web hook.
        """
        said = {
            "label": label,
            "sandbox_id": sandbox_id,
            "agent_id": agent_id,
            "min_duration_s": min_duration_s,
            "allow_private": allow_private or None,
        }
        payload = {"url": url, "events": list(events)} | {key: one for key, one in said.items() if one is not None}
        return read_answer(
            models.MadeWebhook, (await ask(self._transport, "POST", "/v1/webhooks", payload=payload)).body
        )

    async def list(self) -> WebhookItems:
        return read_answers(models.WebhookInfo, (await ask(self._transport, "GET", "/v1/webhooks")).body)

    async def get(self, webhook_id: str) -> models.WebhookInfo:
        reply = await ask(self._transport, "GET", f"/v1/webhooks/{encode_path(webhook_id)}")
        return read_answer(models.WebhookInfo, reply.body)

    async def remove(self, webhook_id: str) -> None:
        """Announce nothing more there."""
        await ask(self._transport, "DELETE", f"/v1/webhooks/{encode_path(webhook_id)}")

    async def resume(self, webhook_id: str) -> models.WebhookInfo:
        """Try one that fails, or is dead, again at once. It goes on where it was.

        Raises:
            WrongState: it does not fail.
        """
        reply = await ask(self._transport, "POST", f"/v1/webhooks/{encode_path(webhook_id)}/resume")
        return read_answer(models.WebhookInfo, reply.body)
