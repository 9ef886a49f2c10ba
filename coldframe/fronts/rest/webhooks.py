"""Web hooks: where events are announced to, and how it goes there."""

from starlette.requests import Request

from coldframe.contract.model import Model
from coldframe.contract.webhook import MadeWebhook, NewWebhook, WebhookInfo
from coldframe.control.webhooks import Webhooks
from coldframe.fronts.rest.json_routes import JsonRoute
from coldframe.fronts.rest.request import caller_of, control_of


class Removed(Model):
    ok: bool = True


async def add_webhook(request: Request, body: NewWebhook) -> MadeWebhook:
    """Announce events to an address from now on, signed with the secret of the answer, which is shown this once."""
    return _webhooks(request).add(body, caller=caller_of(request))


async def list_webhooks(request: Request) -> list[WebhookInfo]:
    """All web hooks, with how it goes there, without their secrets."""
    return _webhooks(request).list(caller_of(request))


async def get_webhook(request: Request) -> WebhookInfo:
    """One web hook, with how it goes there."""
    return _webhooks(request).get(request.path_params["webhook_id"], caller_of(request))


async def remove_webhook(request: Request) -> Removed:
    """Announce nothing more there."""
    await _webhooks(request).remove(request.path_params["webhook_id"], caller=caller_of(request))
    return Removed()


async def resume_webhook(request: Request) -> WebhookInfo:
    """Try one that fails, or is dead, again at once. It goes on where it was."""
    return _webhooks(request).resume(request.path_params["webhook_id"], caller=caller_of(request))


def _webhooks(request: Request) -> Webhooks:
    return control_of(request).webhooks


ROUTES = (
    JsonRoute("GET", "/v1/webhooks", list_webhooks, list[WebhookInfo]),
    JsonRoute("POST", "/v1/webhooks", add_webhook, MadeWebhook, body=NewWebhook),
    JsonRoute("GET", "/v1/webhooks/{webhook_id}", get_webhook, WebhookInfo),
    JsonRoute("DELETE", "/v1/webhooks/{webhook_id}", remove_webhook, Removed),
    JsonRoute("POST", "/v1/webhooks/{webhook_id}/resume", resume_webhook, WebhookInfo),
)
