"""`host:` steps about what the product itself does: its records, its own looks at a workspace, refusals, and what it has not yet."""

import asyncio
import json
import os
import re
import signal
from pathlib import Path
from urllib.parse import urlsplit

from coldframe.client.previews import Previews
from coldframe.client.transport import ask
from coldframe.contract.command import CommandResult, Ended
from coldframe.contract.errors import ColdframeError
from coldframe.contract.sandbox import SandboxSpec
from tests.installation import wait_until
from tests.security.host_steps import MOST_COMMANDS, files_of, limit_of, step
from tests.security.scene import Breach, NotHere, Scene


@step(r'^pause the sandbox during "(.+?)"')
async def a_command_that_would_end_while_it_is_paused(scene: Scene, found: re.Match[str]) -> None:
    if "memory" not in (await scene.sandbox.report()).pause_kinds:
        raise NotHere("a control group that can be frozen")

    async def begin(command: str, timeout_s: float) -> str:
        begun = await scene.call("run_command", {"command": command, "timeout_s": timeout_s, "background": True})
        return str(begun.value["command_id"])

    async def until_ended(command_id: str) -> CommandResult:
        async with asyncio.timeout(30):
            async for event in scene.sandbox.follow(command_id):
                if isinstance(event, Ended):
                    return event.result
        raise Breach(f"command {command_id} has no end")

    late, killed = await begin(found[1], 4.0), await begin("sleep 1000", 600)
    await scene.sandbox.pause()
    await scene.sandbox.signal(killed, signal.SIGKILL)
    if (await until_ended(killed)).signal != signal.SIGKILL:
        raise Breach("a command of a paused sandbox could not be killed")
    await asyncio.sleep(4.5)  # longer than it may take, and than it may run
    if (await scene.sandbox.refresh()).state.state != "paused" or (
        await scene.sandbox.command(late)
    ).result is not None:
        raise Breach("it did not stand still")
    await scene.sandbox.resume()
    result = await until_ended(late)
    if result.timed_out or (await scene.sandbox.output(late)).data != b"late\n":
        raise Breach(f"the pause was counted as its time: {result}")


@step(r"^ask for a preview on port (\d+) of a sandbox where nothing listens$")
async def preview_of_another_place(scene: Scene, found: re.Match[str]) -> None:
    preview = await Previews(scene.sandbox._transport).create(scene.sandbox.id, int(found.group(1)))
    place = urlsplit(str(preview.url))
    reader, writer = await asyncio.open_connection("127.0.0.1", place.port or 80)
    head = f"GET / HTTP/1.1\r\nHost: {place.netloc}\r\nColdframe-Preview-Token: {preview.token}\r\n\r\n"
    writer.write(head.encode())
    answer = await reader.read(1 << 16)
    writer.close()
    if b"PREVIEW_NOT_LISTENING" not in answer:
        raise Breach(f"something answered: {answer[:300]!r}")


@step(r"^open the review page")
async def the_web_page(scene: Scene, found: re.Match[str]) -> None:
    raise NotHere("the web page")


@step(r"^the resolver answers")
async def the_resolver(scene: Scene, found: re.Match[str]) -> None:
    scene.notes.append("no name is resolved: the network of a sandbox is `none`")


# -- the record ----------------------------------------------------------------------------------------------------


@step(r"^parse \.exec_history or the audit log")
async def one_call_is_one_record(scene: Scene, found: re.Match[str]) -> None:
    path = os.path.join(files_of(scene), ".exec_history")
    shown = await scene.run(["cat", ".exec_history"])
    records = [
        json.loads(line) for line in (shown.stdout or Path(path).read_text(encoding="utf-8")).split("\n") if line
    ]
    mine = [record for record in records if "forged" in json.dumps(record)]
    if len(mine) != 1 or any(record.get("cmd") == "forged" for record in records):
        raise Breach(f"{len(mine)} records hold the text of one call: {mine}")
    await _ledger_is_whole(scene)


@step(r"(\d+) quick commands through the API, then look for the first")
async def no_command_is_lost_in_a_flood(scene: Scene, found: re.Match[str]) -> None:
    count = min(int(found[1]), MOST_COMMANDS)
    for index in range(count):
        await scene.run(["true", f"quick-{index}"])
    seen: set[str] = set()
    after = 0
    while entries := await scene.place.client.ledger.entries(sandbox_id=scene.sandbox.id, after=after, limit=1000):
        after = entries[-1].seq
        seen |= set(re.findall(r"quick-\d+", json.dumps([entry.body for entry in entries])))
    if len(seen) != count:
        raise Breach(f"{count - len(seen)} commands of {count} are not in the ledger")
    await _ledger_is_whole(scene)


async def _ledger_is_whole(scene: Scene) -> None:
    verdict = await scene.place.client.ledger.verify()
    if not verdict.intact:
        raise Breach(f"the ledger does not verify: {verdict.faults}")


@step(r"^lineage has the id of this sandbox")
async def contacts_are_the_sandboxs_own(scene: Scene, found: re.Match[str]) -> None:
    names = {contact["name"] for contact in scene.answers[-1].value["contacts"]}
    if scene.values["allowed_host"] not in names:
        raise Breach(f"the command that made the attempt does not have it: {names}")
    if any(contact.name == scene.values["allowed_host"] for contact in await scene.place.neighbour.contacts()):
        raise Breach("the attempt is written to another sandbox")


# -- what the product itself does -----------------------------------------------------------------------------------


@step(r"product (make its own git operations|runs git)")
async def the_product_looks_at_the_workspace(scene: Scene, found: re.Match[str]) -> None:
    """It runs no git of its own; this is everything that it does with a workspace."""
    await scene.call("list_directory", {"path": "", "recursive": True})
    await scene.call("search_files", {"pattern": "hook", "path": ""})
    await scene.call("write_file", {"path": "touched", "content": "x"})
    await scene.sandbox.report()
    await scene.sandbox.runtimes()
    await scene.reopen()
    scene.notes.append("the product runs no git on a workspace")


@step(r"^restart the daemon, start the sandbox again, read the effective policy")
async def settings_come_from_no_workspace(scene: Scene, found: re.Match[str]) -> None:
    before = (await scene.place.client.policy.show()).text
    await scene.sandbox.terminate()
    await scene.place.restart()
    await scene.open()
    if (await scene.place.client.policy.show()).text != before:
        raise Breach("the rules in force changed over a restart")
    report = await scene.sandbox.report()
    weak = [wall.name for wall in report.properties if wall.required and wall.state != "enforced"]
    if report.level != "namespaces" or weak:
        raise Breach(f"after the restart the level is {report.level}, not enforced: {weak}")


@step(r"^reset the sandbox to its template")
async def a_deleted_agent_leaves_nothing(scene: Scene, found: re.Match[str]) -> None:
    await scene.close()
    await scene.open()
    scene.notes.append("reset means: the agent is deleted and made again")


@step(r"^hide bwrap")
async def without_bubblewrap_nothing_starts(scene: Scene, found: re.Match[str]) -> None:
    place = scene.place
    boxes = _first_processes()
    place.helper.ask("cover", path="/usr/bin/bwrap")
    try:
        refused = await place.client.sandboxes.create(spec=SandboxSpec(agent_id=f"{scene.agent_id}-none"))
    except ColdframeError as error:
        scene.notes.append(f"refused: {error.code}, {error}")
        if error.code != "ISOLATION_UNAVAILABLE" or "bwrap" not in f"{error} {error.facts} {error.hint}":
            raise Breach(f"the refusal does not name what is missing: {error.code} {error} {error.facts}") from None
    else:
        await refused.terminate()
        raise Breach("a sandbox was made without bubblewrap")
    finally:
        place.helper.ask("uncover", path="/usr/bin/bwrap")
    wait_until(lambda: _first_processes() <= boxes, "no process of the refused sandbox is left")
    other = await place.client.sandboxes.create(spec=SandboxSpec(agent_id=f"{scene.agent_id}-some"))
    await other.terminate()  # the control: with bubblewrap it is made


def _first_processes() -> int:
    """How many boxes there are, by their first process."""
    count = 0
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                count += Path(f"/proc/{entry}/cmdline").read_bytes().startswith(b"/opt/coldframe/sleep")
            except OSError:
                continue
    return count


@step(r"ask for level (microvm|gvisor)")
async def a_level_that_is_not_there_is_refused(scene: Scene, found: re.Match[str]) -> None:
    payload = {"agent_id": f"{scene.agent_id}-level", "isolation": found[1]}
    try:
        await ask(scene.place.client._transport, "POST", "/v1/sandboxes", payload=payload)
    except ColdframeError as error:
        scene.notes.append(f"refused: {error.code}")
        if error.code not in ("INVALID_ARGUMENT", "ISOLATION_UNAVAILABLE"):
            raise Breach(f"refused by {error.code}: {error}") from None
    else:
        raise Breach(f"the level `{found[1]}` was accepted")


@step(r"with enforcement hard")
async def a_limit_that_is_not_hard_is_refused_on_demand(scene: Scene, found: re.Match[str]) -> None:
    report = await scene.sandbox.report()
    soft = [limit for limit in report.limits if limit.strength != "hard"]
    if not soft:
        raise NotHere("a limit that this machine cannot keep hard")
    try:
        await scene.place.client.sandboxes.create(
            spec=SandboxSpec(agent_id=f"{scene.agent_id}-hard", on_missing="refuse")
        )
    except ColdframeError as error:
        if error.code != "ISOLATION_UNAVAILABLE" or soft[0].kind not in f"{error} {error.facts}":
            raise Breach(f"the refusal does not name the limit: {error.code} {error}") from None
    else:
        raise Breach(f"a sandbox was made although {[limit.kind for limit in soft]} cannot be kept hard")
    if not scene.sandbox.info.degraded or not all(limit.enforced_by for limit in soft):
        raise Breach("a sandbox with soft limits does not say so")
    scene.notes.append(", ".join(f"{limit.kind}: {limit.strength}, {limit.enforced_by}" for limit in soft))


@step(r"^as root add the process of a sandbox to another cgroup")
async def a_process_is_moved_out_of_its_groups(scene: Scene, found: re.Match[str]) -> None:
    report = await scene.sandbox.report()
    scene.values["memory_strength"] = limit_of(report, "memory").strength
    if os.geteuid() != 0 or limit_of(report, "memory").strength != "hard":
        raise NotHere("control groups: there is nothing to move")
    uid = scene.uid
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if os.stat(f"/proc/{entry}").st_uid == uid:
                    for folder in _memory_groups():
                        Path(folder, "cgroup.procs").write_text(entry, encoding="ascii")
            except OSError:
                continue


def _memory_groups() -> list[str]:
    return [path for path in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup") if os.path.exists(f"{path}/cgroup.procs")][:1]


@step(r"^read the report again")
async def the_report_is_measured_again(scene: Scene, found: re.Match[str]) -> None:
    if scene.values.get("memory_strength") != "hard":
        raise NotHere("control groups: there is nothing to move")
    limit = limit_of(await scene.sandbox.report(), "memory")
    if limit.strength == "hard":
        raise Breach(f"the report still says hard: {limit.enforced_by}")
    scene.notes.append(f"memory is now {limit.strength}: {limit.enforced_by}")
