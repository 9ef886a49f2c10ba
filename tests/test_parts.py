"""`scripts/test` runs every test, shows what each part said, fails if one did, and ends all of them when it is ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.installation import wait_until
from tests.parts import ALONE, BOXLESS, CHECKOUT, LARGE, ORDINARY, own_parts
from tests.reachable import command_line

RUN = """
import asyncio, sys
from tests.parts import Part, run_all
parts = [Part(name, (sys.executable, "-c", text)) for name, text in zip(sys.argv[1::2], sys.argv[2::2])]
sys.exit(asyncio.run(run_all(parts[:1], parts[1:], 2)))
"""


def start(*parts: str) -> subprocess.Popen[str]:
    """Runs parts, each a name and a program; the first by itself."""
    return subprocess.Popen(
        [sys.executable, "-c", RUN, *parts],
        cwd=CHECKOUT,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


def test_each_part_is_shown_whole_and_what_failed_is_said_again_at_the_end() -> None:
    code, output = ended(start("one", "print('well')", "two", "print('FAILED tests/x.py - no'); exit(1)", "three", ""))
    assert code == 1
    assert [output.count(text) for text in (" one ####", " two ####", " three ####", "\nwell\n")] == [1, 1, 1, 1]
    end = output[output.rindex("####") :]
    assert "test: two: FAILED tests/x.py - no\n" in end
    assert "FAILED: two\n" in end and end.count("passed ") == 2


def test_if_no_part_failed_it_says_so() -> None:
    code, output = ended(start("one", "", "two", ""))
    assert (code, output.splitlines()[-1].split("; ")[1]) == (0, "FAILED: none")


def test_the_first_part_is_alone(tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    slow = f"import time; time.sleep(0.3); open({mark!r}, 'w').close()"
    assert ended(start("one", slow, "two", f"open({mark!r}).close()"))[0] == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_end_reaches_every_part_which_clears_up_before_it_is_over(tmp_path: Path, number: signal.Signals) -> None:
    program = (
        "import subprocess, time\nplace = {place!r}\nchild = subprocess.Popen(['sleep', '600'])\n"
        "try:\n    open(place, 'w').write(str(child.pid))\n    time.sleep(600)\n"
        "finally:\n    time.sleep(0.1)\n    open(place + '-cleared', 'w').close()\n    print('cleared up', flush=True)\n"
    )
    places = [str(tmp_path / name) for name in ("two", "three")]
    two, three = (program.format(place=place) for place in places)
    process = start("one", "", "two", two, "three", three, "never", "print('begun')")
    begun = [Path(place) for place in places]
    wait_until(lambda: all(one.exists() and one.read_text() for one in begun), "both have begun", timeout_s=60)
    process.send_signal(number)
    code, output = ended(process)
    assert code == 130
    assert sorted(os.listdir(tmp_path)) == ["three", "three-cleared", "two", "two-cleared"]
    children = [int(Path(place).read_text()) for place in places]
    wait_until(lambda: not any(map(command_line, children)), "no child is left")
    assert output.count("cleared up") == 2 and "INTERRUPTED" in output and "begins: never" not in output


def test_every_test_of_the_project_is_in_a_part_and_none_is_in_two() -> None:
    named = [*ALONE, *LARGE, *BOXLESS]
    assert len(set(named)) == len(named)
    assert all((CHECKOUT / "tests" / one).exists() for one in (*named, *sum(ORDINARY, ())))
    for part in own_parts():  # a file of a directory that is a part runs in one of both
        inside = [one for one in ALONE if one.startswith(f"{part.name}/")]
        assert all(f"--ignore=tests/{one}" in part.command for one in inside)
    rest = next(part for part in own_parts() if part.name == "the rest")
    assert {word for word in rest.command if word.startswith("--ignore=")} == {f"--ignore=tests/{one}" for one in named}
    assert not [word for word in rest.command if word.startswith("tests/")]  # whatever else there is


def test_what_a_part_says_of_itself_is_its_last_line() -> None:
    code, output = ended(start("one", "print('=== 3 passed in 2.00s ===\\nand of somebody else')"))
    assert code == 0 and "passed      one: 3 passed in 2.00s\n" in output
