"""What a cell shows: given on as it is, or kept as a file of the workspace where it is large."""

import base64
import binascii
import hashlib
import json
import os
from typing import Any

FOLDER = "results"
"""In the workspace."""
SHOWN_CHARACTERS = 20_000
"""Of a text that is kept as a file: so much of its beginning is shown beside that."""
ENDINGS = {
    "text/plain": "txt",
    "text/html": "html",
    "text/markdown": "md",
    "text/latex": "tex",
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/svg+xml": "svg",
    "application/pdf": "pdf",
    "application/json": "json",
    "application/javascript": "js",
    "e2b/data": "json",
    "e2b/chart": "json",
}
BINARY = ("image/png", "image/jpeg", "image/gif", "application/pdf")
"""Base64 in Jupyter's messages, and bytes in a file."""


class Results:
    """Of one cell."""

    def __init__(self, cell_id: str, inline_bytes: int) -> None:
        self._cell_id = cell_id
        self._inline_bytes = inline_bytes
        self._count = 0

    def take(self, bundle: dict[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]], dict[str, int]]:
        """What is shown, the files of what is too large for that, and of texts that are cut their whole length."""
        data: dict[str, Any] = {}
        artifacts: dict[str, dict[str, Any]] = {}
        clipped: dict[str, int] = {}
        for kind, value in bundle.items():
            text = value if isinstance(value, str) else json.dumps(value)
            if len(text) <= self._inline_bytes:
                data[kind] = value
                continue
            artifacts[kind] = self._keep(kind, text)
            if isinstance(value, str) and kind.startswith("text/"):
                data[kind], clipped[kind] = value[:SHOWN_CHARACTERS], len(value)
        return data, artifacts, clipped

    def _keep(self, kind: str, text: str) -> dict[str, Any]:
        content = text.encode("utf-8", "replace")
        if kind in BINARY:
            try:
                content = base64.b64decode("".join(text.split()), validate=True)
            except (binascii.Error, ValueError):
                pass  # then it is no such thing, and kept as it came
        self._count += 1
        name = f"{self._cell_id}-{self._count}.{ENDINGS.get(kind, 'bin')}"
        told = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        try:
            folder = os.path.join(os.environ.get("HOME", "/home/user"), FOLDER)
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, name), "xb") as file:
                file.write(content)
        except OSError as error:
            return {"path": None, "problem": str(error.strerror).lower(), **told}
        return {"path": f"{FOLDER}/{name}", "problem": None, **told}
