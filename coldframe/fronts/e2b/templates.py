"""Templates of the control API of E2B: builds, names, tags. What they come to is a template like any other.

A build comes in four requests: it is announced, its files are sent to links that hold by themselves, its steps are said, and its
state is asked for until it is over.
"""

import re
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from coldframe.contract.errors import InvalidArgument, NotFound, Refused
from coldframe.contract.template import BuildInfo, BuildRequest, Recipe, TemplateRecord
from coldframe.control.announced_builds import Announced
from coldframe.control.control import Control
from coldframe.control.template_archives import Archive
from coldframe.control.template_builds import MOST_LOOKED
from coldframe.fronts.answers import NO_SNIFF, json_response
from coldframe.fronts.e2b.routes import E2bRoute, OpenRoute, with_request
from coldframe.fronts.e2b.template_bodies import (
    DEFAULT_CPUS,
    DEFAULT_MEMORY_MIB,
    STATES,
    build_body,
    build_id_of,
    log_body,
    reason_body,
    template_body,
    told_time,
    uuid_of,
    version_body,
)
from coldframe.fronts.e2b.template_names import (
    DEFAULT_TAG,
    STAND_INS,
    Named,
    find_image,
    find_template,
    id_of,
    known_names,
    name_of,
    read_name,
    read_tag,
)
from coldframe.fronts.e2b.template_recipes import invalid_recipe, keys_of, read_build
from coldframe.fronts.rest.request import caller_of, control_of, number_of
from coldframe.fronts.streams import SMALL_BODY_CAP_BYTES, read_object

MOST_ENTRIES = 100
"""Of a log in one answer, as SDKs expect."""
MOST_LISTED = 100
MOST_CPUS, MOST_MEMORY_MIB = 1024, 1_048_576
_KEY = re.compile(r"[0-9a-f]{64}")


async def announce_build(request: Request) -> Response:
    """POST /v3/templates, and /v2/templates with `alias` for `name`."""
    body = await read_object(request, SMALL_BODY_CAP_BYTES)
    named = read_name(_text(body.get("name") or body.get("alias"), "name"))
    wanted = [read_tag(_text(one, "tags")) for one in _list(body.get("tags"), "tags")]
    if named.tag is not None:
        wanted.insert(0, named.tag)
    wanted = list(dict.fromkeys(wanted)) or [DEFAULT_TAG]
    announced = control_of(request).announced_builds.announce(
        caller_of(request),
        named.name,
        wanted,
        cpus=_number(body, "cpuCount", DEFAULT_CPUS, MOST_CPUS),
        memory_mib=_number(body, "memoryMB", DEFAULT_MEMORY_MIB, MOST_MEMORY_MIB),
    )
    told = {
        "templateID": id_of(named.name),
        "buildID": uuid_of(announced.build_id),
        "public": False,
        "names": [named.name],
        "tags": wanted,
        "aliases": [named.name],
    }
    return json_response(told, 202)


async def find_files(request: Request) -> Response:
    """GET /templates/{id}/files/{hash}: whether they are here, and where to send them."""
    control, caller = control_of(request), caller_of(request)
    name, key = await _name(request), _key(request)
    found = await control.template_archives.find(caller, name, key)
    secret = control.template_archives.link(caller, name, key)
    host = request.headers.get("host", "")
    path = f"/templates/{id_of(name)}/files/{key}"
    url = f"{request.url.scheme}://{host}{path}?token={quote(secret)}"
    return json_response({"present": found is not None, "url": url}, 201)


async def send_files(control: Control, request: Request, values: dict[str, str]) -> Response:
    """PUT to such a link. It comes without a key: the link says whose it is."""
    secret = request.query_params.get("token", "")
    await control.template_archives.receive(secret, _checked_key(values["hash"]), request.stream())
    return Response(status_code=200, headers=NO_SNIFF)


async def begin_build(request: Request) -> Response:
    """POST /v2/templates/{id}/builds/{build}"""
    control, caller = control_of(request), caller_of(request)
    announced = await _announced(request)
    body = await read_object(request, SMALL_BODY_CAP_BYTES)
    archives: dict[str, Archive] = {}
    for key in dict.fromkeys(keys_of(body)):
        found = await control.template_archives.find(caller, announced.name, key) if _KEY.fullmatch(key) else None
        if found is not None:
            archives[key] = found
    built = read_build(body, archives)
    notes: tuple[str, ...] = ()
    if built.from_image is not None:
        stand = await find_image(control, caller, built.from_image)
        base, notes = stand.ref, (stand.note,)
    else:
        base = await find_template(control, caller, built.from_template or "")
    try:
        recipe = Recipe(
            name=announced.name,
            version=announced.build_id.removeprefix("bld_"),
            base=base,
            steps=built.steps,
            start=built.start,
            home=True,
        )
    except ValidationError as error:
        raise invalid_recipe(error) from None
    wanted = BuildRequest(recipe=recipe, no_cache=built.no_cache, notes=notes)
    await control.announced_builds.begin(caller, announced.build_id, wanted, built.numbers)
    return Response(status_code=202, headers=NO_SNIFF)


async def tell_status(request: Request) -> Response:
    """GET /templates/{id}/builds/{build}/status"""
    announced = await _announced(request)
    offset = max(0, number_of(request, "logsOffset", 0) or 0)
    limit = min(MOST_ENTRIES, max(0, number_of(request, "limit", MOST_ENTRIES) or 0))
    told: dict[str, Any] = {
        "templateID": id_of(announced.name),
        "buildID": uuid_of(announced.build_id),
        "status": "waiting",
        "logs": [],
        "logEntries": [],
    }
    if announced.steps is not None:
        page = await control_of(request).template_builds.log(
            caller_of(request), announced.build_id, after_seq=offset, limit=limit
        )
        told["status"] = STATES[page.build.state]
        level = request.query_params.get("level")
        entries = [log_body(entry, announced.steps) for entry in page.entries]
        told["logEntries"] = [one for one in entries if _is_told(one, level)]
        told["logs"] = [f"{one['message']}\n" for one in told["logEntries"]]
        if (reason := reason_body(page.build, announced.steps)) is not None:
            told["reason"] = reason
    return json_response(told)


async def tell_logs(request: Request) -> Response:
    """GET /templates/{id}/builds/{build}/logs: from the beginning, or from the end with `direction=backward`."""
    announced = await _announced(request)
    limit = min(MOST_ENTRIES, max(0, number_of(request, "limit", MOST_ENTRIES) or 0))
    cursor = number_of(request, "cursor", None)
    backward = request.query_params.get("direction") == "backward"
    found: list[dict[str, Any]] = []
    if announced.steps is not None and limit:
        builds, caller = control_of(request).template_builds, caller_of(request)
        after = 0
        while True:
            page = await builds.log(caller, announced.build_id, after_seq=after, limit=MOST_LOOKED)
            for entry in page.entries:
                if cursor is not None:
                    at_ms = entry.at.timestamp() * 1000
                    if at_ms > cursor if backward else at_ms < cursor:
                        continue
                body = log_body(entry, announced.steps)
                if _is_told(body, request.query_params.get("level")):
                    found.append(body)
            found = found[-limit:] if backward else found[:limit]
            if not page.entries or (not backward and len(found) == limit):
                break
            after = page.entries[-1].seq
    return json_response({"logs": found[::-1] if backward else found})


async def list_templates(request: Request) -> Response:
    """GET /templates and /v2/templates"""
    control, caller = control_of(request), caller_of(request)
    of_name: dict[str, list[TemplateRecord]] = {}
    for one in await control.templates.list(caller):
        of_name.setdefault(one.name, []).append(one)
    told = [_template(request, versions) for versions in of_name.values()]
    if not request.url.path.startswith("/v2/"):
        return json_response(told)
    first = max(0, number_of(request, "nextToken", 0) or 0)
    last = first + min(MOST_LISTED, max(1, number_of(request, "limit", MOST_LISTED) or 1))
    answer = json_response(told[first:last])
    if last < len(told):
        answer.headers["X-Next-Token"] = str(last)
    return answer


async def list_default_templates(request: Request) -> Response:
    """GET /default-templates: those that come with the product, as far as they are built."""
    control, caller = control_of(request), caller_of(request)
    told = []
    for name in ("debian", "code", "python", "node"):
        if versions := await control.templates.list(caller, name=name):
            told.append(_template(request, versions))
    return json_response(told)


async def get_template(request: Request) -> Response:
    """GET /templates/{id}, with its builds"""
    control, caller = control_of(request), caller_of(request)
    name = await _name(request)
    versions = await control.templates.list(caller, name=name)
    announced = control.announced_builds.of(caller, name)
    if not versions and not announced:
        raise NotFound(f"no template `{name}`", template=name)
    told = [version_body(one, control.announced_builds.sizes(one.build_id)) for one in versions]
    whole = {one.build_id for one in versions}
    for one in [one for one in announced if one.build_id not in whole][: max(0, MOST_LISTED - len(told))]:
        told.append(build_body(one, await _info(request, one)))
    times = [one.created_at for one in versions] or [one.at for one in announced]
    body = {
        "templateID": id_of(name),
        "public": False,
        "aliases": [name],
        "names": [name],
        "createdAt": told_time(min(times)),
        "updatedAt": told_time(max(times)),
        "lastSpawnedAt": None,
        "spawnCount": _used(request, versions),
        "builds": told[:MOST_LISTED],
    }
    return json_response(body)


async def find_alias(request: Request) -> Response:
    """GET /templates/aliases/{alias}: whether there is one."""
    alias = request.path_params["alias"]
    if alias in STAND_INS:  # something stands for it also before a template is built
        return json_response({"templateID": id_of(alias), "public": False})
    ref = await find_template(control_of(request), caller_of(request), alias)
    return json_response({"templateID": id_of(ref.partition(":")[0]), "public": False})


async def change_template(request: Request) -> Response:
    """PATCH /templates/{id}"""
    name = await _existing(request)
    body = await read_object(request, SMALL_BODY_CAP_BYTES)
    if body.get("public"):
        raise Refused(
            "templates are for whoever has a token of this installation, and for nobody else",
            hint="leave `public` out",
        )
    return json_response({"names": [name]})


async def remove_template(request: Request) -> Response:
    """DELETE /templates/{id}: all versions of the name."""
    control, caller = control_of(request), caller_of(request)
    name = await _existing(request)
    for one in await control.templates.list(caller, name=name):
        await control.templates.remove(caller, f"{one.name}:{one.version}")
    return Response(status_code=204, headers=NO_SNIFF)


# -- tags -----------------------------------------------------------------------------------------------------------------


async def assign_tags(request: Request) -> Response:
    """POST /templates/tags {target, tags}"""
    control, caller = control_of(request), caller_of(request)
    body = await read_object(request, SMALL_BODY_CAP_BYTES)
    ref = await find_template(control, caller, _text(body.get("target"), "target"))
    name = ref.partition(":")[0]
    wanted = [_tag_of(name, _text(one, "tags")) for one in _list(body.get("tags"), "tags")]
    if not wanted:
        raise InvalidArgument("no tags are named", argument="tags")
    row = await control.template_tags.assign(caller, ref, wanted)
    return json_response({"tags": wanted, "buildID": uuid_of(row.build_id, row.digest)}, 201)


async def remove_tags(request: Request) -> Response:
    """DELETE /templates/tags {name, tags}"""
    control, caller = control_of(request), caller_of(request)
    body = await read_object(request, SMALL_BODY_CAP_BYTES)
    name = await name_of(control, caller, _text(body.get("name"), "name"))
    unwanted = [_tag_of(name, _text(one, "tags")) for one in _list(body.get("tags"), "tags")]
    await control.template_tags.remove(caller, name, unwanted)
    return Response(status_code=204, headers=NO_SNIFF)


async def list_tags(request: Request) -> Response:
    """GET /templates/{id}/tags"""
    name = await _existing(request)
    told = [
        {"tag": one.tag, "buildID": uuid_of(one.build_id, one.digest), "createdAt": told_time(one.at)}
        for one in control_of(request).template_tags.list(caller_of(request), name)
    ]
    return json_response(told)


async def count_tags(request: Request) -> Response:
    """GET /templates/{id}/tags/count"""
    name = await _existing(request)
    return json_response({"total": len(control_of(request).template_tags.list(caller_of(request), name))})


async def find_tag(request: Request) -> Response:
    """GET /templates/{id}/tags/exists?tag="""
    name = await _existing(request)
    tag = _tag_of(name, request.query_params.get("tag", ""))
    there = {one.tag for one in control_of(request).template_tags.list(caller_of(request), name)}
    return json_response({"exists": tag in there, "normalizedTag": tag})


async def refuse_tag_history(request: Request) -> Response:
    """GET /templates/{id}/tags/groups and /tags/{tag}/assignments"""
    raise InvalidArgument(
        "what tags stood for before is not listed here",
        hint="`coldframe ledger` has each move, as `template.tagged` and `template.untagged`",
    )


# -- what requests say ----------------------------------------------------------------------------------------------------


async def _name(request: Request) -> str:
    return await name_of(control_of(request), caller_of(request), request.path_params["template"])


async def _existing(request: Request) -> str:
    """The same, of a template that there is. Raises NotFound."""
    name = await _name(request)
    if name not in await known_names(control_of(request), caller_of(request)):
        raise NotFound(f"no template `{name}`", template=name)
    return name


async def _announced(request: Request) -> Announced:
    name = await _name(request)
    found = control_of(request).announced_builds.get(caller_of(request), build_id_of(request.path_params["build"]))
    if found.name != name:
        raise NotFound(f"no build `{request.path_params['build'][:80]}` of `{name}`")
    return found


async def _info(request: Request, announced: Announced) -> BuildInfo | None:
    if announced.steps is None:
        return None
    return await control_of(request).template_builds.get(caller_of(request), announced.build_id)


def _template(request: Request, versions: list[TemplateRecord]) -> dict[str, Any]:
    sizes = control_of(request).announced_builds.sizes(versions[0].build_id)
    return template_body(versions, sizes, _used(request, versions))


def _used(request: Request, versions: list[TemplateRecord]) -> int:
    """How many sandboxes that are not over have it."""
    return sum(len(control_of(request).sandboxes.on_template(digest)) for digest in {one.digest for one in versions})


def _key(request: Request) -> str:
    return _checked_key(str(request.path_params["hash"]))


def _checked_key(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise InvalidArgument("the hash in the path is 64 hexadecimal digits", argument="hash")
    return key


def _tag_of(name: str, text: str) -> str:
    """A tag, alone or after the name that it is of."""
    if ":" not in text:
        return read_tag(text)
    named = read_name(text)
    if named != Named(name, named.tag) or named.tag is None:
        raise InvalidArgument(f"`{text[:100]}` is no tag of `{name}`", argument="tags")
    return named.tag


def _is_told(entry: dict[str, Any], level: str | None) -> bool:
    order = ("debug", "info", "warn", "error")
    return level not in order or order.index(entry["level"]) >= order.index(level)


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidArgument(f"`{name}` is missing, or no text", argument=name)
    return value


def _list(value: object, name: str) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > 32:
        raise InvalidArgument(f"`{name}` is no list, or has more than 32 entries", argument=name)
    return value


def _number(body: dict[str, Any], name: str, default: int, most: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
        raise InvalidArgument(f"`{name}` is no number from 1 to {most}", argument=name)
    return value


_ONE = "/templates/{template}"
_BUILD = _ONE + "/builds/{build}"
ROUTES: tuple[E2bRoute, ...] = (
    E2bRoute("POST", "/v3/templates", with_request(announce_build)),
    E2bRoute("POST", "/v2/templates", with_request(announce_build)),
    E2bRoute("GET", "/templates", with_request(list_templates)),
    E2bRoute("GET", "/v2/templates", with_request(list_templates)),
    E2bRoute("GET", "/default-templates", with_request(list_default_templates)),
    E2bRoute("POST", "/templates/tags", with_request(assign_tags)),
    E2bRoute("DELETE", "/templates/tags", with_request(remove_tags)),
    E2bRoute("GET", "/templates/aliases/{alias}", with_request(find_alias)),
    E2bRoute("GET", _ONE, with_request(get_template)),
    E2bRoute("PATCH", _ONE, with_request(change_template)),
    E2bRoute("PATCH", "/v2" + _ONE, with_request(change_template)),
    E2bRoute("DELETE", _ONE, with_request(remove_template)),
    E2bRoute("GET", _ONE + "/files/{hash}", with_request(find_files)),
    E2bRoute("POST", "/v2" + _BUILD, with_request(begin_build)),
    E2bRoute("GET", _BUILD + "/status", with_request(tell_status)),
    E2bRoute("GET", _BUILD + "/logs", with_request(tell_logs)),
    E2bRoute("GET", _ONE + "/tags", with_request(list_tags)),
    E2bRoute("GET", _ONE + "/tags/count", with_request(count_tags)),
    E2bRoute("GET", _ONE + "/tags/exists", with_request(find_tag)),
    E2bRoute("GET", _ONE + "/tags/groups", with_request(refuse_tag_history)),
    E2bRoute("GET", _ONE + "/tags/{tag}/assignments", with_request(refuse_tag_history)),
)
OPEN_ROUTES: tuple[OpenRoute, ...] = (OpenRoute("PUT", _ONE + "/files/{hash}", send_files),)
"""Those that come without a key."""
