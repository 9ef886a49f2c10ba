"""What the last words of a command that failed say is missing, and what may help."""

import time

import pytest

from coldframe.contract.diagnosis import READ_BYTES, Failed, diagnose

ERESOLVE = """npm ERR! code ERESOLVE
npm ERR! ERESOLVE unable to resolve dependency tree
npm ERR! Found: react@18.2.0
npm ERR! Could not resolve dependency:
npm ERR! peer react@"^16.0.0" from leftbox@1.0.0
"""
PLAYWRIGHT = """playwright._impl._errors.Error: BrowserType.launch: Executable doesn't exist at \
/home/user/.cache/ms-playwright/chromium-1140/chrome-linux/chrome
╔════════════════════════════════════════════════════════════╗
║ Please run the following command to download new browsers: ║
║     playwright install                                     ║
╚════════════════════════════════════════════════════════════╝
"""
NODE_ESM = """node:internal/modules/esm/resolve:873
  throw new ERR_MODULE_NOT_FOUND(packageName, fileURLToPath(base), null);
Error [ERR_MODULE_NOT_FOUND]: Cannot find package '@scope/box' imported from /home/user/a.mjs
  code: 'ERR_MODULE_NOT_FOUND'
"""


def failed(
    text: str, words: str = "make test", exit_code: int = 1, profile: str = "workspace", stdout: str = ""
) -> Failed:
    return Failed(exit_code=exit_code, words=words, profile=profile, stdout=stdout, stderr=text)  # type: ignore[arg-type]


CASES = [
    ("bash: line 1: frobnicate: command not found\n", "shell", "frobnicate", None),
    (
        "sh: 1: vite: not found\n",
        "shell",
        "vite",
        ["npm", "install", "--global", "--prefix", "/home/user/.local", "vite"],
    ),
    ("bash: line 3: pytest: command not found\n", "shell", "pytest", ["python3", "-m", "pip", "install", "pytest"]),
    ("/usr/bin/env: ‘node’: No such file or directory\n", "shell", "node", None),
    (
        "Traceback (most recent call last):\n  File \"a.py\", line 1\nModuleNotFoundError: No module named 'tinychart.bars'\n",
        "python",
        "tinychart.bars",
        ["python3", "-m", "pip", "install", "tinychart"],
    ),
    ("/usr/bin/python3: No module named yaml\n", "python", "yaml", ["python3", "-m", "pip", "install", "pyyaml"]),
    (
        "Error: Cannot find module 'leftbox/part'\nRequire stack:\n- /home/user/a.js\n  code: 'MODULE_NOT_FOUND',\n",
        "node",
        "leftbox",
        ["npm", "install", "leftbox"],
    ),
    (NODE_ESM, "node", "@scope/box", ["npm", "install", "@scope/box"]),
    (
        "./app: error while loading shared libraries: libpq.so.5: cannot open shared object file: No such file or directory\n",
        "shared_library",
        "libpq.so.5",
        None,
    ),
    ("ImportError: libGL.so.1: cannot open shared object file: No such file\n", "shared_library", "libGL.so.1", None),
    (
        "main.c:1:10: fatal error: zlib.h: No such file or directory\n    1 | #include <zlib.h>\n",
        "header",
        "zlib.h",
        None,
    ),
    (
        "error: command 'x86_64-linux-gnu-gcc' failed: No such file or directory\n",
        "compiler",
        "x86_64-linux-gnu-gcc",
        None,
    ),
    ("error: linker `cc` not found\n", "compiler", "cc", None),
    ("bash: line 1: gcc: command not found\n", "compiler", "gcc", None),
    (PLAYWRIGHT, "browser", "chromium", ["python3", "-m", "playwright", "install", "chromium"]),
    (
        PLAYWRIGHT.replace("playwright install", "npx playwright install"),
        "browser",
        "chromium",
        ["npx", "playwright", "install", "chromium"],
    ),
    (
        "Error: Could not find Chrome (ver. 131.0.6778.204). This can occur if\n",
        "browser",
        "chrome",
        ["npx", "puppeteer", "browsers", "install", "chrome@131.0.6778.204"],
    ),
    (
        "ERROR: Could not find a version that satisfies the requirement tinychart==9 (from versions: 1.0, 1.2)\n",
        "python_version",
        "tinychart",
        ["python3", "-m", "pip", "install", "tinychart==1.2"],
    ),
    (
        "ERROR: Could not find a version that satisfies the requirement tinychart==1.1 (from versions: 1.0, 1.2, 10.0)\n",
        "python_version",
        "tinychart",
        ["python3", "-m", "pip", "install", "tinychart==1.0"],
    ),
    ("/usr/bin/python3: No module named pip\n", "python", "pip", None),
    (
        "ERROR: Cannot install a==1.0 and b==2.0 because these package versions have conflicting dependencies.\n",
        "python_version",
        "a",
        ["python3", "-m", "pip", "install", "a", "b"],
    ),
    (
        "npm ERR! code ETARGET\nnpm ERR! notarget No matching version found for leftbox@^9.0.0.\n",
        "node_version",
        "leftbox",
        ["npm", "install", "leftbox@latest"],
    ),
    (ERESOLVE, "node_version", "react", ["npm", "install", "--legacy-peer-deps"]),
]


@pytest.mark.parametrize(("text", "ecosystem", "name", "command"), CASES)
def test_each_kind_of_missing_dependency_is_named_with_what_may_help(
    text: str, ecosystem: str, name: str, command: list[str] | None
) -> None:
    found = diagnose(failed(text))
    assert found is not None
    assert (found.code, found.ecosystem, found.name) == ("DEPENDENCY_MISSING", ecosystem, name)
    assert found.evidence in text and name.split(".")[0] in found.evidence.lower() + found.evidence
    if command is None:  # a package of the distribution takes a system of its own
        assert (found.suggested_action.op, found.suggested_action.args) == ("sandbox.promote", {"to": "computer"})
        own = diagnose(failed(text, profile="computer"))
        assert own is not None and own.suggested_action.op == "run_command"
        assert own.suggested_action.args["user"] == "root"
        assert "apt-get install --yes" in own.suggested_action.args["command"][2]
    else:
        assert (found.suggested_action.op, found.suggested_action.args["command"]) == ("run_command", command)


@pytest.mark.parametrize(
    "text",
    [
        "AssertionError: 1 != 2\n",
        "Error: Cannot find module './mine'\n  code: 'MODULE_NOT_FOUND'\n",
        "Error: Cannot find module '/home/user/nowhere.js'\n  code: 'MODULE_NOT_FOUND'\n",
        'a.c:1:10: fatal error: mine.h: No such file or directory\n    1 | #include "mine.h"\n',
        "cat: notes.txt: No such file or directory\n",
        "Error: Cannot find module '--registry=http://evil.test'\n  code: 'MODULE_NOT_FOUND'\n",
        "Error: Cannot find module 'git+ssh://evil.test/x'\n  code: 'MODULE_NOT_FOUND'\n",
        "ERROR: Could not find a version that satisfies the requirement -r/etc/passwd (from versions: none)\n",
        "",
    ],
)
def test_a_failure_of_another_kind_and_a_name_that_is_none_give_no_diagnosis(text: str) -> None:
    assert diagnose(failed(text)) is None


def test_a_program_that_could_not_be_started_is_named_by_its_own_word() -> None:
    found = diagnose(
        failed("", words="frobnicate --all", exit_code=127)._replace(start_error="No such file or directory")
    )
    assert found is not None and (found.ecosystem, found.name) == ("shell", "frobnicate")
    assert diagnose(failed("", words="./run.sh", exit_code=127)._replace(start_error="No such file")) is None


@pytest.mark.req("T4.19")
def test_a_version_that_is_not_to_be_had_is_told_with_the_nearest_and_never_replaced_by_what_is_far_from_it() -> None:
    there = "0.9, 1.0, 1.2, 1.10, 2.0rc1, 2.0, 3.0"
    text = f"ERROR: Could not find a version that satisfies the requirement tinychart=={{}} (from versions: {there})\n"
    for wanted, near, suggested in (
        ("1.11", ("1.0", "1.2", "1.10", "2.0rc1", "2.0"), "1.10"),
        ("0.1", ("0.9", "1.0", "1.2", "1.10", "2.0rc1"), "0.9"),
        ("9", ("1.2", "1.10", "2.0rc1", "2.0", "3.0"), "3.0"),
    ):
        found = diagnose(failed(text.format(wanted)))
        assert found is not None and (found.wanted, found.nearest) == (f"tinychart=={wanted}", near)
        assert found.suggested_action.args["command"][-1] == f"tinychart=={suggested}"
    none = diagnose(failed("ERROR: ... satisfies the requirement tinychart==1 (from versions: none)\n"))
    assert none is not None and none.nearest == () and "nearest" not in none.model_dump()


def test_the_python_that_missed_it_installs_it() -> None:
    text = "ModuleNotFoundError: No module named 'tinychart'\n"
    for words, python in (
        (".venv/bin/python a.py", ".venv/bin/python"),
        ("cd app && env/bin/python3.11 -m app", "env/bin/python3.11"),
        (".venv/bin/pytest -q", ".venv/bin/python"),
        ("pytest", "python3"),
        ("python3 'unclosed", "python3"),
    ):
        found = diagnose(failed(text, words=words))
        assert found is not None and found.suggested_action.args["command"][0] == python


def test_the_last_word_of_the_error_stream_counts_and_then_that_of_the_other() -> None:
    both = "ModuleNotFoundError: No module named 'first'\nModuleNotFoundError: No module named 'second'\n"
    found = diagnose(failed(both))
    assert found is not None and found.name == "second"
    found = diagnose(failed("1 failed\n", stdout="E   ModuleNotFoundError: No module named 'third'\n"))
    assert found is not None and found.name == "third"


@pytest.mark.parametrize(
    "text",
    [
        "lib" * (READ_BYTES // 3),
        "cannot open shared object file " + "lib.so" * (READ_BYTES // 6),
        ": line 1: " * (READ_BYTES // 10) + "command not found",
        "Cannot install " * (READ_BYTES // 15) + "conflicting dependencies",
        "VersionConflict: (" * (READ_BYTES // 18),
        "satisfies the requirement " + "(from versions: " * (READ_BYTES // 16),
        "Could not resolve dependency:\n" * (READ_BYTES // 30),
        "No matching version found for " + "." * READ_BYTES,
    ],
)
def test_no_text_takes_long_to_read(text: str) -> None:
    """By processor time of this thread, of which each takes far less than this."""
    before = time.thread_time()
    diagnose(failed(text, stdout=text))
    assert time.thread_time() - before < 5
