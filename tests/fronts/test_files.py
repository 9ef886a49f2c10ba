"""Files travel as raw bytes, of any size, whole or not at all."""

import hashlib
import json
import socket
from collections.abc import Iterator

import pytest

from coldframe.client.sync import SyncSandbox
from coldframe.contract.errors import FileMissing, HostUnreachable, InvalidArgument, IsDirectory, OutsideWorkspace
from coldframe.fronts.rest.files import WINDOW_BYTES
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
    size = 2 * WINDOW_BYTES + 1
    sandbox.upload("big", b"x" * size)
    assert sum(map(len, sandbox.download("big"))) == size
    with served.sync_client() as client:
        kinds = [entry.body["tool"] for entry in client.ledger.entries(kinds=["call.started"], sandbox_id=sandbox.id)]
    assert kinds == ["write_file", "read_file", "read_file", "read_file"]


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
    with pytest.raises(HostUnreachable):
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
            with pytest.raises(HostUnreachable):
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
