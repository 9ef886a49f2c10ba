"""A command that fails for want of something installed says what it is, and what is suggested works where it can."""

import io
import json
import tarfile
import zipfile
from collections.abc import Iterator

import pytest

from coldframe.client.models import CommandAnswer
from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.diagnosis import Diagnosis

PORT = 4873
REGISTRY = """
import http.server, json, pathlib, sys
class Registry(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        name = self.path.partition('?')[0].rpartition('/')[2]
        file = pathlib.Path('registry', name)
        content = file.read_bytes() if file.is_file() else b'{}'
        self.send_response(200 if file.is_file() else 404)
        self.send_header('content-length', str(len(content)))
        self.end_headers()
        self.wfile.write(content)
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 4873), Registry)
print('serves', flush=True)
server.serve_forever()
"""
PLAYWRIGHT = """
import os, pathlib, sys
place = pathlib.Path.home() / '.cache/ms-playwright/chromium-1140/chrome-linux/chrome'
if sys.argv[1:] == ['install', 'chromium']:
    place.parent.mkdir(parents=True)
    place.write_text('')
elif not place.exists():
    sys.exit(f"playwright._impl._errors.Error: BrowserType.launch: Executable doesn't exist at {place}")
"""
"""Its two acts that matter here, under its name and with its words."""


def wheel(name: str, version: str, *, script: str | None = None) -> bytes:
    content, folder = io.BytesIO(), f"{name}-{version}.dist-info"
    with zipfile.ZipFile(content, "w") as packed:
        packed.writestr(f"{name}.py", f"def main():\n    print('{name} {version}')\n")
        packed.writestr(f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        packed.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        if script is not None:
            packed.writestr(f"{folder}/entry_points.txt", f"[console_scripts]\n{script} = {name}:main\n")
        packed.writestr(f"{folder}/RECORD", "")
    return content.getvalue()


def tarball() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as packed:
        for name, text in (
            ("package.json", json.dumps({"name": "leftbox", "version": "1.0.0", "main": "index.js"})),
            ("index.js", "module.exports = 42"),
        ):
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(text)
            packed.addfile(member, io.BytesIO(text.encode()))
    return content.getvalue()


@pytest.fixture
def prepared(sandbox: SyncSandbox) -> Iterator[SyncSandbox]:
    """With registries of pip and npm inside, since nothing is to be reached outside."""
    if sandbox.run_command("python3 -c 'import pip, pkg_resources' && npm --version && gcc --version").exit_code != 0:
        pytest.skip("pip with its parts, npm or gcc is not on this machine")
    sandbox.upload("wheels/tinychart-1.2-py3-none-any.whl", wheel("tinychart", "1.2"))
    for version in ("1.0", "2.0"):
        sandbox.upload(f"wheels/newchart-{version}-py3-none-any.whl", wheel("newchart", version))
    sandbox.upload("wheels/gunicorn-1.0-py3-none-any.whl", wheel("gunicorn", "1.0", script="gunicorn"))
    sandbox.write_file(".config/pip/pip.conf", "[global]\nno-index = true\nfind-links = /home/user/wheels\n")
    sandbox.write_file("registry.py", REGISTRY)
    sandbox.upload("registry/leftbox-1.0.0.tgz", tarball())
    packed = {"tarball": f"http://127.0.0.1:{PORT}/leftbox-1.0.0.tgz"}
    known = {
        "name": "leftbox",
        "dist-tags": {"latest": "1.0.0"},
        "versions": {"1.0.0": {"name": "leftbox", "version": "1.0.0", "dist": packed}},
    }
    sandbox.write_file("registry/leftbox", json.dumps(known))
    sandbox.write_file(".npmrc", f"registry=http://127.0.0.1:{PORT}/\naudit=false\nfund=false\nupdate-notifier=false\n")
    sandbox.write_file("package.json", "{}")
    serving = sandbox.start(["python3", "registry.py"])
    serves = "until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 4873))' 2>/dev/null; do sleep 0.1; done"
    assert sandbox.run_command(serves, timeout_s=60).exit_code == 0
    yield sandbox
    serving.cancel()


CASES: dict[str, tuple[str | list[str], bool]] = {
    "shell": ("gunicorn", True),
    "python": ("python3 -c 'import tinychart; tinychart.main()'", True),
    "node": ("node -e 'console.log(require(\"leftbox\"))'", True),
    "shared_library": ("./needs", False),
    "header": ("gcc -c header.c", False),
    "compiler": ("PATH=/nowhere; gcc -c plain.c", False),
    "browser": ("python3 -m playwright", True),
    "python_version": ("python3 -c 'import pkg_resources as p; p.require(\"newchart>=2\")'", True),
}
"""By what is missing: a command, and whether what is suggested for it makes that very command pass here. What the distribution
has takes a system of its own."""


def fail(sandbox: SyncSandbox, ecosystem: str) -> tuple[CommandAnswer, Diagnosis]:
    answer = sandbox.run_command(CASES[ecosystem][0])
    assert answer.exit_code not in (0, None), (ecosystem, answer)
    assert answer.diagnosis is not None, (ecosystem, answer.stderr)
    assert answer.diagnosis.ecosystem == ecosystem
    return answer, answer.diagnosis


@pytest.mark.req("T3.70")
def test_eight_kinds_of_missing_dependency_are_told_beside_an_untouched_result(
    client: SyncColdframe, prepared: SyncSandbox
) -> None:
    sandbox = prepared
    sandbox.write_file("playwright.py", PLAYWRIGHT)
    sandbox.write_file("header.c", "#include <zlib-of-nobody.h>\n")
    sandbox.write_file("plain.c", "int main(void) { return 0; }\n")
    sandbox.write_file("none.c", "int nothing(void) { return 0; }\n")
    sandbox.write_file("needs.c", "int nothing(void); int main(void) { return nothing(); }\n")
    built = "gcc -shared -fPIC -o libcoldless.so.1 -Wl,-soname,libcoldless.so.1 none.c && gcc -o needs needs.c ./libcoldless.so.1 && rm libcoldless.so.1"
    assert sandbox.run_command(built).exit_code == 0
    assert sandbox.run_command("python3 -m pip install newchart==1.0").exit_code == 0
    for ecosystem, (command, passes) in CASES.items():
        answer, found = fail(sandbox, ecosystem)
        assert found.evidence in (answer.stderr or "") + (answer.stdout or "")
        plain = sandbox.run_command(["bash", "-c", command if isinstance(command, str) else " ".join(command)])
        assert plain.exit_code == answer.exit_code, "the exit code is the program's own"
        suggested = found.suggested_action
        if suggested.op == "sandbox.promote":
            assert suggested.args == {"to": "computer"}
            continue
        done = sandbox.run_command(suggested.args["command"])
        assert done.exit_code == 0, (ecosystem, done.stderr)
        again = sandbox.run_command(command)
        assert (again.exit_code == 0) is passes, (ecosystem, again.stderr)
        assert (again.diagnosis is None) is passes
    unmet = sandbox.run_command("python3 -m pip install tinychart==9")
    assert unmet.diagnosis is not None and unmet.diagnosis.suggested_action.args["command"][-1] == "tinychart==1.2"


@pytest.mark.req("T3.70")
def test_what_a_program_only_prints_is_no_diagnosis(sandbox: SyncSandbox) -> None:
    text = "ModuleNotFoundError: No module named 'tinychart'\n"
    printed = sandbox.run_command(["sh", "-c", 'printf %s "$0" >&2; printf %s "$0"', text])
    assert (printed.exit_code, printed.stdout, printed.stderr, printed.diagnosis) == (0, text, text, None)
    killed = sandbox.run_command(["sh", "-c", 'printf %s "$0" >&2; kill -9 $$', text])
    assert (killed.signal, killed.diagnosis) == (9, None)


@pytest.mark.req("T3.70")
def test_a_job_and_a_stream_have_the_same_diagnosis_and_it_stays_on_record(sandbox: SyncSandbox) -> None:
    command = ["python3", "-c", "import tinychart_of_nobody"]
    job = sandbox.start(command)
    job.wait()
    info = job.info()
    assert info.diagnosis is not None and info.diagnosis.name == "tinychart_of_nobody"
    assert info.status is not None and info.result is not None
    assert (info.status.state, info.status.code, info.status.family) == ("exited", "DEPENDENCY_MISSING", "input")
    assert info.result.exit_code == 1
    assert info.status.next_actions[0]["op"] == "run_command"
    assert info.status.next_actions[0]["args"]["command"][-1] == "tinychart-of-nobody"
    *_, last = sandbox.run(command)
    assert last.value["diagnosis"]["name"] == "tinychart_of_nobody"  # type: ignore[union-attr]
