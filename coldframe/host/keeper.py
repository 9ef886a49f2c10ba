"""Builds one box, joins it, gives every right away, and then serves it (`guest/main.py`).

One process per sandbox, forked from the zygote; nobody's child that may die first, so server and host
daemon can be killed while commands go on. It stays outside the box: the payload does not see it. What
is lost if it dies is the box, which dies with it.

The steps are told in order, because each depends on the one before: descriptors → the sandbox's own
user → "here I am" (the machine sees that this process is in its control group) → bubblewrap (meanwhile the
machine sees that the first process is in its groups) → join → last mounts → the first process goes on → no
capabilities, no new privileges, filter, not dumpable → evidence → ready. Only then is the socket served,
so no command runs before all of it holds. A first process that loads nothing of the sandbox's goes on before the
last mounts already; and bubblewrap of a keeper that was forked ahead is started before there is an order.
"""

import hashlib
import json
import os
import resource
import socket
import stat
import sys
import traceback
from functools import partial
from typing import Any, NamedTuple

from coldframe.guest import contacts, main, refusals, rows
from coldframe.guest import files as _files  # noqa: F401 - its verbs register themselves
from coldframe.guest import runtimes as _runtimes  # noqa: F401
from coldframe.guest import system_packages as _system_packages  # noqa: F401
from coldframe.host import attachment, confine, seccomp
from coldframe.host.birth import Births
from coldframe.host.claims import Claims
from coldframe.host.conversation import receive, require_whole
from coldframe.host.egress import arrivals, capture
from coldframe.host.isolation import bubblewrap, denials, namespaces, own_system, programs, volume_mounts
from coldframe.host.limits import SPARE_PROCESSES, GroupDescriptors
from coldframe.host.outfit import Outfit, unpack
from coldframe.host.quota import DiskQuota
from coldframe.host.tree import Trees
from coldframe.host.volume_quotas import look_into


class Order(NamedTuple):
    """What the machine asks a keeper to be. Travels as JSON to the zygote."""

    sandbox_id: str
    mark: str
    """What the processes of this installation are told by (see strays.py)."""
    uid: int
    """Host user of the payload; the caller's own where there is no root."""
    gid: int
    workspace: str
    history: str
    settings: str | None
    """Directory that the box has as its /etc; None for one that is put together (see settings.py)."""
    system: dict[str, Any] | None
    """Fields of a `System` of its own; None for that of the host."""
    tools: dict[str, str]
    lent: dict[str, str]
    """Directories of the machine by their places in the box, read-only: what runs code cells."""
    limits: dict[str, Any]
    tells_all: bool
    """Whether its evidence has, when it is ready, what the machine may read from outside; asked later it has in any case."""
    memory_enforced: bool
    """Whether a memory controller holds the limit; if not, the keeper looks and ends what is over it."""
    runtimes: list[str] | None
    """Names in `tools` that are the only programs of the box; None for all of the machine."""
    libraries: list[str]
    """What these need: files below /usr."""
    denied: list[str]
    """Names of programs that are to be covered in the box, and patterns of such (see denials.py)."""
    denied_links: list[str]
    """More names of their files."""
    captured_ports: list[int] | None
    """What arrives at the broker where nftables cannot be had; None for a box without network."""
    volumes: list[list[Any]]
    """Fields of a `VolumeOrder` of each."""
    holds_outside: bool
    """Whether one that waits has to fetch its workspace itself, since the machine has no rights over mounts."""
    waits: bool
    """Whether the box waits for its workspace, with all that follows from whose it is; what of this is said here counts for
    nothing (see `Arrival`)."""
    files: list[str]
    """What each descriptor that comes along is: `answer`, the first; `lease`; `volumeN` as far as that is a mount of its own; `outfit` and `handover` of a box
    with a way out (see outfit.py; a listener that the host daemon alone can reach); `users`, in which an ordinary user has those of a
    system of its own; or directories of control groups:
    `birthplace`, the keeper's own, `first`, that of the first process, `per_command:NAME` and `attach_only:NAME`."""


class Likely(NamedTuple):
    """What a keeper that is forked ahead is told of whoever is likely to ask for a box."""

    mark: str
    uid: int
    gid: int


class Arrival(NamedTuple):
    """Who comes into a box that waits."""

    workspace: str
    identity: tuple[int, int]
    """Device and inode of its directory."""
    history: str
    captured_ports: list[int] | None
    files: list[str]
    """Of a box with a way out `outfit` and `handover`; as root `workspace` and `history`, their mounts (see attachment.py). What it
    serves with comes in a word of its own, while this is made use of."""


def prepare() -> None:
    """In the zygote: work out what every keeper needs, so that each is forked with it."""
    namespaces.prepare()
    for profile in ("default", "keeper", "newborn", "no-native"):
        seccomp.build_filter(profile)


def greet(answer: socket.socket) -> None:
    """Say `{"keeper": pid}`, once what depends on no order is done."""
    os.umask(0o022)
    _allow_most_files()
    _tell(answer, {"keeper": os.getpid()})


class Begun(NamedTuple):
    """What a keeper that was forked ahead has of the box that is likely to be ordered."""

    likely: Likely
    groups: frozenset[str]
    """Names of the control groups that bubblewrap is in."""
    bwrap: namespaces.Early


def begin(likely: Likely, files: dict[str, int]) -> Begun | None:
    """Start bubblewrap, which is a third of a box's time that depends on no order. None where that cannot be done."""
    if not rows.can_start():  # a fork of this would be a copy that waits
        return None
    try:
        place = os.dup(files["first"]) if "first" in files else -1
        entrance = _entrance(_groups(files), place) or bubblewrap.Entrance(-1, ())
        return Begun(likely, _group_names(files), namespaces.Early(likely.mark, (likely.uid, likely.gid), entrance))
    except OSError:
        return None


def _taken_up(begun: Begun | None, order: Order, files: dict[str, int]) -> namespaces.Early | None:
    """What was begun, if this is the box for it. If not it is ended, while this process may do that."""
    if begun is None:
        return None
    likely = Likely(order.mark, order.uid, order.gid)
    if order.system is None and likely == begun.likely and _group_names(files) == begun.groups and begun.bwrap.waits():
        return begun.bwrap
    begun.bwrap.end()
    return None


def become_keeper(order: Order, files: dict[str, int], *, is_known: bool = False, begun: Begun | None = None) -> None:
    """Build and serve; the process ends here.

    On `answer` it greets and waits for a byte, unless the machine knows it already, then says `{"init": pid}` as soon as
    there is a first process and waits for a word before that goes on, with which comes what it serves with: `listener`,
    `records`, its directory, `digests`. Then `{"placed": true}`, when what lies around the box is there,
    `{"stands": true}`, when nobody in it or at it has a right any more, and `{"ready": evidence}`; or `{"failed": text}`
    at any point. Where the order says that it waits, it says `{"waits": true}` before the last three, and who comes is
    told then, with another word.
    """
    answer = socket.socket(fileno=files["answer"])
    try:
        if not is_known:
            greet(answer)
            if not answer.recv(1):
                os._exit(1)
        setting, came, evidence = _build(order, files, answer, _taken_up(begun, order, files))
        _tell(answer, {"ready": evidence(is_whole=order.tells_all)})
        if came is not None:
            arrivals.hand_over(came, answer)  # and kept, as they are for as long as the box lives
    except (OSError, confine.ConfineError, bubblewrap.BuildFailed) as error:
        _tell(answer, {"failed": f"{error}"})
        os._exit(1)
    answer.close()
    try:
        main.Keeper(setting).serve()
    except BaseException:  # noqa: BLE001 - the edge of the process: the box ends with it, and the host's log has the reason
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def _allow_most_files() -> None:
    """Each running or adopted command holds about ten descriptors. What the box itself may open is its own limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _tell(answer: socket.socket, message: dict[str, Any]) -> None:
    answer.send(json.dumps(message).encode())


def _await_word(answer: socket.socket) -> dict[str, int]:
    """Wait for the machine, and the descriptors that it gives; end here if it is gone."""
    message, flags, files = receive(answer)
    if not message:
        os._exit(1)
    try:
        require_whole(flags)
        return dict(zip(json.loads(message)["files"], files, strict=True))
    except (ValueError, TypeError, KeyError) as error:
        raise confine.ConfineError("read what the machine gives", str(error)) from error


def _await_arrival(answer: socket.socket) -> tuple[Arrival, dict[str, int]]:
    """Wait for whoever comes, and the descriptors that come along; end here, and with it the box, if the machine is gone."""
    _tell(answer, {"waits": True})
    message, flags, files = receive(answer)
    if not message:
        os._exit(0)
    try:
        require_whole(flags)
        arrival = Arrival(**json.loads(message))
        return arrival, dict(zip(arrival.files, files, strict=True))
    except (ValueError, TypeError) as error:
        raise confine.ConfineError("read who comes", str(error)) from error


def _groups(files: dict[str, int]) -> GroupDescriptors | None:
    kinds: dict[str, list[tuple[str, int]]] = {"per_command": [], "attach_only": []}
    for name, file in files.items():
        kind, _, hierarchy = name.partition(":")
        if hierarchy:
            kinds[kind].append((hierarchy, file))
    if not any(kinds.values()):
        return None
    return GroupDescriptors(tuple(kinds["per_command"]), tuple(kinds["attach_only"]))


def _group_names(files: dict[str, int]) -> frozenset[str]:
    return frozenset(name for name in files if ":" in name or name == "first")


def _entrance(groups: GroupDescriptors | None, birthplace: int) -> bubblewrap.Entrance | None:
    """Into the groups of the box, for what becomes bubblewrap and with it the first process. Raises OSError."""
    if groups is None:
        return None
    directories = [file for name, file in (*groups.per_command, *groups.attach_only) if name != "unified"]
    tasks = (os.open("tasks", os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory) for directory in directories)
    return bubblewrap.Entrance(birthplace, tuple(tasks))


def _build(
    order: Order, files: dict[str, int], answer: socket.socket, early: namespaces.Early | None
) -> tuple[main.Setting, arrivals.Arrivals | None, "partial[dict[str, Any]]"]:
    system, users, layer = None, None, None
    if order.system is not None:  # by processes of the sandbox's user, so before there is a secret in this one
        system = own_system.System(**order.system)
        own = own_system.enter_users(files["users"]) if "users" in files else (order.uid, order.gid)
        layer = own_system.mount_system(system, order.workspace, own)
        most = None if "attach_only:pids" in files else order.limits["pids"] + SPARE_PROCESSES
        users = own_system.make_users(system.first, own, most_processes=most)
    outfit = unpack(files["outfit"]) if "outfit" in files else Outfit({}, {}, {}, "")
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(order.gid, order.gid, order.gid)
        os.setresuid(order.uid, order.uid, order.uid)
    elif system is not None:
        confine.set_held_capabilities(permitted=0, effective=0)  # what root gives up by becoming the sandbox's user
    program = seccomp.build_filter("default")
    volumes = volume_mounts.orders(order.volumes)
    plan = namespaces.Plan(
        workspace=None if order.waits else order.workspace,
        history=order.history,
        tools=order.tools if order.runtimes is None else {name: order.tools[name] for name in order.runtimes},
        lent=order.lent,
        memory_mib=order.limits["memory_mib"],
        tools_only=order.runtimes is not None,
        settings=order.settings if system is None else None,
        root=None if system is None else system.place,
        users=users,
        mark=order.mark,
        files=outfit.files,
        covers=outfit.covers,
        directories=volume_mounts.places_of_root(volumes),
        binds=volume_mounts.staged(volumes),
    )
    groups = _groups(files)
    if "birthplace" in files:
        os.close(files["birthplace"])
    if early is not None and not namespaces.can_be_told(plan):
        early.end()
        early = None
    built = namespaces.build(
        plan,
        early=early,
        entrance=None if early is not None else _entrance(groups, files.get("first", -1)),
        begun=lambda init, bwrap: _tell(answer, {"init": init, "bwrap": bwrap}),
    )
    init = os.pidfd_open(built.init)
    # Asked from outside: nobody inside may look at the first process that closely, and no filtered one changes its own.
    spaces = {name: os.stat(f"/proc/{built.init}/ns/{name}").st_ino for name in confine.NAMESPACES}
    caught: list[tuple[arrivals.Arrivals | None, refusals.Refusals]] = []
    covers = [denials.Covers()]
    changes_programs = order.runtimes is not None or bool(order.denied)
    goes_early = system is None and not (changes_programs or order.waits)
    """Whether the first process may become its program while the box is finished: not one that loads libraries of the sandbox's."""
    outside: list[attachment.Outside] = []

    def let_someone_in() -> None:
        nonlocal order, outfit
        if not changes_programs:
            namespaces.let_go(built, program)
            namespaces.await_first()
        confine.set_not_dumpable()
        arrival, came = _await_arrival(answer)
        files.update(came)
        if "workspace" in files:
            trees = attachment.Trees(files.pop("workspace"), files.pop("history"))
        else:
            trees = outside[0].copy_trees(attachment.Place(arrival.workspace, arrival.identity, arrival.history))
        attachment.attach(trees)
        for one in outside:
            one.close()
        order = order._replace(captured_ports=arrival.captured_ports)
        if "outfit" in files:
            outfit = unpack(files["outfit"])
            namespaces.dress(outfit.files, outfit.covers)
        files.update(_await_word(answer))

    def while_privileged() -> None:
        if goes_early:
            files.update(_await_word(answer))
            namespaces.let_go(built, program)
        if system is not None:
            own_system.settle_inside()
        namespaces.finish_mounts()
        volume_mounts.place(volumes, files)
        if not goes_early:
            files.update(_await_word(answer))  # that the first process is in its groups: it may start others now
        if order.waits:
            let_someone_in()
        mounted = programs.mount_points() if order.runtimes is not None else {}
        if changes_programs:
            namespaces.let_go(built, program)  # it starts a program of the machine itself, and the last one
            namespaces.await_first()
        if order.runtimes is not None:
            kept = [f"{namespaces.TOOLS}/{name}" for name in order.runtimes]
            programs.leave_only(kept, order.libraries, mounted)
        if order.denied:
            covers[0] = denials.cover(order.denied, order.denied_links)
        if order.captured_ports is None:
            caught.append((None, refusals.Refusals(contacts.open_capture(), contacts.parse_packet, "network:none")))
        else:
            caught.append(capture.capture_traffic(order.captured_ports, own_ip=namespaces.NAMESERVER))
        _tell(answer, {"placed": True})

    if system is not None:
        own_system.trust_no_modules()

    def look_back(box: int, root: int) -> None:
        if order.waits and order.holds_outside:
            outside.append(attachment.Outside(box, root))

    confine.join_namespaces(built.init, while_privileged=while_privileged, before_mounts=look_back)
    if not (goes_early or changes_programs or order.waits):
        namespaces.let_go(built, program)
    if system is None:
        confine.drop_all_capabilities()
    else:
        confine.keep_capabilities(own_system.HELD_BY_KEEPER, bounding=own_system.HELD, effective=own_system.TO_BECOME)
    confine.set_no_new_privs()
    births = groups is not None and any(name == "unified" for name, _ in groups.per_command)
    seccomp.load_filter(seccomp.build_filter("keeper") if births else program)
    confine.set_not_dumpable()
    root = os.open(namespaces.HOME, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    os.chdir("/")
    variables = {**namespaces.ENVIRONMENT, **outfit.environment}
    environment = {name.encode(): value.encode() for name, value in variables.items()}
    attached = look_into(volumes)
    records = files["records"]
    claims = Claims(records) if groups is not None and order.captured_ports is not None else None
    trees = Trees(
        groups,
        order.limits,
        memory_enforced=order.memory_enforced,
        root=root,
        program=_filter_of_commands(order, births=births),
        births=Births(possible=births),
        claims=claims,
        layer=layer,
        volumes=attached,
    )
    if not changes_programs and not order.waits:
        namespaces.await_first()
    _tell(answer, {"stands": True})
    came, seen = caught[0]
    evidence = partial(_evidence, spaces, order, trees.quota, hashlib.sha256(program).hexdigest(), covers[0])
    setting = main.Setting(
        listener=socket.socket(fileno=files["listener"]),
        handover=None if came is None else _handover(files["handover"], came, outfit.authority),
        lease=files.get("lease", -1),
        records=records,
        digests=files.get("digests", -1),
        root=root,
        init=init,
        group_events=_open_events(groups),
        environment=environment,
        limits=order.limits,
        tree=trees.make,
        prepare=trees.prepare,
        seal=trees.seal,
        quota=trees.quota,
        starts_any_program=order.runtimes is None,
        users={} if system is None else own_system.users_inside(),
        refusals=seen,
        evidence=evidence,
        closed=attached.closed,
    )
    return setting, came, evidence


def _open_events(groups: GroupDescriptors | None) -> int:
    for name, group in () if groups is None else groups.per_command:
        if name == "unified":
            return os.open("cgroup.events", os.O_RDONLY | os.O_CLOEXEC, dir_fd=group)
    return -1


def _handover(listener: int, came: arrivals.Arrivals, authority: str) -> main.Handover:
    """For a host daemon that is started again: the sockets once more, and the key that went with them."""

    def give(peer: socket.socket) -> None:
        arrivals.hand_over(came, peer)
        peer.send(authority.encode())

    return main.Handover(socket.socket(fileno=listener), give)


def _filter_of_commands(order: Order, *, births: bool) -> bytes | None:
    """What they need beside the keeper's own filter for it to be the whole one of their box."""
    if order.runtimes is not None:
        return seccomp.build_filter("no-native")
    return seccomp.build_filter("newborn") if births else None


_TABLES = {"mountinfo": "mountinfo", "net_dev": "net/dev"}


def _evidence(
    namespaces_of_init: dict[str, int],
    order: Order,
    quota: DiskQuota,
    filter_sha256: str,
    covers: denials.Covers,
    *,
    is_whole: bool = True,
) -> dict[str, Any]:
    """What only somebody inside can read, gathered now, beside the namespaces that the box was joined by.

    Not `is_whole`: without what most machines can read from outside as well.
    """
    processes = {}
    most_processes = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if is_whole:
                    processes[name] = _text(f"/proc/{name}/status")
                # The first process never forks, and ours that have started no program yet are told by their owner.
                if name != "1" and os.stat(f"/proc/{name}/status").st_uid == os.getuid():
                    most_processes.append(_most_processes(_text(f"/proc/{name}/limits")))
            except OSError:
                continue
    tables = {name: _text(f"/proc/1/{path}") for name, path in _TABLES.items()} if is_whole else {}
    return {
        **tables,
        **({"processes": processes} if is_whole else {}),
        "namespaces": namespaces_of_init,
        "limits": dict(order.limits),
        "looks_at_memory": not order.memory_enforced,
        "most_processes": max(most_processes, default=None),
        "disk_used_bytes": quota.used,
        "filter_sha256": filter_sha256,
        "devices": _devices("/dev"),
        "denied": denials.look(order.denied, covers),
    }


def _most_processes(limits: str) -> int:
    words = limits.partition("Max processes")[2].split()
    return int(words[0]) if words and words[0].isdigit() else sys.maxsize


def _devices(folder: str) -> list[tuple[str, str, int, int]]:
    """Device nodes below it. A box cannot make any, but it can make folders in the memory file systems there."""
    found = []
    folders = [folder]
    for path in folders:
        if os.path.ismount(path) and path not in (folder, f"{folder}/pts"):
            continue  # `nodev`, and anything may lie there
        with os.scandir(path) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    folders.append(entry.path)
                elif stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
                    kind = "character" if stat.S_ISCHR(status.st_mode) else "block"
                    found.append((entry.path, kind, os.major(status.st_rdev), os.minor(status.st_rdev)))
    return found


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as source:
        return source.read()
