"""Files travel as raw bytes, of any size, whole or not at all."""

import contextlib
import hashlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import (
    Conflict,
    DeniedByRule,
    FileMissing,
    InvalidArgument,
    IsDirectory,
    OutsideWorkspace,
)
from coldframe.control.partial_uploads import MOST_OF_ONE_CALLER
from coldframe.fronts.rest.files import WINDOW_BYTES
from coldframe.fronts.streams import FRAMES
from coldframe.fronts.windows import LATER_WINDOW_BYTES
from coldframe.guest.frames import Reader
from tests.fronts.served import Served


@pytest.mark.parametrize("size", [0, 1, WINDOW_BYTES, WINDOW_BYTES + 1, 13_000_000])
def test_what_goes_up_comes_down(sandbox: SyncSandbox, size: int) -> None:
    block = hashlib.sha256(str(size).encode()).digest() * 1024

    def parts() -> Iterator[bytes]:
        left = size
        while left > 0:
            yield block[:left]
            left -= len(block)

    written = sandbox.upload("data.bin", parts())
    assert written.bytes_written == size
    digest = hashlib.sha256()
    for part in sandbox.download("data.bin"):
        digest.update(part)
    assert digest.hexdigest() == written.sha256


def test_a_range_of_a_file(sandbox: SyncSandbox) -> None:
    sandbox.write_file("r", "0123456789")
    assert b"".join(sandbox.download("r", offset=2, length=3)) == b"234"
    assert b"".join(sandbox.download("r", offset=20)) == b""


@pytest.mark.parametrize("name", ["a b", "ä/ö", "q?x#y%41", "files/files/x", "-rf", "new\nline", "semi;colon", "€"])
def test_any_name_travels(sandbox: SyncSandbox, name: str) -> None:
    sandbox.upload(name, name.encode())
    assert b"".join(sandbox.download(name)) == name.encode()
    assert sandbox.read_file(name).content == name


def test_download_tells_size_version_and_label_and_is_no_page(served: Served, sandbox: SyncSandbox) -> None:
    written = sandbox.write_file("page.html", "<script>1</script>")
    status, headers, body = served.request("GET", f"/v1/sandboxes/{sandbox.id}/files/page.html")
    assert (status, body) == (200, b"<script>1</script>")
    assert headers["content-type"] == "application/octet-stream"
    assert headers["content-length"] == headers["coldframe-total-bytes"] == "18"
    assert headers["coldframe-version"] == written.version and headers["coldframe-label"] == "PUBLIC"
    assert "sandbox" in headers["content-security-policy"]


def test_every_part_of_a_download_is_in_the_ledger(served: Served, sandbox: SyncSandbox) -> None:
    size = WINDOW_BYTES + LATER_WINDOW_BYTES + 1
    sandbox.upload("big", b"x" * size)
    assert sum(map(len, sandbox.download("big"))) == size
    with served.sync_client() as client:
        kinds = [entry.body["tool"] for entry in client.ledger.entries(kinds=["call.started"], sandbox_id=sandbox.id)]
    assert kinds == ["write_file", "read_file", "read_file", "read_file"]


@pytest.mark.req("T4.17")
def test_a_download_tells_the_digest_of_each_part_or_of_all_before_it(served: Served, sandbox: SyncSandbox) -> None:
    content = os.urandom(WINDOW_BYTES) + b"end"
    sandbox.upload("big", content)
    parts = {0: content[:WINDOW_BYTES], WINDOW_BYTES: content[WINDOW_BYTES:]}
    for accept, name in ((FRAMES, "sha256"), (f"{FRAMES};digests=parts", "part_sha256")):
        _, headers, body = served.request("GET", f"/v1/sandboxes/{sandbox.id}/files/big", headers={"Accept": accept})
        assert headers["content-type"] == FRAMES
        *found, (end, _) = Reader().feed(body)
        assert [(head["offset"], data) for head, data in found] == [*parts.items()]
        for head, data in found:
            of = data if name == "part_sha256" else content[: head["offset"] + len(data)]
            assert head[name] == hashlib.sha256(of).hexdigest() and len([key for key in head if "sha256" in key]) == 1
        assert (end["event"], end["bytes"]) == ("end", len(content))
        assert end.get("sha256") == (hashlib.sha256(content).hexdigest() if name == "sha256" else None)


def test_a_broken_upload_changes_nothing(served: Served, sandbox: SyncSandbox) -> None:
    sandbox.write_file("kept", "old")
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        head = f"PUT /v1/sandboxes/{sandbox.id}/files/kept HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        head += f"Authorization: Bearer {served.owner_token}\r\nContent-Length: 1000000\r\n\r\n"
        connection.sendall(head.encode() + b"new" * 1000)
    assert sandbox.read_file("kept").content == "old"
    assert sandbox.run_command(["cat", "kept"]).stdout == "old"


def test_a_refused_upload_answers_though_the_body_is_not_read(served: Served, sandbox: SyncSandbox) -> None:
    path = f"/v1/sandboxes/{sandbox.id}/files/../../escape"
    status, _, body = served.request("PUT", path, body=b"x" * 20_000_000)
    assert (status, b"OUTSIDE_WORKSPACE" in body) == (403, True)


def test_a_missing_file_is_not_found(sandbox: SyncSandbox) -> None:
    with pytest.raises(FileMissing):
        list(sandbox.download("none"))


def test_removing_takes_what_was_named_and_nothing_else(sandbox: SyncSandbox) -> None:
    for path in ("-rf", "tree/a", "tree/deep/b", "kept"):
        sandbox.write_file(path, "x")
    sandbox.remove_file("-rf")
    with pytest.raises(IsDirectory):
        sandbox.remove_file("tree")
    sandbox.remove_file("tree", recursive=True)
    for path, fault in (("tree", FileMissing), ("", InvalidArgument), ("../..", OutsideWorkspace)):
        with pytest.raises(fault):
            sandbox.remove_file(path, recursive=True)
    left = {entry.path for entry in sandbox.list_directory().entries}
    assert "kept" in left and not {"tree", "-rf"} & left


def test_a_file_that_changes_during_a_download_breaks_it_off(sandbox: SyncSandbox) -> None:
    sandbox.upload("moving", b"a" * 40_000_000)
    parts = sandbox.download("moving")
    assert next(parts)[:1] == b"a"
    sandbox.upload("moving", b"b" * 40_000_001)
    with pytest.raises(Conflict):
        for _ in parts:
            pass


def test_what_a_rule_about_output_withholds_is_not_downloaded(served: Served, sandbox: SyncSandbox) -> None:
    marker = b"TOP-SECRET"
    sandbox.upload("first", marker + b"x" * 100)
    sandbox.upload("second", b"x" * WINDOW_BYTES + marker)
    rule = "{id: marker, hook: POST_TOOL_RESPONSE, then: deny, when: {output: {contains: TOP-SECRET}}}"
    with served.sync_client() as client:
        client.policy.load(f"version: 1\nrules: [{rule}]\n")
        try:
            status, _, body = served.request("GET", f"/v1/sandboxes/{sandbox.id}/files/first")
            assert (status, json.loads(body)["error"]["code"]) == (403, "DENIED_BY_RULE")
            assert marker not in body
            got = b""
            with pytest.raises(DeniedByRule):
                for part in sandbox.download("second"):
                    got += part
            assert got == b"x" * WINDOW_BYTES
        finally:
            client.policy.load("version: 1\n")


def test_files_of_a_snapshot_are_read_at_the_same_place_and_never_written(served: Served, sandbox: SyncSandbox) -> None:
    sandbox.write_file("scratch/then", "then")
    taken = sandbox.take_snapshot()
    sandbox.write_file("scratch/then", "now")
    assert b"".join(sandbox.download("scratch/then", snapshot=taken.snapshot_id)) == b"then"
    assert sandbox.read_file("scratch/then", snapshot=taken.snapshot_id).content == "then"
    path = f"/v1/sandboxes/{sandbox.id}/files/scratch/then?snapshot={taken.snapshot_id}"
    for method in ("PUT", "DELETE"):
        status, _, text = served.request(method, path, body=b"x")
        assert status == 400 and b"never change" in text
    assert sandbox.read_file("scratch/then").content == "now"


class Breaking:
    """A way to the server that breaks after so many bytes of what the client sends, or of what it gets, once."""

    def __init__(self, url: str, *, sent: int | None = None, received: int | None = None) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._server = (host, int(port))
        self._left = {"sent": sent, "received": received}
        self.broken = 0
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._server)
            self._ends += [near, far]
            for source, sink, way in ((near, far, "sent"), (far, near, "received")):
                threading.Thread(target=self._carry, args=(source, sink, way), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                left = self._left[way]
                if left is not None:
                    self._left[way] = left = left - len(data)
                    if left < 0:
                        self._left[way] = None
                        self.broken += 1
                        break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
                while end.recv(65536):  # whoever sends would wait for room for ever, where all of it was taken up
                    pass

    def __enter__(self) -> "Breaking":
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for end in self._ends:
            end.close()


def put_part(
    served: Served, sandbox: SyncSandbox, path: str, whole: bytes, offset: int, part: bytes
) -> tuple[int, Any]:
    status, _, body = served.request(
        "PUT",
        f"/v1/sandboxes/{sandbox.id}/files/{path}",
        body=part,
        headers={
            "Coldframe-Upload-Length": str(len(whole)),
            "Coldframe-Upload-Offset": str(offset),
            "Coldframe-Sha256": hashlib.sha256(whole).hexdigest(),
        },
    )
    return status, json.loads(body)


def partial_uploads(served: Served) -> list[Path]:
    return sorted(Path(served.data_dir, "control", "uploads").glob("*"))


@pytest.mark.req("T4.17")
def test_an_upload_that_breaks_in_the_middle_goes_on_from_there(
    served: Served, sandbox: SyncSandbox, tmp_path: Path
) -> None:
    local = tmp_path / "local"
    local.write_bytes(hashlib.sha256(b"up").digest() * 300_000)
    sandbox.write_file("up", "old")
    steps: list[int] = []
    with Breaking(served.url, sent=5_000_000) as way:
        with SyncColdframe(way.url, served.owner_token) as client:
            written = client.sandboxes.get(sandbox.id).upload_file(
                local, "up", progress=lambda there, whole: steps.append(there)
            )
        assert way.broken == 1
    assert any(0 < step < local.stat().st_size for step in steps), "it began anew"
    assert written.sha256 == hashlib.sha256(local.read_bytes()).hexdigest()
    assert b"".join(sandbox.download("up")) == local.read_bytes()
    assert partial_uploads(served) == []
    with served.sync_client() as client:
        kinds = [entry.body["tool"] for entry in client.ledger.entries(kinds=["call.started"], sandbox_id=sandbox.id)]
    assert kinds.count("write_file") == 2  # that of the test, and one for the upload


@pytest.mark.req("T4.17")
def test_parts_of_an_upload_stay_out_of_sight_until_all_is_there(served: Served, sandbox: SyncSandbox) -> None:
    whole = b"0123456789"
    sandbox.write_file("f", "old")
    before = {entry.path for entry in sandbox.list_directory(recursive=True).entries}
    status, answer = put_part(served, sandbox, "f", whole, 0, whole[:4])
    assert (status, answer["error"]["code"], answer["error"]["facts"]["taken"]) == (409, "CONFLICT", 4)
    assert {entry.path for entry in sandbox.list_directory(recursive=True).entries} == before
    assert sandbox.read_file("f").content == "old"
    status, answer = put_part(served, sandbox, "f", whole, 3, whole[3:])  # a gap or a repetition takes nothing in
    assert (status, answer["error"]["facts"]["taken"]) == (409, 4)
    assert put_part(served, sandbox, "g", whole, 10, b"")[1]["error"]["facts"]["taken"] == 0  # another target
    status, answer = put_part(served, sandbox, "f", whole, 4, whole[4:])
    assert (status, answer["value"]["sha256"]) == (200, hashlib.sha256(whole).hexdigest())
    assert sandbox.read_file("f").content == whole.decode()


@pytest.mark.req("T4.17")
def test_what_arrives_with_another_digest_changes_nothing(served: Served, sandbox: SyncSandbox) -> None:
    sandbox.write_file("f", "old")
    with pytest.raises(InvalidArgument):
        sandbox.upload("f", iter([b"bad"]), sha256=hashlib.sha256(b"good").hexdigest())
    status, answer = put_part(served, sandbox, "f", b"good", 0, b"evil")
    assert (status, answer["error"]["code"]) == (400, "INVALID_ARGUMENT")
    assert put_part(served, sandbox, "f", b"good", 4, b"")[1]["error"]["facts"]["taken"] == 0  # what came is dropped
    status, answer = put_part(served, sandbox, "f", b"good", 0, b"too long")
    assert (status, answer["error"]["code"]) == (413, "TOO_LARGE")
    assert sandbox.read_file("f").content == "old"


@pytest.mark.req("T4.17")
def test_parts_are_bounded_in_number_and_age_and_refused_like_a_write(served: Served, sandbox: SyncSandbox) -> None:
    for number in range(MOST_OF_ONE_CALLER + 3):
        put_part(served, sandbox, f"many-{number}", b"ab", 0, b"a")
    assert len(partial_uploads(served)) <= MOST_OF_ONE_CALLER + 1  # the one at work is not counted
    for path in partial_uploads(served):
        os.utime(path, (0, 0))
    put_part(served, sandbox, "other", b"ab", 0, b"a")
    assert len(partial_uploads(served)) == 1
    status, answer = put_part(served, sandbox, "../out", b"ab", 0, b"a")
    assert (status, answer["error"]["code"]) == (403, "OUTSIDE_WORKSPACE")
    with served.sync_client() as client:
        client.policy.load(
            "version: 1\nrules: [{id: never, hook: PRE_TOOL_CALL, when: {tool: write_file, path: {glob: 'never/*'}}, then: deny}]\n"
        )
        try:
            status, answer = put_part(served, sandbox, "never/x", b"ab", 0, b"a")
            assert (status, answer["error"]["code"]) == (403, "DENIED_BY_RULE")
        finally:
            client.policy.load("version: 1\n")
    assert len(partial_uploads(served)) == 1
    partial_uploads(served)[0].unlink()


@pytest.mark.req("T4.17")
def test_a_download_that_breaks_goes_on_and_is_of_one_version(
    served: Served, sandbox: SyncSandbox, tmp_path: Path
) -> None:
    content = hashlib.sha256(b"down").digest() * 400_000
    sandbox.upload("down", content)
    with Breaking(served.url, received=6_000_000) as way:
        with SyncColdframe(way.url, served.owner_token) as client:
            assert client.sandboxes.get(sandbox.id).download_file("down", tmp_path / "down") == len(content)
        assert way.broken == 1
    assert (tmp_path / "down").read_bytes() == content
    assert os.listdir(tmp_path) == ["down"]


@pytest.mark.req("T4.17")
def test_a_download_is_resumed_by_another_client_unless_the_file_changed(
    served: Served, sandbox: SyncSandbox, tmp_path: Path
) -> None:
    content = hashlib.sha256(b"later").digest() * 400_000
    target = tmp_path / "later"
    for changed in (False, True):
        sandbox.upload("later", content)

        def leave(there: int, whole: int) -> None:
            if there > whole // 2:
                raise KeyboardInterrupt

        for resume in (False, True):
            with pytest.raises(KeyboardInterrupt):
                sandbox.download_file("later", target, resume=resume, progress=leave)
            assert len(os.listdir(tmp_path)) == (2 if resume else 0)
        if changed:
            content = content[::-1]
            sandbox.upload("later", content)
        steps: list[int] = []
        with served.sync_client() as client:
            size = client.sandboxes.get(sandbox.id).download_file(
                "later", target, resume=True, progress=lambda there, whole, steps=steps: steps.append(there)
            )
        assert size == len(content) and target.read_bytes() == content
        assert (steps[0] > len(content) // 2) is not changed
        assert os.listdir(tmp_path) == ["later"]
        target.unlink()


@pytest.mark.req("T4.17")
def test_of_two_writers_with_one_version_one_gets_a_conflict(sandbox: SyncSandbox, tmp_path: Path) -> None:
    version = sandbox.write_file("shared", "base").version
    sandbox.upload("shared", b"first", if_version=version)
    (tmp_path / "second").write_text("second")
    for attempt in (
        lambda: sandbox.upload("shared", b"second", if_version=version),
        lambda: sandbox.upload_file(tmp_path / "second", "shared", if_version=version),
    ):
        with pytest.raises(Conflict):
            attempt()
    assert sandbox.read_file("shared").content == "first"
