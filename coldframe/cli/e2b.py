"""`coldframe e2b`: what programs written for E2B need to run here."""

import contextlib
import json
import os
import shlex
import ssl
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from coldframe.cli.output import Chosen, note, show_json

if TYPE_CHECKING:
    from coldframe.client.sync import SyncColdframe

app = typer.Typer(help="Run programs written for E2B, with its own SDKs (docs/e2b.md).", no_args_is_help=True)
_KEYS, _AUTHORITY, _BUNDLE = "e2b.json", "edge-authority.pem", "edge-bundle.pem"
_ROOTS = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


@app.command("env")
def env(
    *,
    mode: Annotated[
        str,
        typer.Option(
            metavar="url|domain",
            help="url: plain HTTP, by one address. domain: TLS, by names below a domain, which all have to lead here.",
        ),
    ] = "url",
    domain: Annotated[
        str | None, typer.Option(help="For mode domain; by default the first of the setting `edge_domains`.")
    ] = None,
    role: Annotated[
        str,
        typer.Option(help="Of the key, if one is made: member, or admin, which may choose a network for a sandbox."),
    ] = "member",
    anew: Annotated[bool, typer.Option("--new-key", help="Make another key, also if there is one that works.")] = False,
) -> None:
    """Print the variables by which SDKs of E2B find this installation, to be taken in by `eval "$(coldframe e2b env)"`.

    The key and the certificates are kept in the configuration directory of this user, and used again.
    """
    from coldframe.cli.connection import connect
    from coldframe.contract.errors import InvalidArgument

    if mode not in ("url", "domain"):
        raise InvalidArgument(f"`{mode}` is no mode", hint="give url or domain", argument="mode")
    with connect() as client:
        edge = client.edge()
        host = urlsplit(client.url).hostname or "localhost"
        key = _key(client, role, anew=anew)
        if not {one.name for one in client.templates.list()} & {"base", "code"}:
            note(
                "no template `base` is built: sandboxes have the system of this machine, read-only, and no templates can be built "
                "by E2B; `coldframe setup --template base` makes it, once"
            )
    variables = {"E2B_API_KEY": key}
    if mode == "url":
        host = "localhost" if host in ("127.0.0.1", "::1") else f"[{host}]" if ":" in host else host
        address = f"http://{host}:{edge.port}"
        variables |= {"E2B_API_URL": address, "E2B_SANDBOX_URL": address}
    else:
        names = [*(one for one in edge.domains if one != "localhost"), "localhost"]
        chosen = domain or names[0]
        if chosen not in names:
            raise InvalidArgument(
                f"`{chosen}` is no domain of this installation",
                hint="name one whose every name leads to this machine in the setting `edge_domains`, and start it again",
                argument="domain",
            )
        if chosen == "localhost":
            note(
                "names below localhost are found by Python SDKs from 2.38; for others, name a domain in `edge_domains`"
            )
        authority, bundle = _write_certificates(edge.certificate)
        variables |= {"E2B_DOMAIN": f"{chosen}:{edge.port}", "SSL_CERT_FILE": bundle, "NODE_EXTRA_CA_CERTS": authority}
    if Chosen.as_json:
        show_json(variables)
        return
    for name, value in variables.items():
        typer.echo(f"export {name}={shlex.quote(value)}")


def _key(client: "SyncColdframe", role: str, *, anew: bool) -> str:
    """The one that is kept for this server, if it is still let in; else a new one, which is kept."""
    kept: dict[str, dict[str, str]] = {}
    with contextlib.suppress(OSError, ValueError):
        with open(_path(_KEYS), encoding="utf-8") as file:
            found = json.load(file)
        kept = found if isinstance(found, dict) else {}
    mine = kept.get(client.url)
    if isinstance(mine, dict) and not anew:
        living = {one.token_id for one in client.tokens.list() if one.revoked_at is None and one.expires_at is None}
        if mine.get("token_id") in living and isinstance(mine.get("key"), str):
            return mine["key"]
    key, info = client.tokens.create(role, "e2b", form="e2b")
    kept[client.url] = {"key": key, "token_id": info.token_id}
    _write(_KEYS, json.dumps(kept).encode(), 0o600)
    note(f"made the key {info.token_id}, of role {info.role}; `coldframe token revoke` makes it worthless")
    return key


def _write_certificates(certificate: str) -> tuple[str, str]:
    """That of our authority alone, and beside those that are trusted anyway: `SSL_CERT_FILE` takes the place of these."""
    roots = b""
    for path in (ssl.get_default_verify_paths().cafile, *_ROOTS):
        if path and os.path.isfile(path):
            with open(path, "rb") as file:
                roots = file.read()
            break
    own = certificate.encode()
    return _write(_AUTHORITY, own, 0o644), _write(_BUNDLE, roots.rstrip() + b"\n" + own, 0o644)


def _path(name: str) -> str:
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(home, "coldframe", name)


def _write(name: str, content: bytes, mode: int) -> str:
    path = _path(name)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    descriptor = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)
    os.rename(path + ".new", path)
    return path
