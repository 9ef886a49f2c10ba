"""Git in a workspace, by the public ways on real sandboxes: what is done is Git in the sandbox, and what is told runs nothing."""

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from coldframe.client.sync import Git, SyncColdframe, SyncSandbox
from coldframe.contract.errors import (
    DeniedByRule,
    GitConflict,
    GitFailed,
    GitNoRepository,
    GitUnknownRevision,
    GitUnreadable,
    InvalidArgument,
    WrongState,
)
from coldframe.contract.policy import Role
from tests.host.egress.site import CANARY
from tests.installation import Installation
from tests.mcp.speaking import Raw, Server
from tests.promises.governed import token_of
from tests.reachable import Reachable

FILES = 10_000 if "COLDFRAME_SLOW" in os.environ else 1000
OURS = "one\nours\nthree\n"


@pytest.mark.req("T3.75")
def test_a_piece_of_work_from_the_first_commit_to_the_push(sandbox: SyncSandbox, agent_id: str) -> None:
    git = sandbox.git
    begun = git.init("repo")
    assert (begun.repository, begun.branch, begun.head) == ("repo", "main", None)
    sandbox.write_file("repo/a.txt", "one\ntwo\nthree\n")
    sandbox.write_file("repo/sub/b.txt", "b\n")
    status = git.status("repo")
    assert [(one.path, one.unstaged) for one in status.changes] == [
        ("a.txt", "untracked"),
        ("sub/b.txt", "untracked"),
    ]
    first = git.commit("Begin\n\nWith two files.", "repo", paths=["."])
    assert first.before is None and first.commit is not None and first.head == first.commit.id
    assert first.commit.author == first.commit.committer == agent_id
    assert first.commit.author_email == f"{agent_id}@agents.invalid"
    assert [one.partition(":")[0] for one in first.commit.trailers] == ["On-behalf-of"]
    assert len(first.receipt_ids) == len(first.command_ids) == 2

    git.branch("side", "repo")
    assert git.switch("topic", "repo", create=True).branch == "topic"
    sandbox.write_file("repo/a.txt", "one\ntheirs\nthree\n")
    shown = git.diff("repo")
    assert (shown.additions, shown.deletions) == (1, 1)
    assert shown.files[0].hunks[0].lines == (" one", "-two", "+theirs", " three")
    topic = git.commit("Change the middle", "repo", all=True)
    assert topic.before == first.head
    git.switch("main", "repo")
    sandbox.write_file("repo/a.txt", OURS)
    git.commit("Change it otherwise", "repo", paths=["a.txt"])
    with pytest.raises(GitConflict) as conflict:
        git.merge("topic", "repo")
    assert conflict.value.code == "GIT_CONFLICT" and conflict.value.facts["files"] == ["a.txt"]
    status = git.status("repo")
    assert status.under_way == "merge" and status.changes[0].conflict == "both_modified"
    with pytest.raises(GitConflict):
        git.commit("Too early", "repo")
    git.merge(abort=True, path="repo")
    assert sandbox.read_file("repo/a.txt").content == OURS
    with pytest.raises(GitConflict):
        git.merge("topic", "repo", message="Join the topic")
    sandbox.write_file("repo/a.txt", "one\nboth\nthree\n")
    merged = git.commit("Join the topic", "repo", paths=["a.txt"])
    assert merged.commit is not None and len(merged.commit.parents) == 2

    git.tag("v1", "repo", message="The first one")
    sandbox.write_file("repo/a.txt", "spoiled")
    git.restore(["a.txt"], "repo")
    assert sandbox.read_file("repo/a.txt").content == "one\nboth\nthree\n"
    git.restore(["a.txt"], "repo", source="HEAD~1", staged=True)
    assert sandbox.read_file("repo/a.txt").content == OURS
    git.restore(["a.txt"], "repo", source="HEAD", staged=True)
    refs = git.refs("repo")
    assert {one.name for one in refs.branches} == {"main", "side", "topic"}
    assert [(one.name, one.commit, one.annotated) for one in refs.tags] == [("v1", merged.head, True)]
    git.branch("side", "repo", delete=True)

    # A remote that this sandbox reaches: another repository of the workspace.
    assert (
        sandbox.run_command("git init -q --bare remote.git && git -C repo remote add origin ../remote.git").exit_code
        == 0
    )
    pushed = git.push("repo", set_upstream=True, tags=["v1"])
    assert "refs/heads/main" in pushed.output
    copied = git.clone("remote.git", "copy", branch="main")
    assert copied.head == merged.head and copied.repository == "copy"
    sandbox.write_file("copy/c.txt", "c\n")
    git.commit("From the copy", "copy", paths=["c.txt"])
    assert git.push("copy").head is not None
    git.fetch("repo", prune=True)
    status = git.status("repo")
    assert (status.upstream, status.ahead, status.behind) == ("origin/main", 0, 1)
    with pytest.raises(GitUnknownRevision):
        git.log("repo", revision="nothing")
    with pytest.raises(GitNoRepository):
        git.commit("Nowhere", "")
    with pytest.raises(GitFailed) as nothing:
        git.commit("Nothing", "repo")
    assert nothing.value.facts["exit_code"] == 1 and nothing.value.facts["receipt_ids"]


@pytest.mark.req("T3.75")
def test_whose_work_it_is_stands_in_the_commit(
    installation: Installation, client: SyncColdframe, sandbox: SyncSandbox, agent_id: str
) -> None:
    """The agent is the author, whoever asked; the person is the one whose token asks, or who made the sandbox."""
    sandbox.git.init()
    secret = client.tokens.create("member", "Mia Müller")[0]
    with SyncColdframe(installation.url, token_of(client, Role.AGENT, agent_id)) as theirs:
        commit = theirs.sandboxes.get(sandbox.id).git.commit("By the agent", allow_empty=True).commit
    assert commit is not None and commit.author == agent_id
    made_by = next(one.name for one in client.tokens.list() if str(sandbox.refresh().created_by).endswith(one.token_id))
    assert commit.trailers == (f"On-behalf-of: {made_by}",)
    with SyncColdframe(installation.url, secret) as hers:
        commit = hers.sandboxes.get(sandbox.id).git.commit("Asked for\n\nFixes: 7", allow_empty=True).commit
    assert commit is not None and commit.author == agent_id
    assert commit.trailers == ("Fixes: 7", "On-behalf-of: Mia Müller")
    told = sandbox.run_command("git log -1 --format='%(trailers:key=On-behalf-of,valueonly)'").stdout
    assert told is not None and told.strip() == "Mia Müller"


HOSTILE = """
set -e
git init -q repo && cd repo
git config user.name a && git config user.email a@b
printf 'one\n' > a && git add a && git commit -qm first
printf '#!/bin/sh\necho "$0 $$ $(id -u)" >> /home/user/ran\ncat 2>/dev/null || true\n' > ../evil && chmod +x ../evil
for hook in pre-commit prepare-commit-msg post-commit post-checkout post-merge pre-push post-index-change reference-transaction; do
  cp ../evil .git/hooks/$hook
done
for key in core.fsmonitor core.pager core.sshCommand core.editor diff.external diff.evil.textconv diff.evil.command \
    filter.evil.clean filter.evil.smudge filter.evil.process merge.evil.driver gpg.program core.askPass; do
  git config $key /home/user/evil
done
git config core.worktree /etc; git config --unset core.worktree
git config remote.origin.url 'ext::/home/user/evil %S'
printf '* diff=evil filter=evil merge=evil\n' > .git/info/attributes
printf 'two\n' > a; ln -s /etc/passwd out; rm -f /home/user/ran
"""


@pytest.mark.req("T3.47")
@pytest.mark.req("T3.75")
def test_a_hostile_repository_is_looked_at_in_every_state_and_runs_nothing(
    client: SyncColdframe, sandbox: SyncSandbox
) -> None:
    """What it names would leave a line in the workspace, whoever ran it and wherever: of looks there is none, also after the
    end, and the record has no command more."""
    done = sandbox.run_command(HOSTILE)
    assert done.exit_code == 0, done.stderr
    head = str(sandbox.run_command("git -C repo rev-parse HEAD", env={"GIT_CONFIG_NOSYSTEM": "1"}).stdout).strip()
    sandbox.run_command("rm -f ran")

    def look() -> tuple[str, ...]:
        git = sandbox.git
        answers = (git.status("repo"), git.log("repo"), git.show(None, "repo"), git.diff("repo"), git.refs("repo"))
        assert all(one.head == head and one.receipt_id for one in answers)
        told = "".join(one.model_dump_json() for one in answers)
        assert "root:" not in told
        status, diff = answers[0], answers[3]
        assert {one.path: one.unstaged for one in status.changes} == {
            "a": "modified",
            "out": "untracked",
        }
        assert diff.files[0].hunks[0].lines == ("-one", "+two")
        return tuple(one.model_dump_json(exclude={"receipt_id"}) for one in answers)

    running = look()
    commands = len(sandbox.commands())
    assert "ran" not in {one.path for one in sandbox.list_directory("").entries}
    sandbox.stop()
    assert look() == running
    sandbox.terminate(discard=True)
    assert look() == running
    assert len(sandbox.commands()) == commands
    assert "ran" not in {one.path for one in sandbox.list_directory("").entries}
    with pytest.raises(WrongState):
        sandbox.git.commit("Too late", "repo", all=True)
    with client.sandboxes.create(agent_id=sandbox.info.agent_id) as again:
        # What changes it is Git in the sandbox, with the hooks there; what could be given up of them is.
        with pytest.raises(GitFailed) as refused:
            again.git.fetch("repo")
        assert "ext" in str(refused.value.facts["output"])
        assert "ran" not in {one.path for one in again.list_directory("").entries}
        again.git.branch("quiet", "repo")
        lines = str(again.run_command("cat ran").stdout).splitlines()
        assert lines and all(line.split()[0].startswith(".git/hooks/") for line in lines), lines


@pytest.mark.req("T3.75")
def test_large_and_many_files_and_what_lies_elsewhere(sandbox: SyncSandbox) -> None:
    sandbox.run_command(
        "git init -q inner && cd inner && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m inner"
    )
    done = sandbox.run_command(
        "set -e; git init -q repo; cd repo; git config core.compression 0; git config gc.auto 0; git -c protocol.file.allow=always submodule --quiet add ../inner module;"
        f" head -c 41943040 /dev/urandom > large; mkdir many; seq {FILES} | (cd many && split -l 1 -a 3 -);"
        " printf '*.bin filter=lfs diff=lfs merge=lfs -text\\n' > .gitattributes;"
        " printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:%064d\\nsize 12345678\\n' 7 > film.bin"
    )
    assert done.exit_code == 0, done.stderr
    commit = sandbox.git.commit("Much", "repo", paths=["."])
    shown = sandbox.git.show(None, "repo", limit=10)
    assert shown.diff.total == FILES + 5 and commit.head == shown.commit.id
    shown = sandbox.git.show(None, "repo", paths=["large", "module", "film.bin"])
    files = {one.path: one for one in shown.diff.files}
    assert files["large"].new_bytes == 41943040 and "larger than" in str(files["large"].reason)
    assert files["module"].kind == "submodule" and files["film.bin"].lfs
    copied = sandbox.git.clone("repo", "copy")
    assert len(copied.notes) == 2 and "submodules" in copied.notes[0] and "LFS" in copied.notes[1]
    status = sandbox.git.status("copy")
    assert status.clean and status.lfs_pointers == ("film.bin",)
    shallow = sandbox.git.clone("inner", "short", depth=1)
    assert shallow.commit is not None and shallow.commit.message == "inner\n"


@pytest.mark.req("T3.75")
def test_the_same_rules_hold_as_for_a_command_and_the_way_out_is_the_networks(
    owner: SyncColdframe, box: SyncSandbox
) -> None:
    box.git.init()
    box.git.commit("One", paths=["."])
    owner.policy.load("version: 1\nsettings:\n  deny_commands: [git push]\n")
    with pytest.raises(DeniedByRule):
        box.git.push(remote="origin")
    box.git.branch("allowed")
    box.write_file("sub/open", "1\n")
    box.write_file("secrets/x", "hidden\n")
    box.git.commit("Both", paths=["."])
    box.write_file("secrets/x", "changed\n")
    when = "{tool: read_file, path: {glob: 'secrets/*'}}"
    owner.policy.load(f"version: 1\nrules:\n  - {{id: secret, hook: PRE_TOOL_CALL, when: {when}, then: deny}}\n")
    for place in ("", "sub"):
        assert box.git.log(place, paths=["sub/open"]).commits, "whose top is found from below"
        for paths in (["secrets/x"], ["sub/open", "secrets/x"]):
            with pytest.raises(DeniedByRule):
                box.git.diff(place, paths=paths)
    told = box.call("read_repository", {"question": "diff", "path": "sub", "paths": ["secrets/x"]})
    assert told.error is not None and not told.value, "nothing is told of what was not judged"
    owner.policy.load("version: 1\nrules: []\n")
    box.run_command("git remote add origin https://git.example.test/repo.git")
    with pytest.raises(GitFailed) as refused:
        box.git.push()
    assert refused.value.facts["operation"] == "push" and refused.value.facts["receipt_ids"]
    with pytest.raises(GitFailed):
        box.git.clone("https://git.example.test/other.git", timeout_s=30)


@pytest.mark.req("T3.75")
def test_long_messages_and_many_long_paths_pass_and_count_from_the_top(sandbox: SyncSandbox) -> None:
    sandbox.git.init("repo")
    made = sandbox.run_command(
        "set -e; cd repo; d=$(printf 'd%.0s' $(seq 240)); mkdir -p sub $d/$d/$d/$d/$d/$d/$d/$d;"
        " for i in $(seq 500); do echo $i > $d/$d/$d/$d/$d/$d/$d/$d/$i; done; echo x > sub/x; echo top > x"
    )
    assert made.exit_code == 0, made.stderr
    deep = "/".join(["d" * 240] * 8)
    many = [f"{deep}/{number}" for number in range(1, 501)]
    first = sandbox.git.commit("Many", "repo", paths=many)
    assert len(first.command_ids) == 3, "each is named in the arguments of a command, where rules see it"
    assert sandbox.git.show(None, "repo", limit=10).diff.total == 500
    sandbox.git.commit("One", "repo/sub", paths=["x"])
    assert [one.path for one in sandbox.git.show(None, "repo").diff.files] == ["x"], "paths count from the top"
    sandbox.git.switch("topic", "repo", create=True)
    sandbox.git.commit("Theirs", "repo", paths=["sub"])
    sandbox.git.switch("main", "repo")
    message = "Join\n\n" + "ü" * 65_000
    merged = sandbox.git.merge("topic", "repo", message=message, fast_forward="never")
    assert merged.commit is not None and len(merged.commit.parents) == 2
    kept = sandbox.run_command("git log -1 --format=%B", cwd="repo").stdout
    assert str(kept).startswith(message)


@pytest.mark.req("T3.75")
def test_what_a_linked_repository_is_kept_in_is_judged_and_told(owner: SyncColdframe, box: SyncSandbox) -> None:
    box.git.init("main")
    box.git.commit("One", "main", allow_empty=True)
    assert box.run_command("git -C main worktree add -q ../linked -b side").exit_code == 0
    box.write_file("linked/a", "a\n")
    done = box.git.commit("In the linked one", "linked", paths=["a"])
    assert done.branch == "side" and "`main/.git/worktrees/linked`" in done.notes[0] and "`main/.git`" in done.notes[0]
    assert not box.git.commit("Here", "main", allow_empty=True).notes
    when = "{tool: read_file, path: {glob: 'main/.git*'}}"
    owner.policy.load(f"version: 1\nrules:\n  - {{id: main, hook: PRE_TOOL_CALL, when: {when}, then: deny}}\n")
    before = box.run_command("git -C main log --all --oneline").stdout
    for act in (lambda: box.git.log("linked"), lambda: box.git.commit("Not that", "linked", allow_empty=True)):
        with pytest.raises(DeniedByRule):
            act()
    owner.policy.load("version: 1\nrules: []\n")
    box.run_command("mkdir elsewhere && ln -s ../main/.git elsewhere/.git")
    with pytest.raises(GitUnreadable):
        box.git.commit("By a link", "elsewhere", allow_empty=True)
    assert box.run_command("git -C main log --all --oneline").stdout == before


WRONG: tuple[Callable[[Git], object], ...] = (
    lambda git: git.clone("ext::sh -c evil"),
    lambda git: git.clone("--upload-pack=evil"),
    lambda git: git.clone("../../etc"),
    lambda git: git.clone("file:///etc"),
    lambda git: git.clone("https://ada:p@ss@git.example.test/a.git"),
    lambda git: git.switch("--orphan"),
    lambda git: git.branch("-D"),
    lambda git: git.branch("a..b"),
    lambda git: git.log(revision="-n1"),
    lambda git: git.log(revision="HEAD:a"),
    lambda git: git.restore(["../a"]),
    lambda git: git.push(remote="--receive-pack=evil"),
    lambda git: git.push(credential_variable="A;evil"),
    lambda git: git.status("../.."),
    lambda git: git.merge(),
)


@pytest.mark.req("T3.75")
def test_what_is_no_name_no_address_and_no_place_is_refused(sandbox: SyncSandbox) -> None:
    for wrong in WRONG:
        with pytest.raises(InvalidArgument):
            wrong(sandbox.git)
    assert sandbox.commands() == []


@pytest.mark.req("T3.47", "T3.75")
def test_the_command_line_and_mcp_do_all_of_it_as_well(
    installation: Installation, client: SyncColdframe, sandbox: SyncSandbox
) -> None:
    speaker = Raw(Server(installation.url, installation.token), installation.token)

    def mcp(tool: str, **arguments: object) -> dict[str, Any]:
        done = speaker.call(f"git_{tool}", sandbox_id=sandbox.id, path="m", **arguments)
        assert not done.get("isError"), done
        value: dict[str, Any] = done["structuredContent"]
        return value

    def cli(verb: str, *arguments: str, code: int = 0) -> dict[str, Any]:
        done = installation.cli("git", verb, sandbox.id, "--json", *arguments)
        assert done.returncode == code, done.stderr
        value: dict[str, Any] = json.loads(done.stdout if code == 0 else done.stderr)
        return value

    mcp("init")
    sandbox.write_file("m/a", "one\n")
    first = mcp("commit", message="By MCP", paths=["."])
    done = speaker.call("git_clone", sandbox_id=sandbox.id, url="m", path="n")["structuredContent"]
    assert (done["head"], done["repository"]) == (first["head"], "n")
    mcp("branch", name="side")
    mcp("switch", to="side")
    mcp("tag", name="v1")
    sandbox.write_file("m/a", "two\n")
    assert mcp("status")["changes"][0]["unstaged"] == "modified"
    assert mcp("diff")["files"][0]["hunks"][0]["lines"] == ["-one", "+two"]
    mcp("restore", paths=["a"])
    assert mcp("merge", revision="main")["head"] == first["head"]
    assert mcp("log")["commits"] == [mcp("show")["commit"]]
    assert {one["name"] for one in mcp("refs")["branches"]} == {"main", "side"}
    sandbox.run_command("git init -q --bare r.git; git -C m remote add origin ../r.git")
    mcp("push", set_upstream=True)
    mcp("fetch")

    assert cli("clone", "r.git", "c", "-b", "side")["head"] == first["head"]
    sandbox.write_file("c/a", "three\n")
    second = cli("commit", "-C", "c", "-m", "By the command line", "a")
    assert cli("push", "-C", "c")["operation"] == "push" and cli("fetch", "-C", "m")["operation"] == "fetch"
    assert cli("status", "-C", "m")["behind"] == 1
    cli("branch", "-C", "c", "other", "HEAD~1")
    cli("switch", "-C", "c", "other")
    sandbox.write_file("c/a", "four\n")
    cli("commit", "-C", "c", "-a", "-m", "Otherwise")
    failed = cli("merge", "-C", "c", "side", code=6)
    assert failed["error"]["code"] == "GIT_CONFLICT" and failed["error"]["facts"]["files"] == ["a"]
    cli("merge", "-C", "c", "--abort")
    cli("tag", "-C", "c", "v2", "side", "-m", "the second")
    cli("restore", "-C", "c", "--source", "side", "a")
    sandbox.terminate(discard=True)
    assert cli("show", "-C", "c", "v2")["commit"]["id"] == second["head"]
    assert [one["path"] for one in cli("status", "-C", "c")["changes"]] == ["a"]
    plain = installation.cli("git", "diff", sandbox.id, "-C", "c").stdout.decode()
    assert "--- a/a\n+++ b/a\n@@ -1,1 +1,1 @@\n-four\n+three\n" in plain
    assert {one["name"] for one in cli("refs", "-C", "c")["tags"]} == {"v2"}
    assert len(mcp("log")["commits"]) == 1


NETWORK = """version: 1
rules: []
network:
  profiles:
    hosting:
      rules:
        - {id: hosting, to: api.example.com, ports: 8443, mode: intercept, label: PUBLIC}
  use: {"*": hosting}
"""
HOSTING = "https://api.example.com:8443/v1/git"


@pytest.mark.req("T3.75")
def test_a_remote_is_reached_where_the_network_leads_and_with_a_password_that_nobody_has(room: Reachable) -> None:
    def steps(client: SyncColdframe) -> None:
        client.policy.load(NETWORK)
        client.credentials.add(
            {
                "name": "hosting",
                "base": HOSTING,
                "variable": "HOSTING_TOKEN",
                "agents": ["pusher"],
                "methods": ["GET", "POST"],
                "header": "Authorization: Basic {secret}",
            },
            CANARY,
        )
        with client.sandboxes.create("pusher") as box:
            git = box.git
            git.init("app")
            git.commit("Begin", "app", allow_empty=True)
            box.run_command(["git", "-C", "app", "remote", "add", "origin", f"{HOSTING}/app.git"])
            with pytest.raises(GitFailed):
                git.push("app")
            pushed = git.push("app", set_upstream=True, credential_variable="HOSTING_TOKEN")
            copied = git.clone(f"{HOSTING}/app.git", "copy", credential_variable="HOSTING_TOKEN")
            assert copied.head == pushed.head
            further = git.commit("Further", "copy", allow_empty=True)
            git.push("copy", credential_variable="HOSTING_TOKEN")
            git.fetch("app", credential_variable="HOSTING_TOKEN")
            status = git.status("app")
            assert (status.ahead, status.behind) == (0, 1)
            fetched = git.log("app", revision="origin/main", limit=1)
            assert fetched.commits[0].id == further.head
            held = "".join(str(box.run_command(line).stdout) for line in ("env", "cat */.git/config"))
            assert CANARY not in held and "cfh_" in held
            with pytest.raises(GitFailed) as refused:
                git.clone("https://other.example.com:8443/app.git", "elsewhere")
            assert refused.value.facts["output"]
        client.credentials.revoke("hosting")

    room.use(steps)
