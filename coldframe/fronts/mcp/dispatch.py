"""The methods of the protocol: each request comes to one of these, whatever carried it."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from coldframe import __version__
from coldframe.contract.caller import Caller
from coldframe.contract.errors import ColdframeError, Missing, NotFound, UnknownTool
from coldframe.control.control import Control
from coldframe.control.rights import require
from coldframe.fronts.auth import internal_error
from coldframe.fronts.mcp import (
    build_tools,
    cell_tools,
    command_tools,
    git_tools,
    preview_tools,
    profile_tools,
    record_tools,
    snapshot_tools,
    tasks,
    workspace_tools,
)
from coldframe.fronts.mcp.announcements import announce_end
from coldframe.fronts.mcp.answers import of_error
from coldframe.fronts.mcp.gate_tools import gate_offers, switched_off
from coldframe.fronts.mcp.messages import Incoming
from coldframe.fronts.mcp.offers import OFFERS, Asked, Offer
from coldframe.fronts.mcp.protocol import (
    CAPABILITY_MISSING,
    HANDSHAKE_REVISIONS,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    META_SERVER,
    META_SUBSCRIPTION,
    METHOD_NOT_FOUND,
    PREVIOUS,
    RESOURCE_NOT_FOUND,
    REVISIONS,
    TASKS,
    RpcError,
    notification,
)
from coldframe.fronts.mcp.resources import command_of, list_resources, list_templates, read_resource
from coldframe.fronts.mcp.sessions import MOST_SUBSCRIPTIONS, Session

DECLARING = (
    build_tools,
    cell_tools,
    command_tools,
    git_tools,
    preview_tools,
    profile_tools,
    record_tools,
    snapshot_tools,
    workspace_tools,
)
"""Files that offer tools: they are here for what loading them does."""
PROGRESS_S = 1.0
SLOWER_S = 5.0
"""Between two notes of progress, in the first ten seconds and after."""
LIST_TTL_MS = 30_000
SERVER_INFO = {"name": "coldframe", "title": "Coldframe", "version": __version__}
INSTRUCTIONS = (
    "Sandboxes: computers with files and commands, isolated and recorded. Make one with `create_workspace`, or use one of "
    "`list_sandboxes`; name it by `sandbox_id` or `workspace` if there are several. `run_command` answers with the whole output; "
    "what takes long goes on as a job under its `command_id` (`start_command`, `wait_command`, `read_logs`, `signal_command`). "
    "A refusal is an answer with `error.code` and `error.next_actions`. PENDING_APPROVAL means that a person has to decide, in "
    "Coldframe and not in this client: do not ask again before."
)
_log = logging.getLogger("coldframe.mcp")


class Exchange:
    """One request under way: who asks, in which words, and how to tell them something before the answer."""

    def __init__(
        self,
        message: Incoming,
        caller: Caller,
        tell: Callable[[dict[str, Any]], Awaitable[None]],
        session: Session | None = None,
    ) -> None:
        self.message = message
        self.caller = caller
        self.tell = tell
        self.session = session

    @property
    def is_stateless(self) -> bool:
        return self.message.era == "stateless"


class Dispatch:
    def __init__(self, control: Control, *, operator_refuses: bool) -> None:
        self._control = control
        self._operator_refuses = operator_refuses
        self._loose: set[asyncio.Task[None]] = set()
        self._methods: dict[str, Callable[[Exchange], Awaitable[dict[str, Any]]]] = {
            "initialize": self._initialize,
            "ping": self._ping,
            "server/discover": self._discover,
            "tools/list": self._list_tools,
            "tools/call": self._call_tool,
            "resources/list": self._list_resources,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read_resource,
            "resources/subscribe": self._subscribe,
            "resources/unsubscribe": self._unsubscribe,
            "subscriptions/listen": self._listen,
            "tasks/get": self._get_task,
            "tasks/update": self._update_task,
            "tasks/cancel": self._cancel_task,
        }

    async def answer(self, exchange: Exchange) -> dict[str, Any]:
        """The result of a request. Raises RpcError for one that is wrong itself."""
        method = exchange.message.method
        found = self._methods.get(method)
        if found is None or method in (_OF_SESSIONS if exchange.is_stateless else _OF_REQUESTS):
            raise RpcError(METHOD_NOT_FOUND, f"there is no method `{method}` in this revision", {"method": method})
        try:
            result = await found(exchange)
        except ColdframeError as error:
            raise _rpc_error(error, exchange) from error
        if exchange.is_stateless:
            result.setdefault("resultType", "complete")
            if method not in ("tasks/get",) and result["resultType"] != "task":
                result["_meta"] = {**result.get("_meta", {}), META_SERVER: SERVER_INFO}
        return result

    # -- who is there ------------------------------------------------------------------------------------------------

    async def _initialize(self, exchange: Exchange) -> dict[str, Any]:
        asked_for = exchange.message.params.get("protocolVersion")
        if not isinstance(asked_for, str):
            raise RpcError(INVALID_PARAMS, "`protocolVersion` is missing")
        return {
            "protocolVersion": asked_for if asked_for in HANDSHAKE_REVISIONS else PREVIOUS,
            "capabilities": {"tools": {}, "resources": {"subscribe": True}},
            "serverInfo": SERVER_INFO,
            "instructions": INSTRUCTIONS,
        }

    async def _ping(self, exchange: Exchange) -> dict[str, Any]:
        return {}

    async def _discover(self, exchange: Exchange) -> dict[str, Any]:
        return {
            "supportedVersions": [*reversed(REVISIONS)],
            "capabilities": {"tools": {}, "resources": {"subscribe": True}, "extensions": {TASKS: {}}},
            "instructions": INSTRUCTIONS,
            "ttlMs": LIST_TTL_MS,
            "cacheScope": "private",
        }

    # -- tools -------------------------------------------------------------------------------------------------------

    async def _list_tools(self, exchange: Exchange) -> dict[str, Any]:
        asked = self._asked(exchange)
        is_off = switched_off(asked)
        every = sorted({**gate_offers(), **OFFERS}.items())
        listed = [one.listing for _, one in every if one.is_for(exchange.caller) and not is_off(one)]
        return _listing(exchange, {"tools": listed})

    async def _call_tool(self, exchange: Exchange) -> dict[str, Any]:
        params = exchange.message.params
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str):
            raise RpcError(INVALID_PARAMS, "`name` is missing")
        if arguments is not None and not isinstance(arguments, dict):
            raise RpcError(INVALID_PARAMS, "`arguments` is no object")
        offer = gate_offers().get(name) or OFFERS.get(name)
        if offer is None:
            wire = UnknownTool(f"there is no tool `{name[:80]}`", tools=sorted({*gate_offers(), *OFFERS})).to_wire()
            raise RpcError(INVALID_PARAMS, f"there is no tool `{name[:80]}`", wire)
        asked = self._asked(exchange)
        try:
            answer = await self._run(exchange, offer, asked, arguments or {})
        except asyncio.CancelledError:
            if asked.call_off is not None:
                self._call_off_soon(asked.call_off)
            raise
        if asked.is_task and answer.get("structuredContent", {}).get("state") == "running":
            return tasks.begun(asked, answer)
        return answer

    async def _run(self, exchange: Exchange, offer: Offer, asked: Asked, arguments: dict[str, Any]) -> dict[str, Any]:
        token = exchange.message.progress_token
        try:
            if offer.passes_as is None:  # the gate asks by itself, and records a refusal
                require(exchange.caller, offer.right)
            if token is None:
                return await offer.run(asked, arguments)
            work = asyncio.ensure_future(offer.run(asked, arguments))
            try:
                await self._tell_progress(exchange, work, token)
            finally:
                work.cancel()  # nothing, if it is done
            return await work
        except ColdframeError as error:
            return of_error(error)
        except Exception as error:  # noqa: BLE001  the edge of a call: its client is told a reference, the log the reason
            return of_error(internal_error(error))

    async def _tell_progress(self, exchange: Exchange, work: "asyncio.Future[Any]", token: str | int) -> None:
        """Say every now and then that it goes on, until it is done. What is printed meanwhile is not in it: no rule has seen it."""
        seconds = 0.0
        while True:
            pause_s = PROGRESS_S if seconds < 10 else SLOWER_S
            done, _ = await asyncio.wait([work], timeout=pause_s)
            if done:
                return
            seconds += pause_s
            told = {"progressToken": token, "progress": seconds, "message": f"goes on since {seconds:g} s"}
            await exchange.tell(notification("notifications/progress", told))

    def _call_off_soon(self, call_off: Callable[[], Awaitable[None]]) -> None:
        """Whoever asked for it has called it off before there was a handle to it, so nobody else could."""

        async def end() -> None:
            with contextlib.suppress(ColdframeError):
                await call_off()

        task = asyncio.get_running_loop().create_task(end())
        self._loose.add(task)
        task.add_done_callback(self._loose.discard)

    # -- resources ---------------------------------------------------------------------------------------------------

    async def _list_resources(self, exchange: Exchange) -> dict[str, Any]:
        cursor = exchange.message.params.get("cursor")
        if cursor is not None and not isinstance(cursor, str):
            raise RpcError(INVALID_PARAMS, "`cursor` is no text")
        listed, following = list_resources(self._asked(exchange), cursor)
        return _listing(exchange, {"resources": listed, **({"nextCursor": following} if following else {})}, ttl_ms=0)

    async def _list_templates(self, exchange: Exchange) -> dict[str, Any]:
        return _listing(exchange, {"resourceTemplates": list_templates()})

    async def _read_resource(self, exchange: Exchange) -> dict[str, Any]:
        contents = await read_resource(self._asked(exchange), _uri(exchange))
        return _listing(exchange, {"contents": contents}, ttl_ms=0)

    async def _subscribe(self, exchange: Exchange) -> dict[str, Any]:
        uri, session = _uri(exchange), exchange.session
        if session is None:
            raise RpcError(INVALID_PARAMS, "a subscription needs the session that `initialize` gave")
        command_id = command_of(self._asked(exchange), uri)
        if command_id is None:
            raise NotFound(f"nothing is told of `{uri[:200]}`", hint="subscribe to a command", uri=uri[:200])
        if uri not in session.subscriptions:
            if len(session.subscriptions) >= MOST_SUBSCRIPTIONS:
                raise RpcError(INVALID_PARAMS, f"a session has at most {MOST_SUBSCRIPTIONS} subscriptions")
            telling = announce_end(self._control, uri, command_id, {}, session.tell)
            task = session.subscriptions[uri] = asyncio.get_running_loop().create_task(telling)
            task.add_done_callback(lambda _: session.subscriptions.pop(uri, None))
        return {}

    async def _unsubscribe(self, exchange: Exchange) -> dict[str, Any]:
        if exchange.session is not None:
            task = exchange.session.subscriptions.pop(_uri(exchange), None)
            if task is not None:
                task.cancel()
        return {}

    async def _listen(self, exchange: Exchange) -> dict[str, Any]:
        """Tell of ends until the client goes; what is not told here is left out of what is acknowledged."""
        wanted = exchange.message.params.get("notifications")
        uris = wanted.get("resourceSubscriptions") if isinstance(wanted, dict) else None
        if not isinstance(wanted, dict) or not all(isinstance(one, str) for one in uris or ()):
            raise RpcError(INVALID_PARAMS, "`notifications` says what to tell")
        asked = self._asked(exchange)
        found = {one: command_of(asked, one) for one in (uris or ())[:MOST_SUBSCRIPTIONS]}
        told = {one: command_id for one, command_id in found.items() if command_id is not None}
        meta = {META_SUBSCRIPTION: exchange.message.request_id}
        honoured = {"resourceSubscriptions": list(told)} if told else {}
        await exchange.tell(
            notification("notifications/subscriptions/acknowledged", {"notifications": honoured, "_meta": meta})
        )
        async with asyncio.TaskGroup() as group:
            for uri, command_id in told.items():
                group.create_task(announce_end(self._control, uri, command_id, meta, exchange.tell))
            await asyncio.Event().wait()
        return {"_meta": meta}

    # -- tasks -------------------------------------------------------------------------------------------------------

    async def _get_task(self, exchange: Exchange) -> dict[str, Any]:
        return await tasks.state_of(self._asked(exchange), _task_id(exchange))

    async def _update_task(self, exchange: Exchange) -> dict[str, Any]:
        await tasks.state_of(self._asked(exchange), _task_id(exchange))
        return {}  # none of them asks anything of its client

    async def _cancel_task(self, exchange: Exchange) -> dict[str, Any]:
        await tasks.cancel(self._asked(exchange), _task_id(exchange))
        return {}

    def _asked(self, exchange: Exchange) -> Asked:
        return Asked(
            self._control,
            exchange.caller,
            operator_refuses=self._operator_refuses,
            can_poll=exchange.message.can_poll,
        )


_OF_SESSIONS = frozenset({"initialize", "ping", "resources/subscribe", "resources/unsubscribe"})
_OF_REQUESTS = frozenset({"server/discover", "subscriptions/listen", "tasks/get", "tasks/update", "tasks/cancel"})


def _listing(exchange: Exchange, result: dict[str, Any], *, ttl_ms: int = LIST_TTL_MS) -> dict[str, Any]:
    """*result*, with how long it may be kept, which the other era knows nothing of."""
    return {**result, "ttlMs": ttl_ms, "cacheScope": "private"} if exchange.is_stateless else result


def _uri(exchange: Exchange) -> str:
    uri = exchange.message.params.get("uri")
    if not isinstance(uri, str):
        raise RpcError(INVALID_PARAMS, "`uri` is missing")
    return uri


def _task_id(exchange: Exchange) -> str:
    if not exchange.message.can_poll:
        needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        raise RpcError(CAPABILITY_MISSING, f"declare `{TASKS}` with the request", needed)
    task_id = exchange.message.params.get("taskId")
    if not isinstance(task_id, str):
        raise RpcError(INVALID_PARAMS, "`taskId` is missing")
    return task_id


def _rpc_error(error: ColdframeError, exchange: Exchange) -> RpcError:
    """An error where the protocol has no answer that failed: with all that is known of it as its data."""
    code = INVALID_PARAMS if error.status < 500 else INTERNAL_ERROR
    if isinstance(error, Missing) and not exchange.is_stateless:
        code = RESOURCE_NOT_FOUND
    return RpcError(code, f"{error.code}: {error.message}", error.to_wire())
