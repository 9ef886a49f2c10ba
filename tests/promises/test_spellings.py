"""However a command of the default deny list is written it has no effect: refused before it starts, or run against a wall."""

import base64

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import DeniedByRule
from tests.installation import Installation
from tests.policy.corpus import denied
from tests.promises.governed import head, nothing_happens
from tests.promises.raw import all_entries, call
from tests.promises.test_loop import need

SPELLINGS = {
    "spaces": ("sudo   id", "\tsudo\tid", "rm  -rf   /", "sudo \\\n id"),
    "split flags": ("rm -r -f /", "unshare -U -r id", "rm / -r --force"),
    "merged flags": ("rm -fr /", "rm -rfv /", "unshare -Ur id"),
    "long flags": ("rm --recursive --force /", "rm --rec --no-preserve-root /", "unshare --user --map-root-user id"),
    "quotes inside words": ("su'd'o id", 's"ud"o id', "r\\m -rf /", "$'sudo' id", "$'\\x73udo' id"),
    "variables": ("x=sudo; $x id", "a=su; b=do; $a$b id", "${F:-sudo} id", "d=/; rm -rf $d", 'c="sudo id"; $c'),
    "substitutions": ("echo $(sudo id)", "echo `sudo id`", "cat <(sudo id)", "x=$(sudo id)"),
    "absolute paths": ("/usr/bin/sudo id", "/bin/rm -rf /", "/usr/bin/../bin/rm -rf /"),
    "env": ("env sudo id", "env -i A=1 sudo id", "env -S 'sudo id'"),
    "command": ("command sudo id", "command -p rm -rf /"),
    "exec": ("exec sudo id", "exec -a ls sudo id"),
    "nohup": ("nohup sudo id &", "nohup setsid timeout 9 nice sudo id"),
    "xargs": ("echo id | xargs sudo", "echo / | xargs rm -rf", "xargs -I{} sudo {} <<< id"),
    "find -exec": ("find . -exec sudo id {} +", "find / -exec rm -rf {} +", "find / -delete"),
    "aliases": ("alias ls='sudo id'; ls", "alias k=sudo; k id"),
    "functions": ("f() { sudo id; }; f", "function f { rm -rf /; }; f"),
    "sh -c": ("sh -c 'sudo id'", "bash -lc 'sudo id'", "sh -c \"sh -c 'sudo id'\"", "eval 'sudo id'"),
    "here-documents": ("sh <<E\nsudo id\nE", "cat <<'E' | bash\nsudo id\nE", "bash <<< 'sudo id'"),
    "pipes": ("echo 'sudo id' | sh", "printf 'sudo id' | bash -s"),
}


@pytest.mark.req("T1.95")
def test_a_listed_command_is_refused_before_it_starts_in_every_spelling_that_text_shows(
    governed: Installation, owner: SyncColdframe, box: SyncSandbox
) -> None:
    texts = [text for some in SPELLINGS.values() for text in some] + [text for _, text in denied()]
    lists = [["sudo", "id"], ["env", "sudo", "id"], ["bash", "-c", "su'd'o id"], ["xargs", "-a", "a.txt", "sudo"]]
    with nothing_happens(box):
        since = head(owner)
        for command in (*texts, *lists):
            answer = call(governed, box.id, "run_command", {"command": command})
            assert (answer.status, answer.code) == (403, "DENIED_BY_RULE"), command
            assert answer.json["error"]["facts"]["rule"].startswith("denylist:"), command
        kinds = [entry.kind for entry in all_entries(owner, after=since)]
    assert kinds == ["call.refused"] * len(texts + lists)


EFFECT = "mount -t tmpfs none /home/user/scratch && echo EFFECT"
MOUNTS = "cut -d' ' -f4- /proc/self/mountinfo"
UNSEEN: dict[str, str] = {
    "decoded pipe": f"echo {base64.b64encode(EFFECT.encode()).decode()} | base64 -d | sh",
    "text of an interpreter": f'python3 -c "import os; os.system({EFFECT!r})"',
    "word that is made": "$(printf 'mou%s' nt) -t tmpfs none /home/user/scratch && echo EFFECT",
    "script file": "sh script.sh",
    "copied binary": "cp /usr/bin/mount harmless; ./harmless -t tmpfs none /home/user/scratch && echo EFFECT",
    "renamed link": "ln -s /usr/bin/mount other; ./other -t tmpfs none /home/user/scratch && echo EFFECT",
}


@pytest.mark.req("T1.95")
@pytest.mark.parametrize("unseen", UNSEEN)
def test_what_text_does_not_show_runs_against_the_wall_and_stands_in_the_record(
    owner: SyncColdframe, box: SyncSandbox, unseen: str
) -> None:
    """What it starts is not looked at when it starts: the walls alone hold it then."""
    need(box, "test", "-x", "/usr/bin/mount")
    box.write_file("script.sh", f"{EFFECT}\n")
    before = box.run_command(MOUNTS).stdout
    since = head(owner)
    ran = box.run_command(UNSEEN[unseen])
    assert "EFFECT" not in (ran.stdout or "")
    assert box.run_command(MOUNTS).stdout == before
    started = next(entry for entry in all_entries(owner, after=since) if entry.kind == "call.started")
    assert started.body["context"]["command"] == UNSEEN[unseen]
    seen = started.body["context"]["reading"]["certainty"]
    assert seen == ("complete" if unseen in ("script file", "copied binary", "renamed link") else "opaque")


UNPARSABLE = {
    "echo 'open": 5,
    "if true; then ls": 16,
    "ls )": 3,
    "true\nls )": 8,
    "echo é; echo 'open": 14,
    "a && && b": 5,
    "{ ls": 4,
    "ls ;; ls": 3,
}
"""Where the text stops being shell, in bytes of UTF-8."""


@pytest.mark.req("T1.97")
def test_what_no_shell_could_read_is_refused_with_the_position_in_strict_mode_and_runs_otherwise(
    governed: Installation, owner: SyncColdframe, box: SyncSandbox
) -> None:
    """The default is documented in docs/policy.md: such text runs, under all that the reader did find, and bash refuses it."""
    for command in UNPARSABLE:
        ran = box.run_command(command)
        assert ran.exit_code != 0 and ran.stderr, command
    with pytest.raises(DeniedByRule):
        box.run_command("sudo id\necho 'open")  # what stands before the fault is judged in both modes
    owner.policy.load("version: 1\nsettings: {strict_parsing: true}\n")
    with nothing_happens(box):
        for command, position in UNPARSABLE.items():
            refused = call(governed, box.id, "run_command", {"command": command})
            assert refused.code == "DENIED_BY_RULE"
            error = refused.json["error"]
            assert error["facts"]["rule"] == "settings:strict_parsing", command
            assert f"from byte {position} on" in error["message"], (command, error["message"])
        for command in ("$x", "echo aWQK | base64 -d | sh", "python3 -c 1", 'rm -rf "$x"', "eval $(cat a.txt)"):
            refused = call(governed, box.id, "run_command", {"command": command})
            assert refused.json["error"]["facts"]["rule"] == "settings:strict_parsing", command
    assert box.run_command("ls -la; x=a; echo $x; sh -c 'echo fine'").exit_code == 0
