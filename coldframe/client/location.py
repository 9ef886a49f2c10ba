"""Where the installation is: its data directory, and the address and token it left for local clients.

The order of a client's sources: arguments, `COLDFRAME_URL` and `COLDFRAME_TOKEN`, then
`~/.config/coldframe/client.json`, then the file that `coldframe up` leaves for the user it runs for.
"""

import json
import os
from typing import NamedTuple

DEFAULT_URL = "http://127.0.0.1:4560"
CLIENT_FILE = os.path.join("control", "client.json")
"""Below the data directory, mode 0600: `{"url": …, "token": …}`."""


class Location(NamedTuple):
    url: str
    token: str | None
    source: str
    """Where the address came from, for messages."""


def default_data_dir() -> str:
    """`COLDFRAME_DATA_DIR`, else /var/lib/coldframe for root and ~/.local/share/coldframe for anybody else."""
    chosen = os.environ.get("COLDFRAME_DATA_DIR")
    if chosen:
        return os.path.abspath(chosen)
    if os.geteuid() == 0:
        return "/var/lib/coldframe"
    home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return os.path.join(home, "coldframe")


def find_location(url: str | None, token: str | None, *, data_dir: str | None = None) -> Location:
    """Fill in what the caller left out. A token found in a file is only used for the address in the same file."""
    url = url or os.environ.get("COLDFRAME_URL")
    token = token or os.environ.get("COLDFRAME_TOKEN")
    if url and token:
        return Location(url.rstrip("/"), token, "arguments or environment")
    config_home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    for path in (
        os.path.join(config_home, "coldframe", "client.json"),
        os.path.join(data_dir or default_data_dir(), CLIENT_FILE),
    ):
        found = _read(path)
        if found is not None and (url is None or url.rstrip("/") == found.url):
            return Location(found.url, token or found.token, path)
    return Location((url or DEFAULT_URL).rstrip("/"), token, "environment" if url else "default")


def _read(path: str) -> Location | None:
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        return Location(str(content["url"]).rstrip("/"), str(content["token"]), path)
    except (OSError, ValueError, KeyError, TypeError):
        return None
