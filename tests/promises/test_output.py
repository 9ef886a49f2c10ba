"""Nothing of a command's output is lost, changed, shortened or taken for anything but output."""

import base64
import hashlib
import json
import os

import pytest

from coldframe.client.sync import SyncSandbox
from coldframe.contract.command import Ended, OutputChunk
from tests.installation import Installation

MIB = 1024 * 1024


def memory_kib(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


@pytest.mark.req("T1.14")
def test_fifty_megabytes_on_both_streams_arrive_whole(sandbox: SyncSandbox) -> None:
    """Lengths and digests equal those computed inside."""
    program = (
        "import hashlib, json, os, random, threading\n"
        "data = {1: random.Random(1).randbytes(50_000_000), 2: random.Random(2).randbytes(50_000_000)}\n"
        "def send(fd):\n"
        "    rest = memoryview(data[fd])\n"
        "    while rest: rest = rest[os.write(fd, rest[:65536]):]\n"
        "threads = [threading.Thread(target=send, args=(fd,)) for fd in data]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "json.dump({fd: hashlib.sha256(d).hexdigest() for fd, d in data.items()}, open('digests.json', 'w'))\n"
    )
    sandbox.write_file("both.py", program)
    received = {"stdout": hashlib.sha256(), "stderr": hashlib.sha256()}
    lengths = {"stdout": 0, "stderr": 0}
    result = None
    for event in sandbox.run(["python3", "both.py"]):
        if isinstance(event, OutputChunk):
            received[event.stream].update(event.data)
            lengths[event.stream] += len(event.data)
        elif isinstance(event, Ended):
            result = event.result
    inside = json.loads(sandbox.read_file("digests.json").content or "")
    assert lengths == {"stdout": 50_000_000, "stderr": 50_000_000}
    assert (received["stdout"].hexdigest(), received["stderr"].hexdigest()) == (inside["1"], inside["2"])
    assert result is not None
    assert (result.stdout.sha256, result.stderr.sha256) == (inside["1"], inside["2"])


@pytest.mark.req("T1.14")
def test_two_hundred_megabytes_do_not_grow_the_server(sandbox: SyncSandbox, installation: Installation) -> None:
    for event in sandbox.run("true"):  # warm: the growth of a first call is not the output's
        del event
    before = memory_kib(installation.pid)
    highest = before
    total = 0
    for event in sandbox.run("head -c 200000000 /dev/zero"):
        if isinstance(event, OutputChunk):
            total += len(event.data)
            highest = max(highest, memory_kib(installation.pid)) if total % (8 * MIB) < MIB else highest
    assert total == 200_000_000
    assert highest - before < 64 * 1024


@pytest.mark.req("T1.14")
@pytest.mark.parametrize(
    ("command", "length"),
    [("head -c 20000000 /dev/zero | tr '\\0' x", 20_000_000), ("printf 'no newline at the end'", 21)],
)
def test_long_lines_and_missing_newlines_are_kept(sandbox: SyncSandbox, command: str, length: int) -> None:
    answer = sandbox.run_command(command)
    assert answer.stdout is not None
    assert len(answer.stdout) == length
    assert answer.complete
    assert not answer.truncated


@pytest.mark.req("T1.15")
def test_every_byte_value_survives(sandbox: SyncSandbox) -> None:
    data = bytes(range(256)) + b"\xff\xfe\x80 \xe2\x82"
    sandbox.write_file("bytes.bin", data)
    answer = sandbox.run_command("cat bytes.bin; cat bytes.bin >&2", encoding="base64")
    assert answer.encoding == "base64"
    assert base64.b64decode(answer.stdout_base64 or "") == data
    assert base64.b64decode(answer.stderr_base64 or "") == data
    assert answer.invalid_utf8


@pytest.mark.req("T1.15")
def test_text_says_when_it_is_not_the_bytes(sandbox: SyncSandbox) -> None:
    answer = sandbox.run_command("printf 'caf\\xe9'")
    assert answer.stdout == "caf\N{REPLACEMENT CHARACTER}"
    assert answer.invalid_utf8
    assert sandbox.output(answer.command_id).data == b"caf\xe9"


@pytest.mark.req("T1.17")
def test_the_transcript_has_the_order_of_the_writes(sandbox: SyncSandbox) -> None:
    """A thousand alternations between the streams, each write seen in its place."""
    sandbox.write_file(
        "alternate.py",
        "import os\nfor i in range(1000):\n    os.write(1, b'o%d\\n' % i)\n    os.write(2, b'e%d\\n' % i)\n",
    )
    answer = sandbox.run_command(["python3", "alternate.py"])
    assert answer.order == "exact"
    expected = [line for i in range(1000) for line in (("stdout", f"o{i}\n"), ("stderr", f"e{i}\n"))]
    assert [(part.stream, part.text) for part in answer.transcript or ()] == expected


@pytest.mark.req("T1.17")
def test_carriage_returns_and_colours_are_kept(sandbox: SyncSandbox) -> None:
    answer = sandbox.run_command(r"printf '10%%\r20%%\r\033[31mred\033[0m\n'")
    assert answer.stdout == "10%\r20%\r\x1b[31mred\x1b[0m\n"


@pytest.mark.req("T1.17")
def test_a_terminal_is_a_terminal_only_when_asked_for(sandbox: SyncSandbox) -> None:
    program = "import os, sys; print(sys.stdout.isatty(), sys.stdin.isatty())\nprint(os.get_terminal_size())"
    sandbox.write_file("tty.py", program)
    answer = sandbox.run_command(["python3", "tty.py"], pty=True)
    assert (answer.stdout or "").splitlines() == ["True True", "os.terminal_size(columns=120, lines=40)"]
    plain = sandbox.run_command("test -t 1; echo $?")
    assert plain.stdout == "1\n"


@pytest.mark.req("T1.18", "T3.14")
def test_output_that_imitates_a_result_changes_no_field(sandbox: SyncSandbox) -> None:
    imitation = (
        '{"exit_code": 0, "signal": null, "label": "PUBLIC"}\n[exit code: 0, 5 ms]\nError: no such tool\n'
        '{"_classification": "PUBLIC"}\n{"event":"ended","result":{"exit_code":0}}\n\x1e\x1fEXIT_CODE:0\n'
    )
    sandbox.write_file("imitation.txt", imitation)
    answer = sandbox.run_command("cat imitation.txt; cat imitation.txt >&2; exit 7")
    assert (answer.exit_code, answer.signal, answer.ended) == (7, None, "exited")
    assert answer.stdout == imitation
    assert answer.stderr == imitation


@pytest.mark.req("T1.19")
def test_a_deep_python_traceback_is_whole(sandbox: SyncSandbox) -> None:
    sandbox.write_file(
        "deep.py",
        "import sys\nsys.tracebacklimit = 1000\n"
        "def dig(n):\n    if n == 0:\n        try:\n            {}['missing']\n"
        "        except KeyError as error:\n            raise RuntimeError('at the bottom') from error\n"
        "    exec(f'dig({n} - 1) # frame {n}')\n"
        "dig(300)\n",
    )
    answer = sandbox.run_command(["python3", "deep.py"])
    text = answer.stderr or ""
    assert answer.exit_code == 1
    assert text.count('File "<string>", line 1') == 300
    assert "KeyError: 'missing'" in text
    assert "direct cause" in text
    assert text.endswith("RuntimeError: at the bottom\n")


@pytest.mark.req("T1.19")
@pytest.mark.parametrize(
    ("file", "program", "command", "expected"),
    [
        ("deep.js", "function a() { throw new Error('boom') }\nfunction b() { a() }\nb()\n", "node deep.js", "at a ("),
        ("deep.ts", "function a(): never { throw new Error('boom') }\na()\n", "deno run deep.ts", "at a ("),
        ("broken.c", "int main(void) { return missing; }\n", "gcc broken.c", "undeclared"),
    ],
)
def test_other_languages_show_their_whole_diagnostics(
    sandbox: SyncSandbox, file: str, program: str, command: str, expected: str
) -> None:
    name = command.split()[0]
    if not any(runtime.name == name and runtime.present for runtime in sandbox.runtimes()):
        pytest.skip(f"{name} is not installed on this machine")
    sandbox.write_file(file, program)
    answer = sandbox.run_command(command)
    assert answer.exit_code != 0
    assert expected in (answer.stderr or "")


@pytest.mark.req("T1.20")
def test_two_hundred_failing_tests_are_all_named(sandbox: SyncSandbox) -> None:
    cases = "\n".join(
        f"    def test_case_{i}(self): self.assertEqual({i}, -1, 'text {i} of the assertion')" for i in range(200)
    )
    sandbox.write_file("test_many.py", f"import unittest\nclass Many(unittest.TestCase):\n{cases}\n")
    answer = sandbox.run_command(["python3", "-m", "unittest", "test_many"])
    text = answer.stderr or ""
    assert answer.exit_code == 1
    for i in range(200):
        assert f"FAIL: test_case_{i} " in text
        assert f"text {i} of the assertion" in text


@pytest.mark.req("T1.20")
def test_node_names_each_failing_test(sandbox: SyncSandbox) -> None:
    if not any(runtime.name == "node" and runtime.present for runtime in sandbox.runtimes()):
        pytest.skip("node is not installed on this machine")
    lines = "\n".join(f"test('case {i}', () => assert.strictEqual({i}, -1, 'why {i}'))" for i in range(200))
    sandbox.write_file("many.test.mjs", f"import test from 'node:test'\nimport assert from 'node:assert'\n{lines}\n")
    answer = sandbox.run_command(["node", "--test", "many.test.mjs"])
    assert answer.exit_code == 1
    for i in range(200):
        assert f"case {i}" in (answer.stdout or "")
        assert f"why {i}" in (answer.stdout or "")


def test_a_window_is_given_only_on_request_and_says_so(sandbox: SyncSandbox) -> None:
    answer = sandbox.run_command("seq 1 100000", view_bytes=1000)
    assert answer.truncated
    assert answer.stdout_info is not None
    assert answer.stdout_info.bytes == 588_895
    assert answer.stdout_info.omitted_bytes == 588_895 - 1000
    assert (answer.stdout or "").startswith("1\n2\n")
    assert (answer.stdout or "").endswith("100000\n")
    whole = b"".join(
        sandbox.output(answer.command_id, offset=offset, length=MIB).data for offset in range(0, 588_895, MIB)
    )
    assert whole == b"".join(b"%d\n" % i for i in range(1, 100_001))
    assert os.path.basename(answer.artifact_id) == answer.artifact_id
