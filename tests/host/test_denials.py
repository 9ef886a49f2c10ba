"""Programs denied by name are found under all their names, covered in the box, and missed when a cover is not there."""

import errno
import os
import re
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from coldframe.contract.errors import IsolationUnavailable
from coldframe.contract.isolation import Property
from coldframe.contract.ports import BoxLife
from coldframe.contract.sandbox import SandboxSpec
from coldframe.host import confine, offered_tools, report
from coldframe.host.isolation import denials
from coldframe.host.machine import Machine
from tests.host.forked import in_child
from tests.host.machines import as_root_and_ordinary, needs_bubblewrap, on_a_machine
from tests.programs import needs_its_own

CONTENT = "#!/bin/sh\n"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Program directories of our own: `bin`, a link `sbin` to it, `local`; and `lib` and `alternatives` beside them."""
    for name in ("bin", "local", "lib", "alternatives"):
        (tmp_path / name).mkdir()
    (tmp_path / "sbin").symlink_to("bin")
    folders = tuple(str(tmp_path / name) for name in ("local", "bin", "sbin", "absent"))
    monkeypatch.setattr(denials, "FOLDERS", folders)
    monkeypatch.setattr(denials, "SYSTEM", str(tmp_path))
    monkeypatch.setattr(denials, "ALTERNATIVES", str(tmp_path / "alternatives"))
    monkeypatch.setattr(denials, "_SHOWN", (f"{tmp_path}/",))
    monkeypatch.setattr(denials, "_WRITABLE", (str(tmp_path / "work"),))
    monkeypatch.setattr(denials, "_listings", {})
    monkeypatch.setattr(denials, "_links", {})
    return tmp_path


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text(CONTENT)


def covered(
    programs: Path, patterns: Sequence[str], monkeypatch: pytest.MonkeyPatch, others: Sequence[str] = ()
) -> tuple[set[str], set[str]]:
    """What would be covered, and which names are spared, below the directory."""
    taken: list[str] = []

    def take(files: Iterable[str]) -> None:
        taken.extend(files)

    monkeypatch.setattr(denials, "_cover", take)
    found = denials.cover(patterns, others)
    assert tuple(taken) == found.files
    return {os.path.relpath(one, programs) for one in found.files}, {
        os.path.relpath(path, programs) for path, _ in found.spared
    }


def test_names_patterns_and_paths_are_found_once_in_every_program_directory(programs: Path) -> None:
    put(programs / "bin", "curl", "curlie", "git", "git-push")
    put(programs / "local", "curl")
    put(programs / "lib", "helper")

    def found(*patterns: str) -> set[str]:
        return {os.path.relpath(one, programs) for one in denials.find_named(patterns)}

    assert found("curl") == {"local/curl", "bin/curl"}
    assert found("curl*", "git") == {"local/curl", "bin/curl", "bin/curlie", "bin/git"}
    assert found("git-[a-p]*", "c?rl") == {"bin/git-push", "local/curl", "bin/curl"}
    assert found(f"{programs}/bin/curl") == {"bin/curl"}
    assert found(f"{programs}/sbin/cur*") == {"sbin/curl", "sbin/curlie"}
    assert found(f"{programs}/*l/curl") == {"local/curl"}
    assert found(f"{programs}/*curl") == {"local/curl", "bin/curl", "sbin/curl"}
    assert found(f"{programs}/bin/git*[!t]") == {"bin/git-push"}
    assert found(f"{programs}/lib/helper", f"{programs}/lib/none") == {"lib/helper"}
    assert found("none", "../bin/curl", "bin/curl", "/elsewhere/curl") == set()


def test_links_are_followed_and_every_other_name_of_the_file_goes_too(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(programs / "lib", "mawk")
    put(programs / "bin", "alone")
    (programs / "bin" / "awk").symlink_to("../alternatives/awk")
    (programs / "alternatives" / "awk").symlink_to("../lib/mawk")
    os.link(programs / "lib" / "mawk", programs / "local" / "mawk-1.3")
    os.link(programs / "lib" / "mawk", programs / "lib" / "far")
    elsewhere = denials.other_names(["awk"])
    assert elsewhere == [str(programs / "lib" / "far")]
    files, spared = covered(programs, ["awk"], monkeypatch, [*elsewhere, str(programs / "bin" / "alone")])
    assert (files, spared) == ({"lib/mawk", "local/mawk-1.3", "lib/far"}, set())
    assert denials.other_names(["alone"]) == []


@pytest.mark.parametrize(
    ("real", "links", "denied", "files", "spared"),
    [
        # a name of a program that is not denied
        ("bin/git", {"bin/git-receive-pack": "git"}, ["git-*"], set(), {"bin/git-receive-pack"}),
        ("bin/git", {"bin/git-receive-pack": "git"}, ["git"], {"bin/git"}, set()),
        ("bin/git", {"bin/git-receive-pack": "git"}, ["git*"], {"bin/git"}, set()),
        ("bin/bash", {"bin/rbash": "bash", "bin/sh": "bash"}, ["rbash", "sh"], set(), {"bin/rbash", "bin/sh"}),
        ("bin/bash", {"local/bash": "../bin/bash"}, ["PROGRAMS/local/bash"], {"bin/bash"}, set()),
        ("bin/pgrep", {"bin/pkill": "pgrep"}, ["pkill"], set(), {"bin/pkill"}),
        ("bin/pgrep", {"bin/pkill": "pgrep"}, ["pgrep"], {"bin/pgrep"}, set()),
        # a form of what is denied
        ("bin/python3.11", {"bin/python3": "python3.11"}, ["python3"], {"bin/python3.11"}, set()),
        (
            "bin/python3.11",
            {"bin/python3": "python3.11", "bin/python": "python3"},
            ["python"],
            {"bin/python3.11"},
            set(),
        ),
        (
            "bin/x86-gnu-gcc-12",
            {"bin/gcc-12": "x86-gnu-gcc-12", "bin/gcc": "gcc-12"},
            ["gcc"],
            {"bin/x86-gnu-gcc-12"},
            set(),
        ),
        ("bin/pgcc", {"bin/gcc": "pgcc"}, ["gcc"], set(), {"bin/gcc"}),
        # by choice of the machine
        (
            "bin/mawk",
            {"alternatives/awk": "../bin/mawk", "bin/awk": "../alternatives/awk"},
            ["awk"],
            {"bin/mawk"},
            set(),
        ),
        (
            "bin/nc.open",
            {"alternatives/nc": "../bin/nc.open", "bin/nc": "../alternatives/nc"},
            ["nc"],
            {"bin/nc.open"},
            set(),
        ),
        (
            "bin/many",
            {"bin/ip-nft": "many", "alternatives/ip": "../bin/ip-nft", "bin/ip": "../alternatives/ip"},
            ["ip"],
            set(),
            {"bin/ip"},
        ),
        # a file elsewhere, which is no program under its own name
        ("lib/cli.js", {"bin/tool": "../lib/cli.js"}, ["tool"], {"lib/cli.js"}, set()),
        ("lib/pdb.py", {"bin/pdb3": "pdb3.11", "bin/pdb3.11": "../lib/pdb.py"}, ["pdb3"], {"lib/pdb.py"}, set()),
        ("lib/wrapper", {"bin/psql": "../lib/wrapper", "bin/dump": "../lib/wrapper"}, ["psql"], set(), {"bin/psql"}),
        ("lib/clang", {"bin/clang-14": "../lib/clang", "bin/clang": "../lib/clang"}, ["clang"], {"lib/clang"}, set()),
        (
            "lib/clang",
            {"bin/clang-14": "../lib/clang", "bin/clang": "../lib/clang"},
            ["clang-14"],
            set(),
            {"bin/clang-14"},
        ),
        (
            "lib/wrapper",
            {"bin/psql": "../lib/wrapper", "bin/dump": "../lib/wrapper"},
            ["psql", "dump"],
            {"lib/wrapper"},
            set(),
        ),
        # names of the very file
        ("bin/unzip", {"bin/zipinfo": ""}, ["unzip"], {"bin/unzip", "bin/zipinfo"}, set()),
        ("bin/git", {"bin/git-receive-pack": ""}, ["git-*"], set(), {"bin/git-receive-pack"}),
        ("bin/git", {"bin/git-receive-pack": ""}, ["git"], {"bin/git", "bin/git-receive-pack"}, set()),
        ("bin/git", {"bin/git-receive-pack": ""}, ["git", "git-*"], {"bin/git", "bin/git-receive-pack"}, set()),
    ],
)
def test_a_name_covers_the_program_that_it_means_and_takes_no_other_away(
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
    real: str,
    links: dict[str, str],
    denied: list[str],
    files: set[str],
    spared: set[str],
) -> None:
    """A link leads to the text beside it; without one it is another name of the file."""
    (programs / real).write_text(CONTENT)
    put(programs / "bin", "git-shell" if "git-*" in denied else "beside")
    for name, target in links.items():
        if target:
            (programs / name).symlink_to(target)
        else:
            os.link(programs / real, programs / name)
    found = covered(programs, [one.replace("PROGRAMS", str(programs)) for one in denied], monkeypatch)
    assert found == (files | ({"bin/git-shell"} if "git-*" in denied else set()), spared)


def test_what_leads_to_no_file_of_the_system_is_let_alone(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (programs / "work").mkdir()
    put(programs / "work", "mine")
    (programs / "bin" / "mine").symlink_to(programs / "work" / "mine")
    (programs / "bin" / "broken").symlink_to("nothing")
    (programs / "bin" / "folder").mkdir()
    assert covered(programs, ["mine", "broken", "folder"], monkeypatch) == (set(), set())
    assert set(denials.look(["mine", "broken", "folder"], denials.Covers())["names"].values()) == {denials.NOWHERE}


@pytest.mark.parametrize("by", ["symbolic links", "hard links"])
def test_a_program_of_many_names_is_spared_unless_it_is_denied_itself(
    programs: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    put(programs / "bin", "busybox", "other")
    for name in ("ls", "sh"):
        if by == "hard links":
            os.link(programs / "bin" / "busybox", programs / "bin" / name)
        else:
            (programs / "bin" / name).symlink_to("busybox")
    assert covered(programs, ["ls", "other"], monkeypatch) == ({"bin/other"}, {"bin/ls"})
    name, real = str(programs / "bin" / "ls"), os.path.realpath(programs / "bin" / "ls")
    assert denials.look(["ls"], denials.Covers((), ((name, real),)))["spared"] == {name: real}
    assert denials.look(["ls"], denials.Covers((), ((name, str(programs / "bin" / "other")),)))["spared"] == {}
    files, spared = covered(programs, ["busybox", "ls"], monkeypatch)
    assert "bin/busybox" in files and not spared


def test_a_directory_is_listed_again_when_it_has_changed(programs: Path) -> None:
    assert denials.find_named(["new"]) == []
    os.utime(programs / "bin", (1, 1))  # long ago, so that what was listed is kept
    assert denials.find_named(["new"]) == []
    put(programs / "bin", "new")
    assert denials.find_named(["new"]) == [str(programs / "bin" / "new")]


def test_a_keeper_is_told_of_what_is_there_and_never_more_than_fits(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(programs / "bin", "curl")
    wanted = ["curl", "none", "c*", "n*", "sleep", "python", "deno", f"{programs}/bin/curl", f"{programs}/bin/none"]
    assert denials.in_use(wanted, ["deno"]) == ["curl", "c*", "sleep", "python", "deno", f"{programs}/bin/curl"]
    many = [f"program-{number:04}-with-a-name-of-some-length" for number in range(2000)]
    put(programs / "bin", *many)
    assert offered_tools.denied_here(["program-*"])["denied"] == ["program-*"]
    with pytest.raises(IsolationUnavailable, match="2000 programs") as refused:
        offered_tools.denied_here(many)
    assert refused.value.facts["property"] == "denied_programs"
    wide = [f"{'é' * 100}{number}" for number in range(70)]  # each of these letters takes six bytes of an order
    put(programs / "local", *wide)
    with pytest.raises(IsolationUnavailable, match="70 programs"):
        offered_tools.denied_here(wide)


def test_a_path_is_looked_for_without_listing_anything(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(programs / "bin", "curl")
    monkeypatch.setattr(denials, "_names_in", lambda folder: pytest.fail(f"{folder} was listed"))
    assert denials.find_named([f"{programs}/bin/curl", f"{programs}/bin/none"]) == [f"{programs}/bin/curl"]


def test_a_program_directory_that_cannot_be_listed_is_told_with_what_to_do(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: str) -> list[str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(IsolationUnavailable, match=r"`.*/local` cannot be listed: Permission denied") as refused:
        offered_tools.denied_here(["curl"])
    assert refused.value.hint
    assert "cannot be listed" in judge({"names": {}, "files": {}, "spared": {}}).evidence


def test_a_cover_that_can_be_read_or_executed_is_told(programs: Path) -> None:
    for name, mode, content in (("whole", 0o755, "x"), ("empty", 0o755, ""), ("readable", 0o400, ""), ("full", 0, "x")):
        (programs / "bin" / name).write_text(content)
        (programs / "bin" / name).chmod(mode)
        told = denials.look([name], denials.Covers((str(programs / "bin" / name),)))["files"]
        assert list(told.values()) == [f"mode {mode:04o}, {len(content)} bytes"], name
    removed = denials.look([], denials.Covers((str(programs / "bin" / "removed"),)))
    assert list(removed["files"].values()) == [denials.GONE]


# -- in a box --------------------------------------------------------------------------------------

SPEC = SandboxSpec(background=True, denied_programs=("tac", "no-such-program"))


async def judged(life: BoxLife) -> Property:
    measured = await life.report()
    return next(one for one in measured.properties if one.name == "denied_programs")


@needs_bubblewrap
@needs_its_own("tac")
@as_root_and_ordinary
def test_a_program_that_was_installed_later_under_a_denied_name_is_a_wall_that_fell(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await machine.create("box", SPEC, session_id="s")
        life = await machine.life("box")
        held = await judged(life)
        assert held.state == "enforced" and "/usr/bin/tac" in held.evidence
        find, threads = denials.find_named, set()

        def find_more(patterns: Sequence[str]) -> list[str]:
            threads.add(threading.get_ident())
            return [*find(patterns), "/usr/bin/no-such-program"]

        try:
            denials.find_named = find_more
            fallen = await judged(life)
        finally:
            denials.find_named = find
        assert (fallen.state, fallen.required) == ("absent", True)
        assert "/usr/bin/no-such-program was not there" in fallen.evidence
        assert threads and threading.get_ident() not in threads  # to look takes long where many are denied

    on_a_machine(steps, who=who)


@needs_bubblewrap
@needs_its_own("tac")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to take a mount out of a box")
def test_a_cover_that_is_gone_is_found_when_the_box_is_measured_again() -> None:
    """As it goes when a package of the machine puts another file in its place."""

    async def steps(machine: Machine) -> None:
        await machine.create("box", SPEC, session_id="s")
        life = await machine.life("box")
        assert (await judged(life)).state == "enforced"
        init = machine._lives["box"].mark.init

        def uncover() -> None:
            confine.setns(os.open(f"/proc/{init}/ns/mnt", os.O_RDONLY), "mnt")
            confine.detach("/usr/bin/tac")

        in_child(uncover)
        fallen = await judged(life)
        assert (fallen.state, fallen.required) == ("absent", True)
        assert re.search(r"/usr/bin/tac: mode 0755, \d+ bytes", fallen.evidence)
        assert "/usr/bin/tac is no sealed mount" in fallen.evidence

    on_a_machine(steps)


# -- as it is judged -------------------------------------------------------------------------------

NAMED = "/usr/bin/no-such-program"
SEALED = "61 40 0:52 /denied {} {} - tmpfs denied {},size=4k\n"


def judge(told: object, mountinfo: str = "") -> Property:
    """Of a box whose keeper said this, and whose processes cannot be read."""
    measured = report.measure(0, 0, {"denied": told, "mountinfo": mountinfo}, denied=["no-such-program"])
    return next(one for one in measured.properties if one.name == "denied_programs")


def test_a_name_of_a_multi_call_program_is_told_as_not_covered_and_refuses_whom_it_matters_to() -> None:
    spared = {"names": {NAMED: "/usr/bin/busybox"}, "files": {}, "spared": {NAMED: "/usr/bin/busybox"}}
    found = judge(spared)
    assert (found.state, found.required) == ("partial", False)
    assert found.caveat == f"not covered: {NAMED} is part of /usr/bin/busybox"


@pytest.mark.parametrize("flags", [("ro,noexec", "rw"), ("rw,noexec", "ro"), ("ro,nosuid,nodev,noexec", "ro")])
def test_a_cover_that_stands_in_the_mounts_and_was_tried_is_enforced(flags: tuple[str, str]) -> None:
    told = {"names": {NAMED: NAMED}, "files": {NAMED: denials.COVERED}, "spared": {}}
    assert judge(told, SEALED.format(NAMED, *flags)).state == "enforced"


def test_a_covered_program_that_the_machine_has_not_any_more_is_no_wall_that_fell() -> None:
    """The kernel takes the mount away with the file. What comes back under the name is another file, and is found."""
    removed = {"names": {}, "files": {NAMED: denials.GONE}, "spared": {}}
    assert (judge(removed).state, judge(removed).required) == ("enforced", True)
    assert NAMED not in judge(removed).evidence
    back = {"names": {NAMED: NAMED}, "files": {NAMED: "mode 0755, 9 bytes"}, "spared": {}}
    assert judge(back).state == "absent"


@pytest.mark.parametrize(
    ("told", "mountinfo", "because"),
    [
        (None, "", "said nothing"),
        ({"names": {NAMED: NAMED}, "files": {}, "spared": {}}, "", f"{NAMED} leads to {NAMED}"),
        ({"names": {NAMED: NAMED}, "files": {NAMED: "covered"}}, "", "no sealed mount"),
        ({"names": {NAMED: NAMED}, "files": {NAMED: "covered"}}, SEALED.format(NAMED, "rw,noexec", "rw"), "no sealed"),
        ({"names": {NAMED: NAMED}, "files": {NAMED: "covered"}}, SEALED.format(NAMED, "ro", "ro"), "no sealed mount"),
        (
            {"names": {NAMED: NAMED}, "files": {NAMED: "may be read"}},
            SEALED.format(NAMED, "ro,noexec", "ro"),
            "may be read",
        ),
    ],
)
def test_whatever_is_missing_is_a_wall_that_is_not_there(told: object, mountinfo: str, because: str) -> None:
    found = judge(told, mountinfo)
    assert (found.state, found.required) == ("absent", True)
    assert because in found.evidence
