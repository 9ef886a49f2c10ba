"""Sandboxes: created, connected to, listed, given time, paused, forked, ended."""

import contextlib
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, unquote

from starlette.responses import Response

from coldframe.contract.errors import (
    ColdframeError,
    InvalidArgument,
    LimitReached,
    NotFound,
    PauseKindUnsupported,
    WrongState,
)
from coldframe.contract.sandbox import SandboxInfo, SandboxSpec
from coldframe.control.creation import Beside
from coldframe.control.leases import Lease, LeaseEgress, LeaseTerms
from coldframe.control.ledger import format_time
from coldframe.control.rights import may
from coldframe.fronts.e2b.egress import read_egress
from coldframe.fronts.e2b.named_sandboxes import PAUSED, RUNNING, STATES, Named, find_named, opened, shown, shown_whole
from coldframe.fronts.e2b.pages import Place, next_page, read_page
from coldframe.fronts.e2b.routes import E2bCall, E2bRoute, answer, error_of, no_content, refuse_field
from coldframe.fronts.e2b.wishes import Wish, read_timeout, read_wish

V1_TIMEOUT_S, TIMEOUT_S = 15, 300
LOST = "Coldframe-Lost"
"""Header that names what an act took away which E2B would have kept."""
MOST_FORKS = 100
TOLD_EXACTLY = timedelta(seconds=0.2)
"""A creation that took longer than this does not count to the time that a sandbox was given for."""


async def create(call: E2bCall) -> Response:
    """As SDKs before 2.5x do. There is a token to it also where they have not asked for one by `secure`."""
    return await _create(call, V1_TIMEOUT_S)


async def create_v2(call: E2bCall) -> Response:
    return await _create(call, TIMEOUT_S)


async def _create(call: E2bCall, default_timeout_s: int) -> Response:
    wish = await read_wish(call, await call.body(), default_timeout_s=default_timeout_s)
    info = await make(call, wish, call.request.headers.get("idempotency-key"))
    return answer(opened(call, _named(call, info)), 201)


async def make(call: E2bCall, wish: Wish, key: str | None = None) -> SandboxInfo:
    """A sandbox with a lease, whose time begins when it runs."""

    def begin(spec: SandboxSpec, take: Beside) -> Awaitable[SandboxInfo]:
        return call.control.creation.create(call.caller, spec, idempotency_key=key, beside=take)

    return await _make(call, wish, begin, None if key is None else f"{call.caller.token_id} {key}")


async def _make(
    call: E2bCall, wish: Wish, begin: Callable[[SandboxSpec, Beside], Awaitable[SandboxInfo]], again: str | None = None
) -> SandboxInfo:
    """What *begin* makes, with its lease on record from when it is. With *again* its profile is called the same again."""
    control, begun = call.control, None  # stays so where one was made under this key before
    spec, terms, network = wish.spec, wish.terms.model_copy(update={"network": None}), None
    if terms.egress is not None:
        network = await control.lease_networks.open(terms.egress, again)
        spec, terms = spec.model_copy(update={"network": network}), terms.model_copy(update={"network": network})

    def take(sandbox_id: str, connection: Any) -> None:
        nonlocal begun
        begun = control.clock()
        # From now on there is an end to it, even if this server ends before it is made.
        ends_at = begun + timedelta(seconds=wish.timeout_s)
        control.leases.take(sandbox_id, call.caller, ends_at, _with_own(terms, sandbox_id), connection)

    try:
        info = await begin(spec, take)
    except BaseException:
        if network is not None:
            control.lease_networks.drop(network)
        raise
    now, lease = control.clock(), control.leases.find(info.sandbox_id)
    if lease is not None and begun is not None:
        if now - begun > TOLD_EXACTLY:
            lease = control.leases.set_end(lease, now + timedelta(seconds=wish.timeout_s), call.caller)
        if network is not None:
            control.lease_networks.made(network, lease)
    return info


def _with_own(terms: LeaseTerms, sandbox_id: str) -> LeaseTerms:
    """With the variables by which programs know where they are."""
    own = {"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": sandbox_id.removeprefix("sbx_")}
    return terms.model_copy(update={"environment": {**terms.environment, **own}})


async def connect(call: E2bCall) -> Response:
    """One that runs is given more time, never less; one that is paused goes on. What has no end is given none: SDKs send a
    timeout also where their caller names none."""
    body = await call.body()
    named = find_named(call)
    resumed = await _go_on(call, named)
    timeout_s = read_timeout(body.get("timeout"), TIMEOUT_S)
    named = _named(call, call.control.sandboxes.find(named.info.sandbox_id))
    if not may(call.caller, "sandbox.extend"):  # it is used as long as others let it run
        return answer(opened(call, named), 201 if resumed else 200)
    named = _leased(call, named)
    assert named.lease is not None
    ends_at = call.control.clock() + timedelta(seconds=timeout_s)
    if named.lease.ends_at is not None and (resumed or ends_at > named.lease.ends_at):
        named = named._replace(lease=call.control.leases.set_end(named.lease, ends_at, call.caller))
    return answer(opened(call, named), 201 if resumed else 200)


async def resume(call: E2bCall) -> Response:
    """As old SDKs do. Raises WrongState: it runs."""
    body = await call.body()
    named = find_named(call)
    if named.state == RUNNING:
        raise WrongState("the sandbox is already running", hint="connect to it")
    await _go_on(call, named)
    named = _leased(call, _named(call, call.control.sandboxes.find(named.info.sandbox_id)))
    assert named.lease is not None
    if "autoPause" in body:
        at_end = "pause" if body["autoPause"] else "terminate"
        terms = named.lease.terms.model_copy(update={"at_end": at_end})
        named = named._replace(lease=call.control.leases.set_terms(named.lease, terms, call.caller))
    _end_in(call, named, read_timeout(body.get("timeout"), V1_TIMEOUT_S))
    return answer(opened(call, named), 201)


async def _go_on(call: E2bCall, named: Named) -> bool:
    """Whether it was paused. What stands between two states is waited for."""
    if named.info.state.state not in ("paused", "stopped", "pausing", "resuming"):
        return False
    if (
        named.lease is not None and named.lease.ends_at is not None
    ):  # or the timer of one that is over would act at once
        _end_in(call, named, named.terms.resume_s)
    await call.control.lifecycle.resume(call.caller, named.info.sandbox_id)
    return True


async def get(call: E2bCall) -> Response:
    return answer(shown_whole(call, find_named(call)))


async def list_running(call: E2bCall) -> Response:
    """As SDKs of 1.x do: those that run, without pages."""
    wanted = _metadata(call.query("metadata"))
    found = [one for one in _leased_ones(call) if one.state == RUNNING and _has(one, wanted)]
    return answer([shown(call, one) for one in found])


async def list_all(call: E2bCall) -> Response:
    """Those that were made through E2B, running and paused ones unless a state is asked for, newest first."""
    states = {part for text in call.request.query_params.getlist("state") for part in text.split(",") if part}
    if not states <= {RUNNING, PAUSED}:
        raise InvalidArgument("`state` is `running`, `paused` or both", argument="state")
    wanted, page, order = _metadata(call.query("metadata")), read_page(call), call.query("order") or "desc"
    if order not in ("asc", "desc"):
        raise InvalidArgument("`order` is `asc` or `desc`", argument="order")
    since, template = _moment(call.query("startedAfter")), call.query("template")
    everyone = [one for one in _leased_ones(call) if _has(one, wanted)]
    found = [
        one
        for one in everyone
        if (not states or one.state in states)
        and (since is None or one.info.created_at >= since)
        and (template is None or template in (one.terms.asked.get("templateID"), one.terms.asked.get("alias")))
    ]
    found.sort(key=_place, reverse=order == "desc")
    listed, headers = next_page(found, page, _place, descending=order == "desc")
    running = sum(one.state == RUNNING for one in everyone)
    return answer([shown(call, one) for one in listed], headers={**headers, "X-Total-Running": str(running)})


async def kill(call: E2bCall) -> Response:
    """With all that is in it: E2B knows of no work that would be lost."""
    named = find_named(call)
    await call.control.endings.terminate(call.caller, named.info.sandbox_id, discard=True)
    return no_content()


async def set_timeout(call: E2bCall) -> Response:
    """From now on, also less than it had. Raises WrongState for a paused one, whose time stands: SDKs before 2.10 resume it
    when they are told so."""
    body = await call.body()
    named = find_named(call)
    if body.get("timeout") is None:
        raise InvalidArgument("`timeout` is missing", argument="timeout")
    if named.state == PAUSED:
        raise WrongState("the sandbox is paused, so its time does not run", hint="connect to it with the new timeout")
    named = _leased(call, named)
    _end_in(call, named, read_timeout(body["timeout"], TIMEOUT_S))
    return no_content()


async def refresh(call: E2bCall) -> Response:
    """More time, never less."""
    body = await call.body()
    named = _leased(call, find_named(call))
    ends_at = call.control.clock() + timedelta(seconds=read_timeout(body.get("duration"), 60))
    assert named.lease is not None
    if named.lease.ends_at is not None and ends_at > named.lease.ends_at:
        call.control.leases.set_end(named.lease, ends_at, call.caller)
    return no_content()


async def pause(call: E2bCall) -> Response:
    """With its memory, or with `memory: false` its files alone. Where this machine cannot keep memory it is its files as well, and
    a header names what was lost. Raises WrongState: it is paused, which SDKs expect as 409, and take nothing else for."""
    body = await call.body()
    named = find_named(call)
    if named.state == PAUSED:
        raise WrongState("the sandbox is already paused", hint="connect to it to have it go on")
    sandbox_id, lifecycle = named.info.sandbox_id, call.control.lifecycle
    try:
        try:
            await lifecycle.pause(call.caller, sandbox_id, "files" if body.get("memory") is False else "memory")
        except PauseKindUnsupported:
            ended = await lifecycle.pause(call.caller, sandbox_id, "files")
            lost = "; ".join(one.what for one in ended.lost)
            return no_content({LOST: lost.encode("ascii", "replace").decode()} if lost else {})
    except WrongState as error:
        return answer({**error_of(error), "code": 400}, 400)
    return no_content()


async def set_network(call: E2bCall) -> Response:
    """What it reaches from now on, in place of all that was said before; also for connections that are open."""
    body = await call.body()
    egress = read_egress(body, is_update=True)
    named = _leased(call, find_named(call))
    assert named.lease is not None
    if "allowPublicTraffic" in body:
        raise refuse_field(
            "allowPublicTraffic",
            "who may visit its ports is said at its creation",
            "leave it out, or create another one",
        )
    wanted = egress.lease or LeaseEgress()
    await call.control.lease_networks.change(named.lease, named.info, wanted, call.caller, network=egress.told)
    return no_content()


async def fork(call: E2bCall) -> Response:
    """New ones whose files begin as those of this one are now. It goes on; no process of it goes along."""
    body = await call.body()
    named = find_named(call)
    count, timeout_s = body.get("count", 1), read_timeout(body.get("timeout"), V1_TIMEOUT_S)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_FORKS:
        raise InvalidArgument(f"`count` is a whole number from 1 to {MOST_FORKS}", argument="count")
    source = named.info.spec
    spec = SandboxSpec.model_validate(
        {
            "background": True,
            "template": source.template,
            "limits": source.limits,
            "on_timeout": "terminate",
            "on_missing": call.on_missing,
        }
    )
    results: list[dict[str, Any]] = []
    for number in range(count):
        try:
            made = await _fork_one(call, named, spec, timeout_s)
        except ColdframeError as error:
            if number == 0 and not isinstance(error, LimitReached):
                raise  # so would all others
            results.append({"error": error_of(error)})
            continue
        spec = spec.model_copy(update={"snapshot": made.spec.snapshot})  # all of them begin as the same moment
        results.append({"sandbox": opened(call, _named(call, made))})
    return answer(results, 201)


async def _fork_one(call: E2bCall, source: Named, spec: SandboxSpec, timeout_s: float) -> SandboxInfo:
    """With what its source reaches, and no more."""

    def begin(spec: SandboxSpec, take: Beside) -> Awaitable[SandboxInfo]:
        if spec.snapshot is None:
            return call.control.forks.fork(call.caller, source.info.sandbox_id, spec, beside=take)
        return call.control.creation.create(call.caller, spec, beside=take)

    spec = spec.model_copy(update={"network": source.info.spec.network})
    return await _make(call, Wish(spec, source.terms, timeout_s), begin)


def _named(call: E2bCall, info: SandboxInfo) -> Named:
    return Named(info, call.control.leases.find(info.sandbox_id))


def _leased(call: E2bCall, named: Named) -> Named:
    """With a lease: one that was made in other ways goes on until somebody ends it, unless a time is asked for."""
    if named.lease is not None:
        return named
    terms = LeaseTerms(at_end="stop" if named.info.agent_id is not None else "pause")
    return named._replace(lease=call.control.leases.take(named.info.sandbox_id, call.caller, None, terms))


def _end_in(call: E2bCall, named: Named, timeout_s: float) -> Lease:
    assert named.lease is not None
    lease = call.control.leases.find(named.info.sandbox_id) or named.lease
    return call.control.leases.set_end(lease, call.control.clock() + timedelta(seconds=timeout_s), call.caller)


def _leased_ones(call: E2bCall) -> list[Named]:
    """Those of the caller that were made through E2B and have not ended, oldest first."""
    found = []
    for lease in call.control.leases.living():
        with contextlib.suppress(NotFound):
            info = call.control.sandboxes.get(call.caller, lease.sandbox_id)
            if info.state.state in STATES:
                found.append(Named(info, lease))
    return found


def _place(named: Named) -> Place:
    """Where it stands in lists."""
    return format_time(named.info.created_at), named.info.sandbox_id


def _has(named: Named, wanted: dict[str, str]) -> bool:
    return wanted.items() <= named.terms.metadata.items()


def _metadata(text: str | None) -> dict[str, str]:
    """Names and values are encoded one by one, then as a query, and that as a value of the query."""
    if not text:
        return {}
    return {unquote(name): unquote(value) for name, value in parse_qsl(text, keep_blank_values=True)}


def _moment(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise InvalidArgument("`startedAfter` is a time in ISO 8601, with its zone", argument="startedAfter")
    return found


_ONE = "/sandboxes/{sandbox_id}"
ROUTES = (
    E2bRoute("POST", "/sandboxes", create),
    E2bRoute("POST", "/v2/sandboxes", create_v2),
    E2bRoute("GET", "/sandboxes", list_running),
    E2bRoute("GET", "/v2/sandboxes", list_all),
    E2bRoute("GET", _ONE, get),
    E2bRoute("DELETE", _ONE, kill),
    E2bRoute("POST", f"{_ONE}/connect", connect),
    E2bRoute("POST", f"/v2{_ONE}/connect", connect),
    E2bRoute("POST", f"{_ONE}/resume", resume),
    E2bRoute("POST", f"{_ONE}/timeout", set_timeout),
    E2bRoute("POST", f"{_ONE}/refreshes", refresh),
    E2bRoute("POST", f"{_ONE}/pause", pause),
    E2bRoute("POST", f"{_ONE}/fork", fork),
    E2bRoute("PUT", f"{_ONE}/network", set_network),
)
