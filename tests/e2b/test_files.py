"""Files through the official SDK and by plain HTTP: exact bytes, whole or not at all, and for nobody without a right to them."""

import gzip
import hashlib
import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, NamedTuple

import pytest
from e2b import FileNotFoundException, FileType, Sandbox, SandboxException
from e2b.exceptions import AuthenticationException, InvalidArgumentException, NotEnoughSpaceException
from e2b.sandbox.filesystem.filesystem import WriteEntry

from coldframe.contract.sandbox import Limits
from tests.e2b.real import RealEdge

pytestmark = pytest.mark.req("T4.83")
DATA = bytes(range(256)) * 12_289
"""Three MiB and some: more than one window."""


class Answer(NamedTuple):
    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    real: RealEdge,
    box: Sandbox | None,
    method: str,
    path: str,
    body: Any = None,
    token: str | None = None,
    **headers: str,
) -> Answer:
    """As a program without an SDK asks; as the holder of the sandbox's token unless another is given."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if box is not None:
        sent["E2b-Sandbox-Id"], sent["E2b-Sandbox-Port"] = box.sandbox_id, "49983"
        token = box._envd_access_token if token is None else token
    if token:
        sent["X-Access-Token"] = token
    request = urllib.request.Request(real.url + path, data=body, headers=sent, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return Answer(answer.status, answer.headers, answer.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.headers, error.read())


def place(path: str, **more: str) -> str:
    return "/files?" + urllib.parse.urlencode({"path": path, **more})


def test_bytes_go_in_and_come_out_as_they_are(box: Sandbox) -> None:
    box.files.write("data.bin", DATA)
    assert box.commands.run("sha256sum < data.bin").stdout == f"{hashlib.sha256(DATA).hexdigest()}  -\n"
    assert bytes(box.files.read("data.bin", format="bytes")) == DATA
    assert b"".join(box.files.read("data.bin", format="stream")) == DATA
    box.files.write("packed.bin", DATA, gzip=True)
    assert bytes(box.files.read("packed.bin", format="bytes", gzip=True)) == DATA
    box.files.write("streamed.bin", DATA, use_octet_stream=True)
    assert box.commands.run("cmp data.bin streamed.bin").exit_code == 0
    box.files.write("empty", b"")
    assert box.files.read("empty") == ""


def test_many_files_are_written_at_once_anywhere_their_user_may(box: Sandbox) -> None:
    names = ["a b.txt", "ä/ö.txt", "/tmp/x/y.txt", "quote'\".txt", "new\nline"]
    written = box.files.write_files([WriteEntry(path=name, data=name) for name in names])
    assert [one.path for one in written] == [
        "/home/user/a b.txt",
        "/home/user/ä/ö.txt",
        "/tmp/x/y.txt",
        "/home/user/quote'\".txt",
        "/home/user/new\nline",
    ]
    for name in names:
        assert box.files.read(name) == name
    for path in ("/etc/x", "/usr/x"):
        with pytest.raises(SandboxException):
            box.files.write(path, "x")


def test_entries_are_told_with_all_that_is_known_of_them(box: Sandbox) -> None:
    box.files.write("d/one", "1", metadata={"author": "mira"})
    box.commands.run("chmod 640 d/one; ln -s one d/link; mkdir d/sub; ln -s nothing d/broken")
    found = {one.name: one for one in box.files.list("d")}
    one = found["one"]
    assert (one.type, one.size, one.permissions, one.owner, one.metadata) == (
        FileType.FILE,
        1,
        "-rw-r-----",
        "user",
        {"author": "mira"},
    )
    assert (found["link"].type, found["link"].symlink_target) == (FileType.FILE, "/home/user/d/one")
    assert found["sub"].type is FileType.DIR
    assert "broken" not in found, "SDKs leave out what is neither file nor directory"
    assert [one.name for one in box.files.list("/", depth=1) if one.name == "etc"] == ["etc"]
    with pytest.raises(InvalidArgumentException):
        box.files.list("d/one")
    with pytest.raises(FileNotFoundException):
        box.files.list("none")
    moved = box.files.rename("d/one", "/tmp/far/two")
    assert (moved.path, moved.metadata) == ("/tmp/far/two", {"author": "mira"})
    box.files.remove("d")
    assert not box.files.exists("d")


def test_a_range_of_a_file_is_given_as_http_has_it(real: RealEdge, box: Sandbox) -> None:
    box.files.write("r.bin", DATA)
    for asked, start, stop in (
        ("bytes=0-9", 0, 10),
        ("bytes=5-", 5, len(DATA)),
        ("bytes=-7", len(DATA) - 7, len(DATA)),
        (f"bytes=3000000-{10**12}", 3_000_000, len(DATA)),
    ):
        got = ask(real, box, "GET", place("r.bin"), Range=asked)
        assert (got.status, got.body) == (206, DATA[start:stop])
        assert got.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{len(DATA)}"
    assert ask(real, box, "GET", place("r.bin"), Range=f"bytes={len(DATA)}-").status == 416
    whole = ask(real, box, "GET", place("r.bin"), Range="lines=1-2")
    assert (whole.status, whole.body == DATA) == (200, True)


def test_what_is_no_file_is_refused_with_its_name(real: RealEdge, box: Sandbox) -> None:
    for path, status in (("none", 404), ("/home/user", 400), ("/dev/zero", 400), ("/proc/1/environ", 400)):
        got = ask(real, box, "GET", place(path))
        assert (got.status, got.json["code"]) == (status, status), path
        assert set(got.json) == {"code", "message"}


def test_nobody_reads_or_writes_without_the_token_of_that_sandbox(real: RealEdge, box: Sandbox) -> None:
    box.files.write("mine", "secret")
    other = Sandbox.create(timeout=300, **real.params)
    try:
        for token in ("", "0" * 64, str(other._envd_access_token), real.key):
            for method, path, body in (
                ("GET", place("mine"), None),
                ("POST", place("mine"), b"x"),
                ("POST", "/filesystem.Filesystem/Stat", b'{"path":"mine"}'),
                ("POST", "/process.Process/List", b"{}"),
                ("GET", "/envs", None),
            ):
                got = ask(real, box, method, path, body, token=token, Content_Type="application/json")
                assert got.status == 401, (token, path, got)
        with pytest.raises(AuthenticationException):
            box.files.read("mine", user="mallory")
        assert box.files.read("mine") == "secret"
    finally:
        other.kill(**real.params)


def test_a_signed_address_is_good_for_its_file_its_way_and_its_time(real: RealEdge, box: Sandbox) -> None:
    box.files.write("s.txt", "signed")

    def query(url: str, **changed: str) -> str:
        asked = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query))
        return "/files?" + urllib.parse.urlencode({**asked, **changed})

    reading = box.download_url("s.txt", "user", 60)
    assert ask(real, None, "GET", query(reading)).body == b"signed", "nothing but the signature says whose it is"
    for changed in (
        {"path": "other"},
        {"username": "root"},
        {"signature": "v1_x"},
        {"signature_expiration": "99999999999"},
    ):
        assert ask(real, None, "GET", query(reading, **changed)).status == 401, changed
    assert ask(real, None, "POST", query(reading), b"x", Content_Type="application/octet-stream").status == 401
    past = ask(real, None, "GET", query(box.download_url("s.txt", "user", -10)))
    assert (past.status, past.json) == (401, {"code": 401, "message": "signature is already expired"})
    for plain in (reading, box.download_url("s.txt")):  # who else is named beside it is not signed
        assert ask(real, None, "GET", query(plain), Authorization="Basic cm9vdDo=").body == b"signed"
    writing = box.upload_url("up.txt", "user", 60)
    form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="z"\r\n\r\nup\r\n--b--\r\n'
    sent = ask(real, None, "POST", query(writing), form, Content_Type="multipart/form-data; boundary=b")
    assert (sent.status, sent.json) == (200, [{"path": "/home/user/up.txt", "name": "up.txt", "type": "file"}])
    assert box.files.read("up.txt") == "up"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b",
        b"--b\r\n",
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="cut"\r\n\r\nhalf',
        b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nnameless\r\n--b--',
        b"x" * 40_000,
        b"--b\r\n" + b"h" * 40_000,
        b"--bx\r\n\r\n",
    ],
    ids=["empty", "mark", "line", "cut", "nameless", "preamble", "head", "other"],
)
def test_a_form_that_is_none_changes_nothing(real: RealEdge, box: Sandbox, body: bytes) -> None:
    got = ask(real, box, "POST", "/files", body, Content_Type="multipart/form-data; boundary=b")
    assert got.status == 400, got
    assert not box.files.exists("cut")


def test_a_body_that_is_compressed_is_unpacked_whole_or_refused(real: RealEdge, box: Sandbox) -> None:
    packed = gzip.compress(DATA[:100_000]) + gzip.compress(b"and more")
    sent: dict[str, str] = {"Content_Encoding": "gzip", "Content_Type": "application/octet-stream"}
    assert ask(real, box, "POST", place("two"), packed, **sent).status == 200
    assert bytes(box.files.read("two", format="bytes")) == DATA[:100_000] + b"and more"
    for broken in (packed[:-3], packed[:50], b"no gzip at all", packed + b"rubbish behind"):
        assert ask(real, box, "POST", place("broken"), broken, **sent).status == 400
        assert not box.files.exists("broken")
    assert ask(real, box, "POST", place("x"), b"x", Content_Encoding="br").status == 400


def test_files_are_joined_in_order_and_their_parts_removed(real: RealEdge, box: Sandbox) -> None:
    for number in range(3):
        box.files.write(f"part{number}", DATA[number * 1_100_000 : (number + 1) * 1_100_000])
    asked = {"source_paths": [f"part{number}" for number in range(3)], "destination": "out/whole"}
    got = ask(real, box, "POST", "/files/compose", json.dumps(asked).encode(), Content_Type="application/json")
    assert (got.status, got.json) == (200, {"path": "/home/user/out/whole", "name": "whole", "type": "file"})
    assert bytes(box.files.read("out/whole", format="bytes")) == DATA
    assert not box.files.exists("part0")
    box.commands.run("ln -s out other; ln -s part1 link")
    asked = {"source_paths": ["other/whole", "link", "part1"], "destination": "out/whole"}
    box.files.write("part1", b"1")
    assert ask(real, box, "POST", "/files/compose", json.dumps(asked).encode()).status == 200
    assert bytes(box.files.read("out/whole", format="bytes")) == DATA + b"11", "the target went as one of its parts"
    assert box.commands.run("ls").stdout.split() == ["other", "out"]
    asked = {"source_paths": ["none"], "destination": "x"}
    assert ask(real, box, "POST", "/files/compose", json.dumps(asked).encode()).status == 404


def test_a_disk_that_is_full_is_told_as_that(real: RealEdge) -> None:
    with real.client() as client:
        small = client.sandboxes.create(background=True, limits=Limits(disk_mib=4))
    box = Sandbox.connect(small.id.removeprefix("sbx_"), **real.params)
    try:
        with pytest.raises(NotEnoughSpaceException):
            box.files.write("large", b"x" * (6 << 20))
        assert not box.files.exists("large")
        box.files.write("small", "fits")
    finally:
        box.kill(**real.params)


def test_two_who_write_one_file_leave_one_of_the_two(box: Sandbox) -> None:
    contents = [bytes([number]) * 500_000 for number in range(4)]
    writers = [threading.Thread(target=box.files.write, args=("raced", content)) for content in contents]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert bytes(box.files.read("raced", format="bytes")) in contents


@pytest.mark.req("T1.78")
def test_each_touch_of_a_file_is_judged_and_on_record_with_its_path(real: RealEdge, box: Sandbox) -> None:
    box.files.write("w", "1")
    box.files.read("w")
    box.files.write("/tmp/w", "1")
    box.files.list("/tmp")
    box.files.get_info("w")
    box.files.make_dir("d")
    box.files.rename("w", "d/w")
    box.files.remove("d")
    with real.client() as client:
        entries = client.ledger.entries(kinds=["call.started"], sandbox_id=f"sbx_{box.sandbox_id}")
    told = [(entry.body["tool"], entry.body["context"]["path"]) for entry in entries]
    assert told == [
        ("write_file", "w"),
        ("read_file", "w"),
        ("write_file", "/tmp/w"),
        ("list_directory", "/tmp"),
        ("stat_path", "w"),
        ("make_directory", "d"),
        ("move_path", "d/w"),
        ("remove_path", "d"),
    ]
    assert entries[6].body["context"]["from_path"] == "w"
