"""Addresses of resources: `coldframe://sandboxes/ID/…` and `coldframe://receipts/ID`."""

from typing import NamedTuple
from urllib.parse import quote, unquote

SCHEME = "coldframe://"
MAX_URI_CHARACTERS = 20_000


class Place(NamedTuple):
    """A resource: its kind, and the ids and path in its address."""

    kind: str
    of: str = ""
    """The sandbox, or the receipt."""
    name: str = ""
    """A path, or a command."""


def contract_uri(sandbox_id: str) -> str:
    return f"{SCHEME}sandboxes/{sandbox_id}/contract"


def files_uri(sandbox_id: str, path: str) -> str:
    return f"{SCHEME}sandboxes/{sandbox_id}/files/{quote(path)}"


def command_uri(sandbox_id: str, command_id: str, part: str = "") -> str:
    return f"{SCHEME}sandboxes/{sandbox_id}/commands/{command_id}" + (f"/{part}" if part else "")


def read_uri(uri: str) -> Place | None:
    """What *uri* names; None if it is no address of ours. Nothing is looked up."""
    if not uri.startswith(SCHEME) or len(uri) > MAX_URI_CHARACTERS:
        return None
    first, _, rest = uri.removeprefix(SCHEME).partition("/")
    if first == "sandboxes" and not rest:
        return Place("sandboxes")
    if first == "receipts" and rest and "/" not in rest:
        return Place("receipt", unquote(rest))
    if first != "sandboxes":
        return None
    sandbox_id, _, below = rest.partition("/")
    sandbox_id = unquote(sandbox_id)
    part, _, name = below.partition("/")
    if part == "files":
        return Place("file", sandbox_id, unquote(name))
    if part == "commands":
        command_id, _, stream = name.partition("/")
        if not command_id:
            return Place("commands", sandbox_id)
        kind = {"": "command", "stdout": "stdout", "stderr": "stderr"}.get(stream)
        return None if kind is None else Place(kind, sandbox_id, unquote(command_id))
    if name or part not in ("", "contract", "network"):
        return None
    return Place(part or "sandbox", sandbox_id)


TEMPLATES: tuple[tuple[str, str, str, str | None], ...] = (
    ("sandbox", "sandboxes/{sandbox_id}", "A sandbox as it is now.", "application/json"),
    (
        "contract",
        "sandboxes/{sandbox_id}/contract",
        "Contract of a sandbox: inputs, what is enforced and by what, outputs, what remains at the end.",
        "application/json",
    ),
    ("file", "sandboxes/{sandbox_id}/files/{+path}", "A file of the workspace, or the list of a folder.", None),
    ("commands", "sandboxes/{sandbox_id}/commands", "Commands of a sandbox, oldest first.", "application/json"),
    (
        "command",
        "sandboxes/{sandbox_id}/commands/{command_id}",
        "State and result of a command. Subscribe to it to be told of its end.",
        "application/json",
    ),
    ("stdout", "sandboxes/{sandbox_id}/commands/{command_id}/stdout", "What a command printed.", None),
    ("stderr", "sandboxes/{sandbox_id}/commands/{command_id}/stderr", "What a command printed as errors.", None),
    ("network", "sandboxes/{sandbox_id}/network", "Whom a sandbox reached and tried to reach.", "application/json"),
    (
        "receipt",
        "receipts/{receipt_id}",
        "Evidence of a call: what was asked, decided and done, with digests, as the ledger has it.",
        "application/json",
    ),
)
"""Name, address behind the scheme, description and type of each kind."""
