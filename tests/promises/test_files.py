"""The file tools and the programs of the box see the same bytes, and one edit touches one file."""

import base64
import hashlib

import pytest

from coldframe.client.sync import SyncSandbox
from coldframe.contract.errors import (
    ColdframeError,
    Conflict,
    EditNotFound,
    EditNotUnique,
    FileMissing,
    InvalidArgument,
    InvalidPattern,
    IsDirectory,
    NotDirectory,
    NotRegular,
    OutsideWorkspace,
    PatternTooSlow,
    PermissionDenied,
    ReadOnly,
    TooLarge,
)


def digests(sandbox: SyncSandbox) -> dict[str, str]:
    listing = sandbox.run_command("find . -type f -not -name .exec_history -exec sha256sum {} +").stdout or ""
    return {line.split("  ", 1)[1]: line.split("  ", 1)[0] for line in listing.splitlines()}


@pytest.mark.req("T1.11", "T1.29")
def test_write_makes_parents_replaces_and_counts_bytes(sandbox: SyncSandbox) -> None:
    written = sandbox.write_file("new/deep/file.txt", "grün\n")
    assert (written.path, written.bytes_written, written.created) == ("new/deep/file.txt", 6, True)
    again = sandbox.write_file("./new//deep/file.txt", "")
    assert (again.path, again.bytes_written, again.created) == ("new/deep/file.txt", 0, False)
    assert sandbox.run_command("wc -c < new/deep/file.txt").stdout == "0\n"
    data = bytes(range(256))
    assert sandbox.write_file("binary", data).bytes_written == 256
    assert sandbox.run_command("sha256sum < binary").stdout == f"{hashlib.sha256(data).hexdigest()}  -\n"


@pytest.mark.req("T1.12")
def test_the_workspace_is_a_real_file_system(sandbox: SyncSandbox) -> None:
    script = """
set -e
git init -q repo && cd repo && git config user.email a@example.invalid && git config user.name a
echo one > file && git add file && git commit -qm first && git log --oneline | wc -l
ln -s file link && ln file hard && stat -c %h file && readlink link
chmod 640 file && stat -c %a file
touch -d '2001-02-03 04:05:06 UTC' file && stat -c %Y file
python3 - <<'EOF'
import mmap, os
with open("mapped", "w+b") as f:
    f.truncate(4096)
    with mmap.mmap(f.fileno(), 4096) as m: m[:5] = b"hello"
print(open("mapped", "rb").read(5))
EOF
"""
    answer = sandbox.run_command(script)
    assert answer.exit_code == 0, answer.stderr
    assert (answer.stdout or "").splitlines() == ["1", "2", "file", "640", "981173106", "b'hello'"]
    data = bytes(range(256)) * 4000
    sandbox.write_file("from-tool", data)
    assert sandbox.run_command("sha256sum < from-tool").stdout == f"{hashlib.sha256(data).hexdigest()}  -\n"
    sandbox.run_command("head -c 1000000 /dev/urandom > from-command; sha256sum from-command > sum")
    content = b"".join(sandbox.download("from-command"))
    assert hashlib.sha256(content).hexdigest() == (sandbox.read_file("sum").content or "").split()[0]


@pytest.mark.req("T1.30")
def test_read_gives_the_exact_text(sandbox: SyncSandbox) -> None:
    for text in ("\ufeffwith mark\r\nand returns\r\n", "Error: this is no error\n", "", "no newline"):
        sandbox.write_file("text", text)
        answer = sandbox.read_file("text")
        assert (answer.content, answer.binary, answer.complete) == (text, False, True)


@pytest.mark.req("T1.30")
def test_binary_content_comes_as_base64(sandbox: SyncSandbox) -> None:
    data = bytes(range(256))
    sandbox.write_file("binary", data)
    answer = sandbox.read_file("binary")
    assert answer.binary
    assert answer.encoding == "base64"
    assert answer.data == data


@pytest.mark.req("T1.30")
def test_a_hundred_megabytes_are_read_by_range(sandbox: SyncSandbox) -> None:
    sandbox.run_command("head -c 100000000 /dev/zero > big; printf end >> big")
    with pytest.raises(TooLarge):
        sandbox.read_file("big")
    tail = sandbox.read_file("big", offset=99_999_998, length=100)
    assert (tail.data, tail.total_bytes, tail.complete) == (b"\0\0end", 100_000_003, False)


@pytest.mark.req("T1.21")
def test_an_edit_changes_one_file_and_keeps_its_nature(sandbox: SyncSandbox) -> None:
    sandbox.run_command(
        "mkdir d; for i in 1 2 3; do echo $i > d/$i; done; printf 'a\\r\\nb\\r\\n' > crlf; chmod 750 crlf"
    )
    before = digests(sandbox)
    edited = sandbox.edit_file("crlf", "a\nb", "a\nnew\nb")
    after = digests(sandbox)
    assert {path for path in after if before.get(path) != after[path]} == {"./crlf"}
    assert edited.content == "a\r\nnew\r\nb\r\n"
    assert sandbox.run_command("stat -c %a crlf").stdout == "750\n"


@pytest.mark.req("T1.31")
def test_edits_are_literal_and_all_or_nothing(sandbox: SyncSandbox) -> None:
    sandbox.write_file("file", "alpha beta gamma alpha\n")
    odd = r"$& \1 \g<0> `$'` $$ %s {0}"
    assert sandbox.edit_file("file", "beta", odd).content == f"alpha {odd} gamma alpha\n"
    with pytest.raises(EditNotFound):
        sandbox.edit_file_many("file", [("gamma", "delta"), ("missing", "x")])
    with pytest.raises(EditNotUnique) as failure:
        sandbox.edit_file("file", "alpha", "x")
    assert failure.value.facts["count"] == 2
    assert sandbox.read_file("file").content == f"alpha {odd} gamma alpha\n"
    both = sandbox.edit_file_many("file", [("gamma", "delta"), ("delta", "epsilon")])
    assert both.content == f"alpha {odd} epsilon alpha\n"
    assert sandbox.edit_file("file", "alpha", "a", replace_all=True).replacements == 2


@pytest.mark.req("T1.33", "T1.34")
def test_listing_equals_find_and_stat(sandbox: SyncSandbox) -> None:
    sandbox.run_command(
        "mkdir -p t/a/b; echo 12345 > t/a/f; ln -s loop t/loop; ln -s .. t/a/up; mkfifo t/pipe; touch 't/odd name'"
    )
    listing = sandbox.list_directory("t", recursive=True)
    assert listing.complete
    found = sandbox.run_command(r"find t -mindepth 1 -printf '%p|%y|%s|%l\n'").stdout or ""
    kinds = {"d": "directory", "f": "file", "l": "symlink", "p": "fifo"}
    expected = {
        (path, kinds[kind], int(size), target or None)
        for path, kind, size, target in (line.split("|") for line in found.splitlines())
    }
    assert {(e.path, e.type, e.size, e.target) for e in listing.entries} == expected


@pytest.mark.req("T1.34")
def test_limits_of_a_listing_are_told(sandbox: SyncSandbox) -> None:
    sandbox.run_command("mkdir -p many/x/y/z; touch many/{1..50}")
    few = sandbox.list_directory("many", max_entries=10)
    assert (len(few.entries), few.complete, few.truncated_because) == (10, False, "max_entries")
    flat = sandbox.list_directory("many", recursive=True, max_depth=2)
    assert "many/x/y" in {entry.path for entry in flat.entries}
    assert (flat.complete, flat.truncated_because) == (False, "max_depth")


@pytest.mark.req("T1.35")
def test_search_equals_grep(sandbox: SyncSandbox) -> None:
    sandbox.run_command(
        "mkdir -p s/sub; printf 'needle 1\\nother\\nNeedle 2\\n' > s/a.py; printf 'x needle\\n' > s/sub/b.txt;"
        " printf 'needle\\0binary' > s/c.bin; printf 'a.needle+b\\n' > 's/odd:name'"
    )
    found = sandbox.search_files("needle [0-9]|x.needle", "s")
    grep = sandbox.run_command("grep -rnIE 'needle [0-9]|x.needle' s").stdout or ""
    lines = {tuple(line.split(":", 2)) for line in grep.splitlines()}
    assert {(m.path, str(m.line), m.text) for m in found.matches} == lines
    literal = sandbox.search_files("needle+b", "s", regex=False)
    assert [(m.path, m.line) for m in literal.matches] == [("s/odd:name", 1)]
    assert [m.path for m in sandbox.search_files("needle", "s", glob="*.py").matches] == ["s/a.py"]
    assert sandbox.search_files("needle", "s").binary_skipped == 1
    assert len(sandbox.search_files("NEEDLE", "s", ignore_case=True, glob="*.py").matches) == 2


@pytest.mark.req("T1.36")
def test_search_cannot_be_abused(sandbox: SyncSandbox) -> None:
    sandbox.write_file("a", "a" * 40 + "!\n-f secret\n")
    assert [m.line for m in sandbox.search_files("-f").matches] == [2]
    with pytest.raises(InvalidPattern):
        sandbox.search_files("(")
    with pytest.raises(InvalidPattern):
        sandbox.search_files("a\nb")
    for outside in ("..", "/etc", "/proc/self/root"):
        with pytest.raises(OutsideWorkspace):
            sandbox.search_files("root", outside)
    try:
        answer = sandbox.call("search_files", {"pattern": "^(a+)+$", "budget_s": 1}).value
        assert answer["truncated_because"] == "time"
    except (PatternTooSlow, InvalidArgument):
        sandbox.search_files("secret")  # and the sandbox answers as before


@pytest.mark.req("T1.48", "T1.45")
def test_no_tool_leaves_the_workspace(sandbox: SyncSandbox) -> None:
    sandbox.run_command(
        "ln -s /etc/passwd abs; ln -s ../../etc/passwd rel; ln -s /proc/self/root magic; ln -s .. up; mkdir sub"
    )
    places = ["/etc/passwd", "../user/x", "abs", "rel", "magic/etc/passwd", "up/x", "sub/../../x", "/home/user/../x"]
    for place in places:
        for attempt in (
            lambda p=place: sandbox.read_file(p),
            lambda p=place: sandbox.write_file(p, "x"),
            lambda p=place: sandbox.edit_file(p, "root", "x"),
            lambda p=place: sandbox.list_directory(p),
            lambda p=place: sandbox.search_files("root", p),
        ):
            with pytest.raises(OutsideWorkspace):
                attempt()
    assert "root:x:0" in (sandbox.run_command("cat /etc/passwd").stdout or "")


@pytest.mark.req("T1.86")
def test_no_tool_touches_the_history(sandbox: SyncSandbox) -> None:
    for path in (".exec_history", "/home/user/.exec_history", "scratch/../.exec_history"):
        with pytest.raises((ReadOnly, PermissionDenied)):
            sandbox.write_file(path, "nothing happened\n")
    script = """
for attempt in 'echo x >> .exec_history' 'rm -f .exec_history' 'mv .exec_history h' ': > .exec_history' \
  'ln -sf /tmp/h .exec_history' 'chmod 777 .exec_history' 'mv scratch .exec_history' 'truncate -s0 .exec_history'; do
  sh -c "$attempt" 2>/dev/null && echo "BREACH $attempt"
done; true
"""
    assert sandbox.run_command(script).stdout == ""


@pytest.mark.req("T1.37")
def test_every_failure_has_its_code_and_says_what_to_do(sandbox: SyncSandbox) -> None:
    """Thirty ways to be wrong, each with a code, a message and a hint, and nothing changed by any."""
    sandbox.run_command(
        "echo text > file; mkdir dir; mkfifo pipe; ln -s nowhere dangling; mkdir locked; touch locked/f; chmod 0 locked;"
        " touch secret; chmod 0 secret; python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('sock')\""
    )
    before = digests(sandbox)
    version = sandbox.read_file("file").version
    sandbox.run_command("touch file2")
    table: list[tuple[str, dict[str, object], type[ColdframeError]]] = [
        ("read_file", {"path": "missing"}, FileMissing),
        ("read_file", {"path": "dir"}, IsDirectory),
        ("read_file", {"path": "file/below"}, NotDirectory),
        ("read_file", {"path": "pipe"}, NotRegular),
        ("read_file", {"path": "sock"}, NotRegular),
        ("read_file", {"path": "dangling"}, FileMissing),
        ("read_file", {"path": "secret"}, PermissionDenied),
        ("read_file", {"path": "locked/f"}, PermissionDenied),
        ("read_file", {"path": "/etc/passwd"}, OutsideWorkspace),
        ("read_file", {"path": "file", "offset": -1}, InvalidArgument),
        ("read_file", {}, InvalidArgument),
        ("read_file", {"path": "file", "colour": "red"}, InvalidArgument),
        ("read_file", {"path": "a\0b"}, InvalidArgument),
        ("read_file", {"path": "x" * 300}, InvalidArgument),
        ("read_file", {"path": 7}, InvalidArgument),
        ("write_file", {"path": "dir", "content": "x"}, IsDirectory),
        ("write_file", {"path": "file/below", "content": "x"}, NotDirectory),
        ("write_file", {"path": "file"}, InvalidArgument),
        ("write_file", {"path": "file", "content": "x", "content_base64": "eA=="}, InvalidArgument),
        ("write_file", {"path": "file", "content_base64": "???"}, InvalidArgument),
        ("write_file", {"path": "file", "content": "x", "create_only": True}, Conflict),
        ("write_file", {"path": "file", "content": "x", "if_version": version[::-1]}, Conflict),
        ("write_file", {"path": "../file", "content": "x"}, OutsideWorkspace),
        ("edit_file", {"path": "file", "old": "absent", "new": "x"}, EditNotFound),
        ("edit_file", {"path": "file", "old": "t", "new": "x"}, EditNotUnique),
        ("edit_file", {"path": "file", "old": "", "new": "x"}, InvalidArgument),
        ("edit_file", {"path": "missing", "old": "a", "new": "x"}, FileMissing),
        ("list_directory", {"path": "missing"}, FileMissing),
        ("list_directory", {"path": "file"}, NotDirectory),
        ("search_files", {"pattern": "("}, InvalidPattern),
        ("search_files", {"pattern": "x", "path": "missing"}, FileMissing),
        ("run_command", {"command": "true", "timeout_s": 0}, InvalidArgument),
        ("run_command", {"command": []}, InvalidArgument),
        ("run_command", {"command": "a\0b"}, InvalidArgument),
    ]
    for tool, arguments, expected in table:
        try:
            error = sandbox.call(tool, arguments).error
        except ColdframeError as raised:
            error = raised.to_wire()
        assert error is not None, (tool, arguments)
        assert error["code"] == expected.code, (tool, arguments, error)
        assert error["message"]
        assert error["hint"]
    assert digests(sandbox) == before | {"./file2": hashlib.sha256(b"").hexdigest()}


def test_content_given_as_base64_is_bytes(sandbox: SyncSandbox) -> None:
    sandbox.call("write_file", {"path": "b", "content_base64": base64.b64encode(b"\0\xff").decode()})
    assert sandbox.read_file("b").data == b"\0\xff"
