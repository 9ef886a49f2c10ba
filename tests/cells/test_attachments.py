"""Code works on files that are attached to a conversation, each of which has a sandbox of its own."""

import hashlib
import os

import pytest

from coldframe.client.sync import SyncColdframe
from coldframe.contract.errors import InvalidArgument, SessionExpired
from tests.installation import Installation, wait_until

LIST = "import os\nsorted(os.listdir('inputs'))"


@pytest.mark.req("T4.08")
def test_each_conversation_has_its_own_files_and_no_others(client: SyncColdframe) -> None:
    with (
        client.sandboxes.create(background=True, network="none") as first,
        client.sandboxes.create(background=True, network="none") as second,
    ):
        one = first.attach("first.csv", b"canary-of-one,1\n")
        second.attach("second.csv", b"canary-of-two,2\n")
        assert (one.path, one.sha256) == ("inputs/first.csv", hashlib.sha256(b"canary-of-one,1\n").hexdigest())
        assert first.run_code(LIST).text == "['first.csv']"
        seen = second.run_code("import subprocess\nsubprocess.run(['grep', '-rl', 'canary-of-one', '/home/user'])")
        assert seen.stdout == ""
        mode = "oct(os.stat('inputs/first.csv').st_mode & 0o777)"
        assert first.run_code(mode).text == "'0o444'"
        assert first.run_code("open('inputs/first.csv', 'a')").error is not None


@pytest.mark.req("T4.08")
def test_a_file_that_comes_later_stays_for_the_turns_after(client: SyncColdframe) -> None:
    with client.sandboxes.create(background=True, network="none") as sandbox:
        sandbox.run_code("turn = 1")
        sandbox.run_code("turn = 2")
        sandbox.attach("late.txt", b"third turn", source="message 3")
        assert sandbox.run_code("turn = 3\nopen('inputs/late.txt').read()").text == "'third turn'"
        assert sandbox.run_code("turn, open('inputs/late.txt').read()").text == "(3, 'third turn')"


@pytest.mark.req("T4.08")
def test_two_files_of_one_name_lie_at_two_places_with_a_note(client: SyncColdframe) -> None:
    with client.sandboxes.create(background=True, network="none") as sandbox:
        first, second, again = (sandbox.attach("data.csv", content) for content in (b"one", b"two", b"two"))
        assert (first.path, first.note) == ("inputs/data.csv", None)
        assert second.path == "inputs/data-2.csv" and "inputs/data-2.csv" in (second.note or "")
        assert again.path == second.path and "before" in (again.note or "")
        assert sandbox.read_file("inputs/data.csv").content == "one"
        for name in ("", "..", "a/b", "/etc/passwd", "a\nb"):
            with pytest.raises(InvalidArgument):
                sandbox.attach(name, b"x")


@pytest.mark.req("T4.08", "T4.02")
def test_when_the_conversation_ends_its_files_and_variables_are_gone(
    client: SyncColdframe, installation: Installation
) -> None:
    sandbox = client.sandboxes.create(background=True, network="none", profile="interpreter")
    sandbox.attach("gone.txt", b"x")
    assert sandbox.run_code("x = 1").status == "ok"
    assert sandbox.run_code("x + 1").text == "2"
    folder = os.path.join(installation.data_dir, "background", sandbox.info.session_id)
    assert os.path.exists(os.path.join(folder, "inputs", "gone.txt"))
    sandbox.terminate(discard=True)
    wait_until(lambda: not os.path.exists(folder), "the files are gone")
    with pytest.raises(SessionExpired):
        sandbox.run_code("x")
