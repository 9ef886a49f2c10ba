"""What the contract says of files is what is found: what is inside can be read and, where it says so, written, all else is not
there, and each item says by what it was granted, why, when and until when."""

import json
import os
from datetime import datetime
from pathlib import Path

import pytest

from coldframe.client.sync import SyncColdframe
from coldframe.contract.errors import ColdframeError
from tests.installation import Installation

CANARY = "outside-of-every-sandbox"
TRY = """
import json, os, stat, sys
def tried(path, mode):
    try:
        if os.path.isdir(path):
            os.listdir(path)
            if mode == "write":
                path = os.path.join(path, "self/comm" if path == "/proc" else f"probe-{os.getpid()}")
                with open(path, "w") as file: file.write("probe")
        elif mode == "write":
            with open(path, "r+b"): pass
        else:
            with open(path, "rb") as file: file.read(1)
        return "done"
    except OSError as error:
        return error.strerror
def shown(path):
    try:
        return open(path, "rb").read().decode("latin-1")
    except OSError as error:
        return error.strerror
asked = json.load(open("asked.json"))
for link in asked["outside"]:
    os.symlink(link, f"link-{asked['outside'].index(link)}")
print(json.dumps({
    "inside": {path: [tried(path, mode) for mode in ("read", "write")] for path in asked["inside"]},
    "outside": {path: shown(path) for path in asked["outside"]},
    "links": {path: shown(f"link-{index}") for index, path in enumerate(asked["outside"])},
}))
"""


@pytest.mark.req("T3.53")
def test_files_that_are_inside_work_and_all_others_are_not_there(
    client: SyncColdframe, installation: Installation, agent_id: str
) -> None:
    home = Path(installation.home, agent_id)  # in which no program of the installation looks for settings
    planted = [home / ".ssh" / "id_ed25519", home / ".netrc", home / "notes.txt"]
    data_dir = installation.data_dir
    for file in planted:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(CANARY)
    with client.sandboxes.create(agent_id) as box, client.sandboxes.create(f"{agent_id}-other") as other:
        other.write_file("own.txt", CANARY)
        other.run_command(f"for at in /tmp /var/tmp /run /dev/shm; do echo {CANARY} > $at/own.txt; done")
        outside = {
            **{str(path): CANARY for path in planted},
            f"{data_dir}/workspace/{agent_id}-other/own.txt": CANARY,
            f"{data_dir}/workspace/{agent_id}/../{agent_id}-other/own.txt": CANARY,
            f"{data_dir}/control/client.json": installation.token,
            f"{data_dir}/host/installation": str(installation.installation_id),
            f"/proc/{installation.pid}/root{home}/.netrc": CANARY,
            f"/proc/{installation.pid}/cwd/pyproject.toml": "coldframe",
            f"/proc/{installation.pid}/environ": data_dir,
        }
        assert {path for path, text in outside.items() if text not in Path(path).read_text()} == set()
        hidden = ["/tmp/own.txt", "/var/tmp/own.txt", "/run/own.txt", "/dev/shm/own.txt", "/home/other/own.txt"]
        hidden += [f"/proc/1/root{home}/.netrc", f"/proc/self/root{home}/.netrc", "/etc/shadow", "/sys/kernel/notes"]

        lines = {line["id"]: line["value"] for line in box.contract()["exposure"]}
        files = {
            one.removeprefix("exposure.file."): value
            for one, value in lines.items()
            if one.startswith("exposure.file.")
        }
        assert {"/usr", "/etc", "/tmp", "/proc", "/home/user", "/home/user/.exec_history"} <= files.keys()
        assert len(files) * 2 + (len(outside) + len(hidden)) * 2 >= 30
        assert lines["exposure.inside"] == [*(f"file:{path}" for path in files), "network:loopback"]
        assert lines["exposure.outside"].keys() == {"files", "network", "credentials"}
        for value in (*files.values(), lines["exposure.network.loopback"]):
            assert value["exposure"] == "inside"
            assert value["granted_by"] and value["reason"]
            assert datetime.fromisoformat(value["granted_at"]) == box.info.created_at
            assert value["expires"] == "with the sandbox"

        box.write_file("asked.json", json.dumps({"inside": list(files), "outside": [*outside, *hidden]}))
        box.write_file("probe.py", TRY)
        done = box.run_command(["python3", "probe.py"])
        assert done.exit_code == 0, done.stderr
        found = json.loads(str(done.stdout))
        for path, (read, written) in found["inside"].items():
            assert read == "done", (path, read)
            assert (written == "done") == (files[path]["access"] == "read-write"), (path, written)
        refusals = {os.strerror(code) for code in (1, 2, 13, 20)}  # EPERM, ENOENT, EACCES, ENOTDIR
        for shown in (found["outside"], found["links"]):
            told = {path: text for path, text in shown.items() if text not in refusals}
            assert {path for path in told if not path.startswith("/proc/")} == set()
            # a number of the host may be that of a process of the box, too
            assert {path for path, text in told.items() if outside.get(path, CANARY) in text} == set()
        for path in (*outside, *(f"link-{index}" for index in range(len(outside) + len(hidden)))):
            with pytest.raises(ColdframeError) as refused:
                box.read_file(path)
            assert refused.value.code in ("OUTSIDE_WORKSPACE", "FILE_NOT_FOUND", "PERMISSION_DENIED"), path
