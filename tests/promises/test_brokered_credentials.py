"""A sandbox uses secrets that it never has: real programs, through the public surface, with a canary that is looked for
everywhere afterwards."""

import json
import os
import subprocess
import threading
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import InvalidArgument
from coldframe.contract.policy import Role
from coldframe.contract.sandbox import SandboxSpec
from tests.host.egress.site import CANARY, REFS
from tests.installation import Installation, wait_until
from tests.promises.test_snapshots import take
from tests.reachable import Reachable

SITE, OTHER = "https://api.example.com:8443", "https://other.example.com:8443"
RULES = """version: 1
rules:
{hooks}
network:
  profiles:
    brokered:
      rules:
        - {{id: api, to: api.example.com, ports: 8443, mode: intercept, label: INTERNAL}}
        - {{id: plain, to: api.example.com, ports: 8080, scheme: http, label: INTERNAL}}
        - {{id: other, to: other.example.com, ports: 8443, mode: intercept, label: INTERNAL}}
        - {{id: unread, to: other.example.com, ports: 443, label: INTERNAL}}
  use: {{"*": brokered}}
"""
PLAINLY = 'curl -sS -m 20 -o body -w "%{http_code}"'
CURL = f'{PLAINLY} -H "Authorization: Bearer $API_TOKEN"'


def rules(*hooks: str) -> str:
    return RULES.format(hooks="\n".join(f"  - {hook}" for hook in hooks) or "  []")


def terms(name: str, **more: object) -> dict[str, object]:
    return {
        "name": name,
        "base": f"{SITE}/v1/guarded",
        "variable": "API_TOKEN",
        "agents": [name],
        "label": "INTERNAL",
        **more,
    }


def ask(box: SyncSandbox, url: str, more: str = "", *, curl: str = CURL) -> tuple[str, str]:
    """Status, and code of a refusal."""
    done = box.run_command(f'{curl} {more} "{url}"; echo; cat body')
    status, _, body = str(done.stdout).partition("\n")
    return status, json.loads(body)["error"]["code"] if '"by": "coldframe"' in body else ""


def carried(client: SyncColdframe) -> list[str]:
    """What the sites got the secret with."""
    with client.sandboxes.create("carried") as box:
        found: list[str] = json.loads(str(box.run_command(f"curl -sS {SITE}/v1/carried").stdout))
        return found


def shown_anywhere(installation: Installation, client: SyncColdframe, box: SyncSandbox) -> list[str]:
    """Where the secret, or the header that it makes with `Basic`, can be found."""
    needles = [CANARY.encode(), CANARY.encode()[4:-4]]
    found = []
    for folder in (installation.folder,):
        for root, _, names in os.walk(folder):
            for name in names:
                path = Path(root, name)
                if path.is_file() and not path.is_symlink() and any(one in path.read_bytes() for one in needles):
                    found.append(str(path))
    for pid in installation.processes():
        for what in ("cmdline", "environ"):
            try:
                text = Path(f"/proc/{pid}/{what}").read_bytes()
            except OSError:
                continue
            if any(one in text for one in needles):
                found.append(f"{what} of {pid}")
    told = b"".join(client.ledger.export()) + installation.log.encode()
    told += repr(box.network_log(limit=1000)).encode() + repr(client.credentials.list()).encode()
    return [*found, *(["what is told"] if any(one in told for one in needles) else [])]


SCAN = """
import os, re, sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + os.environ["API_TOKEN"]})
body = urllib.request.urlopen(request, timeout=20).read()
def looks(data, first, second):
    at = -1
    while (at := data.find(first, at + 1)) >= 0:
        if data[at + len(first):at + len(first) + len(second)] == second:
            return True
    return False
secret = [one.encode() for one in sys.argv[2:4]]
handle = os.environ["API_TOKEN"].encode()
control = [handle[:20], handle[20:]]
found, seen = [], 0
def look(data, where):
    global seen
    seen += looks(data, *control)
    if looks(data, *secret): found.append(where)
for pid in filter(str.isdigit, os.listdir("/proc")):
    for what in ("environ", "cmdline"):
        try: look(open(f"/proc/{pid}/{what}", "rb").read(), (pid, what))
        except OSError: pass
    try:
        maps, memory = open(f"/proc/{pid}/maps").read(), open(f"/proc/{pid}/mem", "rb")
        for line in maps.splitlines():
            span, rights = line.split()[:2]
            if rights.startswith("r") and "[v" not in line:
                start, end = (int(one, 16) for one in span.split("-"))
                memory.seek(start)
                look(memory.read(end - start), (pid, line))
    except (OSError, ValueError, OverflowError): pass
print(len(body), seen, found)
"""


@pytest.mark.req("T1.55", "T2.33", "T3.53", "T4.73")
def test_a_program_explores_a_service_with_a_credential_that_it_never_sees(room: Reachable) -> None:
    def steps(installation: Installation) -> None:
        with SyncColdframe(installation.url, installation.token) as client:
            client.policy.load(rules())
            added = client.credentials.add(terms("explorer"), CANARY)
            with client.sandboxes.create("explorer") as box:
                (held,) = box.credentials()
                assert (held.credential, held.variable) == ("explorer", "API_TOKEN") and held.handle.startswith("cfh_")
                exposed = {line["id"]: line["value"] for line in box.contract()["exposure"]}
                given = exposed["exposure.credential.explorer"]
                assert (given["exposure"], given["granted_by"]) == ("brokered", added.added_by)
                assert datetime.fromisoformat(given["granted_at"]) == added.created_at
                assert {"reason", "expires"} < set(given)
                assert ask(box, f"{SITE}/v1/guarded/x", curl=PLAINLY) == ("401", "")
                assert ask(box, f"{SITE}/v1/guarded/x") == ("200", "")
                done = box.run_command(f"cat body; {CURL} {SITE}/v1/guarded/x; cat body; env; cat .exec_history/*")
                assert json.loads(str(done.stdout).partition("}")[0] + "}") == {"welcome": f"Bearer {held.handle}"}
                assert "API_TOKEN=cfh_" in str(done.stdout) and CANARY not in str(done.stdout)
                box.write_file("scan.py", SCAN)
                half = len(CANARY) // 2
                line = ["python3", "scan.py", f"{SITE}/v1/guarded/x", CANARY[:half], CANARY[half:]]
                scanned = str(box.run_command(line).stdout)
                body, seen, found = scanned.split(maxsplit=2)
                assert (int(body) > 50, int(seen) > 2, found.strip()) == (True, True, "[]")  # handles are found there
                uses = client.credentials.uses("explorer")
                assert [(one.outcome, one.host, one.path) for one in uses] == [
                    ("used", "api.example.com", "/v1/guarded/x")
                ] * 3
                assert [one.command_id for one in uses][1] == done.command_id
                assert client.sandboxes.get(box.id).info.session_id == uses[0].session_id
                entries = client.ledger.entries(subject=added.credential_id, kinds=["secret.used"], limit=10)
                assert entries[0].body["decision"]["hook"] == "SECRET_ACCESS"
                assert shown_anywhere(installation, client, box) == []
            client.credentials.revoke("explorer")

    room.run(steps)


@pytest.mark.req("T3.52")
def test_a_credential_is_limited_by_service_method_path_number_and_place(room: Reachable) -> None:
    def steps(client: SyncColdframe) -> None:
        client.policy.load(rules())
        before = carried(client)
        client.credentials.add(terms("limited", paths=["/items/*"], budget=20), CANARY)
        with client.sandboxes.create("limited") as box:
            item = f"{SITE}/v1/guarded/items/7"
            assert ask(box, item, "-X POST -d x") == ("403", "DENIED_BY_RULE")
            assert ask(box, f"{SITE}/v1/guarded/other") == ("403", "DENIED_BY_RULE")
            assert ask(box, f"{SITE}/v1/guarded/items/7/8") == ("403", "DENIED_BY_RULE")
            assert ask(box, f"{OTHER}/v1/guarded/items/7") == ("403", "DENIED_BY_RULE")
            assert ask(box, "http://api.example.com:8080/v1/guarded/items/7") == ("403", "DENIED_BY_RULE")
            assert ask(box, item, '-H "X-Key: $API_TOKEN"') == ("403", "DENIED_BY_RULE")
            assert ask(box, item, "-H 'Authorization: Bearer mine'") == ("403", "DENIED_BY_RULE")
            # where nobody looks into requests, and in an address or a body, it is what it is
            assert ask(box, "https://other.example.com/")[0] == "200"
            assert ask(box, f"{SITE}/v1/what?token=$API_TOKEN", curl=PLAINLY)[0] == "200"
            done = box.run_command(f"for n in $(seq 21); do {CURL} {item}; echo; done; cat body")
            assert str(done.stdout).split()[:21] == ["200"] * 20 + ["403"]
            assert json.loads(str(done.stdout).partition("403\n")[2])["error"]["code"] == "CREDENTIAL_BUDGET"
            assert (client.credentials.get("limited").uses, client.credentials.get("limited").state) == (20, "used_up")
        after = carried(client)[len(before) :]
        assert after == ["GET api.example.com:8443 /v1/guarded/items/7"] * 20
        client.credentials.revoke("limited")

    room.use(steps)


@pytest.mark.req("T3.52")
def test_requests_at_the_same_time_do_not_overrun_a_budget(room: Reachable) -> None:
    def steps(client: SyncColdframe) -> None:
        client.policy.load(rules())
        before = carried(client)
        client.credentials.add(terms("parallel", budget=20), CANARY)
        with client.sandboxes.create("parallel") as box:
            line = f"curl -sS -m 30 -o /dev/null -w '%{{http_code}}\\n' -H \"Authorization: Bearer $API_TOKEN\" {SITE}/v1/guarded/x"
            box.write_file("once.sh", line)
            done = box.run_command("seq 40 | xargs -P 20 -n 1 sh once.sh")
            assert Counter(str(done.stdout).split()) == {"200": 20, "403": 20}
        assert len(carried(client)) - len(before) == 20
        client.credentials.revoke("parallel")

    room.use(steps)


@pytest.mark.req("T3.52")
def test_a_redirect_takes_no_secret_along(room: Reachable) -> None:
    def steps(client: SyncColdframe) -> None:
        client.policy.load(rules())
        before = carried(client)
        client.credentials.add(terms("redirected"), CANARY)
        with client.sandboxes.create("redirected") as box:
            assert ask(box, f"{SITE}/v1/guarded/away", "--location-trusted") == ("403", "DENIED_BY_RULE")
            followed = box.run_command(f"{CURL} -L -D - {SITE}/v1/guarded/away")
            assert "other.example.com" in str(followed.stdout) and CANARY not in str(followed.stdout)
        assert {one.split(" ")[1] for one in carried(client)[len(before) :]} == {"api.example.com:8443"}
        client.credentials.revoke("redirected")

    room.use(steps)


KEEP = """
import http.client, os, ssl, time
client = http.client.HTTPSConnection("api.example.com", 8443, timeout=20)
headers = {"Authorization": "Bearer " + os.environ["API_TOKEN"]}
def ask():
    client.request("GET", "/v1/guarded/x", headers=headers)
    answer = client.getresponse()
    return answer.status, answer.read().decode()
print(ask()[0], flush=True)
open("asked", "w").close()
while not os.path.exists("go"): time.sleep(0.01)
print(*ask())
"""


@pytest.mark.req("T3.52")
def test_a_revoked_credential_is_worth_nothing_from_the_next_request_on_an_open_connection(room: Reachable) -> None:
    def steps(installation: Installation) -> None:
        with SyncColdframe(installation.url, installation.token) as client:
            client.policy.load(rules())
            client.credentials.add(terms("revoked"), CANARY)
            with client.sandboxes.create("revoked") as box:
                box.write_file("keep.py", KEEP)
                done: list[str] = []
                keeping = threading.Thread(target=lambda: done.append(str(box.run_command("python3 keep.py").stdout)))
                keeping.start()
                with SyncColdframe(installation.url, installation.token) as other:
                    beside = other.sandboxes.get(box.id)
                    wait_until(
                        lambda: any(one.path == "asked" for one in beside.list_directory().entries),
                        "it has asked once",
                        timeout_s=60,
                    )
                    other.credentials.revoke("revoked")
                    beside.write_file("go", "")
                keeping.join(60)
                first, second = done[0].strip().split("\n")
                assert first == "200"
                assert second.startswith("403 ") and json.loads(second[4:])["error"]["code"] == "CREDENTIAL_REVOKED"

    room.run(steps)


@pytest.mark.req("T3.09")
def test_what_a_credential_allows_is_done_and_each_use_says_what(room: Reachable) -> None:
    def steps(client: SyncColdframe) -> None:
        client.policy.load(rules())
        client.credentials.add(terms("deleter", methods=["GET", "DELETE"]), CANARY)
        with client.sandboxes.create("deleter") as box:
            lines = {line["id"] for line in box.contract()["not_prevented"]}
            assert "not_prevented.credential.deleter" in lines
            assert ask(box, f"{SITE}/v1/guarded/items/7", "-X DELETE") == ("200", "")
            (use,) = client.credentials.uses("deleter")
            assert (use.outcome, use.method, use.path) == ("used", "DELETE", "/v1/guarded/items/7")
        client.credentials.revoke("deleter")

    room.use(steps)


@pytest.mark.req("T4.73")
def test_git_uses_a_password_that_it_does_not_have_and_a_rotated_one_without_a_restart(room: Reachable) -> None:
    def steps(client: SyncColdframe) -> None:
        client.policy.load(rules())
        basic = "Authorization: Basic {secret}"
        client.credentials.add(terms("gitter", header=basic, variable="GIT_PASSWORD"), "not-the-password-yet")
        with client.sandboxes.create("gitter") as box:
            line = f"git ls-remote https://git:$GIT_PASSWORD@{SITE.removeprefix('https://')}/v1/guarded/repository.git"
            assert box.run_command(line).exit_code != 0
            client.credentials.rotate("gitter", CANARY)
            done = box.run_command(line)
            assert str(done.stdout).encode() == REFS, done.stderr
        client.credentials.revoke("gitter")

    room.use(steps)


@pytest.mark.req("T2.33")
def test_both_hooks_of_what_leaves_a_sandbox_decide_by_rules(room: Reachable) -> None:
    def steps(client: SyncColdframe) -> None:
        client.policy.load(
            rules(
                "{id: not-there, hook: NETWORK_EGRESS, when: {name: other.example.com, agent_id: hooked}, then: deny}",
                "{id: no-deletion, hook: NETWORK_EGRESS, when: {method: DELETE, name: api.example.com}, then: deny}",
                "{id: ask-first, hook: NETWORK_EGRESS, when: {path: /v1/text, agent_id: hooked}, then: ask}",
                "{id: not-those, hook: SECRET_ACCESS, when: {credential: hooked, path: {glob: '*/secret*'}}, then: deny}",
                "{id: person, hook: SECRET_ACCESS, when: {credential: hooked, path: {glob: '*/late*'}}, then: ask}",
            )
        )
        client.credentials.add(terms("hooked"), CANARY)
        with client.sandboxes.create("hooked") as box:
            assert ask(box, f"{SITE}/v1/guarded/x") == ("200", "")
            assert ask(box, f"{SITE}/v1/guarded/secrets") == ("403", "DENIED_BY_RULE")
            assert ask(box, f"{SITE}/v1/guarded/late") == ("403", "PENDING_APPROVAL")
            assert ask(box, f"{SITE}/v1/text", curl=PLAINLY) == ("403", "PENDING_APPROVAL")
            assert ask(box, f"{SITE}/v1/what", "-X DELETE", curl=PLAINLY) == ("403", "DENIED_BY_RULE")
            assert ask(box, f"{OTHER}/v1/what", curl=PLAINLY)[0] == "000"
            contacts = [one.contact for one in box.network_log(limit=100).contacts]
            rules_seen = {one.rule_id for one in contacts} | {r.rule_id for one in contacts for r in one.requests}
            assert {"not-there", "no-deletion", "ask-first", "floor:credential"} <= rules_seen
            refused = [one for one in client.credentials.uses("hooked") if one.outcome == "refused"]
            assert [one.code for one in refused] == ["DENIED_BY_RULE", "PENDING_APPROVAL"]
        client.credentials.revoke("hooked")

    room.use(steps)


@pytest.mark.req("T3.50")
def test_adding_one_of_production_asks_by_name(room: Reachable) -> None:
    def steps(installation: Installation) -> None:
        def cli(*arguments: str) -> "subprocess.CompletedProcess[bytes]":
            return installation.cli("credential", *arguments, input=f"{CANARY}\n".encode())

        line = ["add", "prod", "--base", "https://prod.test.example", "--variable", "PROD", "--agent", "prod"]
        line += ["--method", "POST", "--production"]
        refused = cli(*line)
        assert refused.returncode == 2 and b"write access to production" in refused.stderr
        assert CANARY.encode() not in refused.stderr + refused.stdout
        added = cli(*line, "--confirm", "write access to production")
        assert added.returncode == 0, added.stderr
        for words in (("list",), ("show", "prod"), ("show", "prod", "--uses"), ("rotate", "prod"), ("revoke", "prod")):
            shown = cli(*words)
            assert shown.returncode == 0 and CANARY.encode() not in shown.stdout + shown.stderr, shown.stderr
        with SyncColdframe(installation.url, installation.token) as client, pytest.raises(InvalidArgument) as short:
            client.credentials.add(terms("short"), "short")
        assert "short" not in str(short.value.facts.get("faults")) and short.value.facts["argument"] == "secret"

    room.run(steps)


@pytest.mark.req("T4.73")
def test_no_process_that_may_hold_a_secret_leaves_its_memory_behind(room: Reachable) -> None:
    def steps(installation: Installation) -> None:
        with SyncColdframe(installation.url, installation.token) as client:
            client.policy.load(rules())
            with client.sandboxes.create("dumped") as box:
                ask(box, f"{SITE}/v1/text", curl=PLAINLY)
                found = 0
                for pid in installation.processes():
                    if b"coldframe" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                        continue
                    limits = Path(f"/proc/{pid}/limits").read_text()
                    (line,) = [one for one in limits.splitlines() if one.startswith("Max core file size")]
                    if line.split()[4:6] not in (["0", "0"], ["1", "1"]):
                        assert "up" in Path(f"/proc/{pid}/cmdline").read_text().split("\0"), (pid, line)
                        continue
                    found += 1
                assert found >= 2

    room.run(steps)


@pytest.mark.req("T4.69", "T4.73")
def test_a_snapshot_has_nothing_of_what_its_sandbox_was_given_to_use(room: Reachable, tmp_path: Path) -> None:
    given = {name: f"canary-of-{name}-4f1d" for name in ("environment", "input", "session", "clipboard", "cookie")}
    cookies = (
        ".config/chromium/Default/Cookies .config/chromium/Default/Network/Cookies .mozilla/firefox/a.b/cookies.sqlite"
    )

    def steps(installation: Installation) -> dict[str, bool]:
        with SyncColdframe(installation.url, installation.token) as client:
            client.policy.load(rules())
            client.credentials.add(terms("keeper"), CANARY)
            token, _ = client.tokens.create(Role.AGENT, "of the agent", agent_id="keeper")
            with client.sandboxes.create("keeper") as box:
                (held,) = box.credentials()
                used = box.run_command(
                    f"{CURL.replace('-o body', '-o /dev/null')} {SITE}/v1/guarded/x; cat > /dev/null; echo $MORE > /dev/null",
                    env={"MORE": given["environment"]},
                    stdin=given["input"],
                )
                assert used.stdout == "200"
                box.run_command(f"export KEPT={given['session']}", shell_session="one")
                box.run_command(f"echo {given['clipboard']} | tee /tmp/clipboard > /dev/shm/clipboard")
                box.run_command(
                    f"for one in {cookies}; do mkdir -p $(dirname $one); echo {given['cookie']} > $one; done; "
                    "echo kept-by-the-agent > own; mkdir -p .config/chromium/Default; echo set > .config/chromium/Default/Preferences"
                )
                taken = take(box)
            done = installation.cli("snapshot", "export", taken.snapshot_id, str(tmp_path / "a.tar"))
            assert done.returncode == 0, done.stderr
            content = (tmp_path / "a.tar").read_bytes()
            needles = {**given, "secret": CANARY, "handle": held.handle, "token": token}
            spec = SandboxSpec(agent_id="another", snapshot=taken.snapshot_id)
            with client.sandboxes.create(spec=spec) as fork:
                assert (
                    fork.run_command("cat own .config/chromium/Default/Preferences").stdout
                    == "kept-by-the-agent\nset\n"
                )
                assert fork.credentials() == []
                words = "|".join(needles.values())
                found = fork.run_command(f"env; grep -rElI '{words}' . /tmp /dev/shm 2>/dev/null").stdout or ""
                assert not any(one in found for one in (*needles.values(), "./")), found
            client.snapshots.remove(taken.snapshot_id)
            client.credentials.revoke("keeper")
            assert b"kept-by-the-agent" in content and b"Preferences" in content, "it is looked for in the right place"
            return {name: one.encode() in content for name, one in needles.items()}

    found = room.run(steps)
    assert found == dict.fromkeys(found, False)
