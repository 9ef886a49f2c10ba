"""Root of a box with a system of its own breaks out of it no more than `user` of any other box: the rows of `tests/security`."""

import os
import tempfile
from pathlib import Path

import pytest

from coldframe.host.templates.id_range import FIRST_UID, IdRange, start_in_range
from tests.installation import Installation
from tests.security.arena import Row
from tests.security.attacks import GOOD, NOT_WHOLE, own_rows, run_rows, table
from tests.security.wrapper import Who, why_not

pytestmark = [pytest.mark.timeout(1800), pytest.mark.once]
GROUPS = {
    "root": ("file-escape", "kernel", "mount-device", "privilege"),
    "ordinary": ("file-escape", "kernel", "mount-device", "privilege", "host-process", "other-sandbox", "persistence"),
}
"""Each has a control in `tests/security`: the same rows, as a plain program without the wall, win there. All of an ordinary user,
whose sandboxes have the same users on the host."""
ITS_OWN = {
    "privilege-143": "its `su` makes root its other users, as whom it has less",
    "privilege-145": "it has capabilities, over users and files of its own alone",
    "privilege-147": "it may become its other users",
}
"""Rows that say BREACH by what root of such a system is to be able to. What it may not have beside that is in `OF_ROOT`."""
OF_ROOT = {
    "a set-uid program gives nobody inside anything": (
        "cp /usr/bin/id /var/rootid; chmod 4755 /var/rootid; su user -c /var/rootid | grep -q 'euid=0' && echo BREACH\n"
        "su user -c 'su -c id root' </dev/null 2>/dev/null | grep -q 'uid=0' && echo BREACH\n"
        "grep -q 'NoNewPrivs:.1' /proc/self/status && echo HELD || echo BREACH"
    ),
    "no capability but its seven, by a file or by asking": (
        "python3 -c \"\nimport os, struct\nfile = os.memfd_create('program')\n"
        "try: os.setxattr(file, 'security.capability', struct.pack('<5I', 0x2000001, 1 << 13 | 1 << 21, 0, 0, 0)); print('BREACH')\n"
        "except OSError: pass\n"
        "for line in open('/proc/self/status'):\n"
        "  if line.startswith('Cap') and int(line.split()[1], 16) & ~0xfb: print('BREACH', line)\nprint('HELD')\""
    ),
    "nobody beyond its range, and no way back up": (
        'python3 -c "\nimport os\n'
        "for uid in (65536, 100000, 200000, 2097152, 2**32 - 2):\n"
        "  try: os.setresuid(uid, uid, uid); print('BREACH', uid)\n  except (OSError, OverflowError): pass\n"
        "os.setresuid(1234, 1234, 1234)\n"
        "for act in (lambda: os.setresuid(0, 0, 0), lambda: os.setgroups([0]), lambda: os.chown('/etc/passwd', 1234, 1234)):\n"
        "  try: act(); print('BREACH')\n  except OSError: pass\nprint('HELD')\""
    ),
    "the maps of its users, limits on them and namespaces stay as they are": (
        "for f in /proc/self/uid_map /proc/self/gid_map /proc/self/setgroups /proc/1/uid_map /proc/sys/user/max_user_namespaces; do "
        "(cat $f > /tmp/same && cat /tmp/same > $f) 2>/dev/null && echo BREACH $f; done\n"
        'python3 -c "\nimport ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n'
        "for pid in [name for name in os.listdir('/proc') if name.isdigit()]:\n"
        "  for kind in ('user', 'mnt', 'net', 'pid', 'cgroup'):\n"
        "    try: space = os.open('/proc/' + pid + '/ns/' + kind, os.O_RDONLY)\n    except OSError: continue\n"
        "    if libc.setns(space, 0) == 0: print('BREACH', pid, kind)\n"
        "for flag in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x02000000):\n"
        "  if libc.unshare(flag) == 0: print('BREACH', hex(flag))\nprint('HELD')\""
    ),
    "memory and files of what does not belong to it, by /proc": (
        "for p in /proc/[0-9]*; do head -c 1 $p/mem >/dev/null 2>&1 && [ ${p#/proc/} != self ] && echo BREACH $p; "
        "grep -q {canary} $p/root{canary_file} $p/environ 2>/dev/null && echo BREACH $p; done\n"
        "for f in /proc/kcore /proc/kallsyms /proc/keys /proc/timer_list /proc/sysrq-trigger /proc/config.gz; do "
        "[ -s $f ] && head -c 1 $f 2>/dev/null | grep -q . && echo BREACH $f; (echo > $f) 2>/dev/null && [ ! -c $f ] && echo BREACH $f; "
        "done; echo HELD"
    ),
    "marks of the layers below it change nothing of these": (
        'python3 -c "\nimport os\n'
        "for name in ('trusted.overlay.opaque', 'trusted.overlay.redirect', 'user.overlay.redirect', 'user.overlay.metacopy'):\n"
        "  for path in ('/opt', '/usr/share', '/etc/passwd'):\n"
        "    try: os.setxattr(path, name, b'{canary_dir}')\n    except OSError: continue\n"
        "    if name.startswith('trusted'): print('BREACH', name)\n"
        "print('HELD')\"\nls -R /opt /usr/share | grep -q canary.txt && echo BREACH; true\nhost: run another command in the sandbox"
    ),
}


def rows_of_root() -> list[Row]:
    return [
        {
            "id": f"R{number}",
            "key": f"privilege-R{number}",
            "group": "privilege",
            "title": title,
            "run": f"sh: {run}",
            "expect": "HELD",
        }
        for number, (title, run) in enumerate(OF_ROOT.items(), 1)
    ]


def test_an_attack_by_root_of_a_box_does_not_win(installed: Installation) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: in a wrapper that an ordinary user makes nobody has subordinate ids")
    if reason := why_not():
        pytest.skip(reason)
    (template,) = Path(installed.data_dir, "templates").glob("[0-9a-f]*")
    who: Who = "root" if os.stat(installed.data_dir).st_uid == 0 else "ordinary"
    rows = [row for row in own_rows() if row["group"] in GROUPS[who] and row["key"] not in ITS_OWN] + rows_of_root()
    done = run_rows(rows, who=who, template=str(template))
    assert (done.trouble, done.left, done.ledger_intact) == ("", [], True)
    assert len(done.verdicts) == len(rows)
    assert table(one for one in done.verdicts.values() if one.verdict not in GOOD | NOT_WHOLE) == []
    skipped = [one for one in done.verdicts.values() if one.verdict in NOT_WHOLE]
    assert len(skipped) <= len(rows) // 4, table(skipped)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a range of users of its own")
@pytest.mark.parametrize("number", [2, 4, 5])
def test_without_the_walls_such_a_row_wins(number: int, tmp_path: Path) -> None:
    """The control: root over a range of users that are nobody's, with all capabilities in its namespace and no filter."""
    script = list(OF_ROOT.values())[number - 1].replace("{canary}", "no-canary").replace("{canary_file}", str(tmp_path))
    with tempfile.TemporaryFile() as output:
        start_in_range(
            IdRange(FIRST_UID, FIRST_UID), ["bash", "-c", script], output=output.fileno(), errors=output.fileno()
        ).wait(60)
        output.seek(0)
        assert b"BREACH" in output.read()
