"""The records of systems: what they say is so, whoever is killed, and nobody waits for another's."""

import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from coldframe.contract.errors import Internal, WrongState
from coldframe.host import confine
from coldframe.host.isolation.own_system import System, mount_system
from coldframe.host.layers.store import LayerStore
from coldframe.host.templates import systems
from coldframe.host.templates.id_range import IdRange
from coldframe.host.templates.store import Template
from coldframe.host.templates.systems import Systems
from tests.host.forked import ChildFailedError, in_child

USER = (os.geteuid(), os.getegid())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LayerStore]:
    store = LayerStore(str(tmp_path / "layers"))
    yield store
    store.close()


@pytest.fixture
def of_an_ordinary_user(tmp_path: Path, store: LayerStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Systems]:
    """As one with subordinate ids begins them."""
    (tmp_path / "root").mkdir()
    ids = IdRange(100_000, 100_000)
    template = Template("0" * 64, "debian", datetime.now(UTC), "", (), str(tmp_path / "root"), ids)
    monkeypatch.setattr(systems, "refuse_unable", lambda: None)
    monkeypatch.setattr(Systems, "_template", lambda self, wanted: template)
    monkeypatch.setattr(Systems, "_kept", lambda self, workspace, digest: template)
    monkeypatch.setattr(Systems, "_users_of", lambda self, ids: 0)
    monkeypatch.setattr(systems, "hand_over", lambda path, ids: None)
    made = Systems(str(tmp_path), lambda: store)
    yield made
    made.close()


def prepare(known: Systems, workspace: str) -> None:
    os.close(known.prepare(workspace, "debian", USER, "").held)


def test_a_system_is_on_record_once_its_root_is_root_of_the_box(
    of_an_ordinary_user: Systems, store: LayerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever is killed between both leaves one whose `/` belongs to `user`, who could put anything into it."""
    handed = []

    def hand_over(path: str, ids: IdRange) -> None:
        assert of_an_ordinary_user.names() == []
        handed.append(path)
        if len(handed) == 1:
            raise Internal("chown: no")

    monkeypatch.setattr(systems, "hand_over", hand_over)
    with pytest.raises(Internal):
        prepare(of_an_ordinary_user, "workspace/agent")
    assert store.stacks() == []
    prepare(of_an_ordinary_user, "workspace/agent")
    prepare(of_an_ordinary_user, "workspace/agent")
    (stack,) = store.stacks()
    assert handed[1:] == [store.stacking(stack.id, "").upper]


def test_nobody_waits_with_a_system_while_that_of_another_is_removed(
    of_an_ordinary_user: Systems, store: LayerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(of_an_ordinary_user, "workspace/one")
    waited = []

    def collect() -> int:
        other = threading.Thread(target=prepare, args=(of_an_ordinary_user, "workspace/two"), daemon=True)
        other.start()
        other.join(20)
        waited.append(other.is_alive())
        return 0

    monkeypatch.setattr(store, "collect", collect)
    of_an_ordinary_user.remove("workspace/one")
    assert waited == [False] and of_an_ordinary_user.names() == ["workspace/two"]


def test_a_sandbox_waits_for_who_reads_the_system_that_it_is_to_have(
    of_an_ordinary_user: Systems, store: LayerStore
) -> None:
    known = of_an_ordinary_user
    prepare(known, "workspace/agent")
    (stack,) = store.stacks()
    failed: list[BaseException] = []

    def use() -> None:
        try:
            prepare(known, "workspace/agent")
        except BaseException as error:
            failed.append(error)

    user = threading.Thread(target=use, daemon=True)
    with known.at_rest(stack.id):
        with known.at_rest(stack.id):  # others may read it as well
            user.start()
        user.join(0.2)
        assert user.is_alive() and not failed
    user.join(20)
    assert not user.is_alive() and not failed
    used = known.prepare("workspace/agent", "debian", USER, "")
    with pytest.raises(WrongState, match="a sandbox uses the system"), known.at_rest(stack.id):
        pass
    with pytest.raises(WrongState, match="another sandbox"):
        prepare(known, "workspace/agent")
    os.close(used.held)
    with known.at_rest(stack.id):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it mounts")
def test_a_box_is_built_also_while_the_host_unmounts_the_workspace_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    for name in ("workspace/own", "workspace/one", "workspace/two", "root", "upper", "work", "place"):
        (data / name).mkdir(parents=True)
    root, upper, work, place = (str(data / name) for name in ("root", "upper", "work", "place"))
    system = System(root, (), (0, 0), (0, 0), (), upper, work, place)
    detach = confine.detach

    def build() -> list[str]:
        confine.unshare("mnt")
        confine.mount(None, "/", None, confine.MS_REC | confine.MS_SLAVE)
        for name in ("own", "one", "two"):
            confine.mount(name, str(data / "workspace" / name), "tmpfs", confine.MS_NODEV)
        mount_system(system, str(data / "workspace/own"), (1, 1))
        return [name for name in ("own", "one", "two") if os.path.ismount(data / "workspace" / name)]

    def late(target: str) -> None:
        detach(target)
        detach(target)

    monkeypatch.setattr(confine, "detach", late)
    assert in_child(build) == ["own"]

    def refused(target: str) -> None:
        raise confine.ConfineError(f"unmount `{target}`", "not permitted")

    monkeypatch.setattr(confine, "detach", refused)
    with pytest.raises(ChildFailedError, match="not permitted"):
        in_child(build)
