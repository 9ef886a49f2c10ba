"""Any path of the fake: what lies below /home/user is its workspace, and the rest a directory beside it.

Done by the very functions of the guest, as whoever runs the tests. There is no root, and nothing is watched.
"""

import os
from collections.abc import Callable
from typing import Any

from coldframe.contract.errors import WrongState, from_wire
from coldframe.contract.files import WriteAnswer
from coldframe.contract.paths import (
    EndWatch,
    ListPath,
    MakePath,
    MovePath,
    ReadPath,
    ReadWatch,
    RemoveBoxPath,
    StatPath,
    WatchPath,
    WritePath,
)
from coldframe.guest.box_paths import write_path
from coldframe.guest.paths import BoxRoot
from coldframe.guest.verbs import VERBS, Failure
from coldframe.host.box import answer_model, parse_answer

HOME = "/home/user"


def ask_path(workspace: str, request: Any) -> Any:
    """Answer one of these requests. The rest of the box is a directory of the same name with `-rest`."""
    rest = workspace + "-rest"
    os.makedirs(rest, exist_ok=True)
    fields = request.model_dump(mode="python", exclude={"verb", "user", "content"})
    in_workspace = request.path == HOME or request.path.startswith(HOME + "/")
    root = workspace if in_workspace else rest
    for name in ("path", "target"):
        if in_workspace and isinstance(fields.get(name), str):
            fields[name] = fields[name].removeprefix(HOME) or "/"
    held, here = BoxRoot(os.open(root, os.O_PATH | os.O_DIRECTORY)), os.getcwd()
    content = getattr(request, "content", b"")
    try:
        function = write_path if isinstance(request, WritePath) else VERBS[request.verb].function
        answer, body = function(held, fields, content)
    except Failure as failure:
        raise from_wire({"code": failure.code, "message": failure.message, "facts": failure.facts}) from None
    finally:
        os.close(held)
        os.chdir(here)  # a keeper's is the root of its box
    return parse_answer(answer_model(type(request)), _as_in_the_box(answer) if in_workspace else answer, body)


def write_content(workspace: str, request: WritePath, content: bytes) -> WriteAnswer:
    answer: WriteAnswer = ask_path(workspace, request.model_copy(update={"content": content}))
    return answer


def _as_in_the_box(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {
            name: HOME + value.rstrip("/")
            if name in ("path", "leads_to") and isinstance(value, str)
            else _as_in_the_box(value)
            for name, value in answer.items()
        }
    return [_as_in_the_box(one) for one in answer] if isinstance(answer, list) else answer


def _no_watch(_: str, __: Any) -> Any:
    raise WrongState("the fake watches nothing")


PATH_VERBS: dict[type[Any], Callable[[str, Any], Any]] = {
    **dict.fromkeys((StatPath, ListPath, ReadPath, WritePath, MakePath, MovePath, RemoveBoxPath), ask_path),
    **dict.fromkeys((WatchPath, ReadWatch, EndWatch), _no_watch),
}
