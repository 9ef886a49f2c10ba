"""What the command line says to a person: what can be done next is typed as it stands there, and no word is Python's own."""

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from coldframe.cli import connection, sandboxes, snapshots
from coldframe.cli.output import show_error
from coldframe.cli.pipelines import _why
from coldframe.cli.templates import _facts
from coldframe.contract.errors import InvalidArgument, UnsavedWork
from coldframe.contract.packages import PackageChange, PackageView
from coldframe.contract.pipeline import StepInfo
from coldframe.contract.policy import Label


def test_what_is_offered_after_an_error_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    show_error(UnsavedWork("two files", sandbox_id="sbx_1", files=["a", "b"]))
    assert "next: coldframe sandbox terminate sbx_1 --snapshot: takes" in capsys.readouterr().err


def test_a_wrong_spec_is_told_in_words_of_its_own() -> None:
    with pytest.raises(InvalidArgument, match="a volume stands below") as caught:
        sandboxes.make_spec(volumes=[{"name": "corpus", "at": "/etc"}])
    assert "Value error" not in caught.value.message and "sandbox create --help" in caught.value.advice


def test_a_step_that_could_not_start_says_why() -> None:
    step = StepInfo(
        name="train", attempt=1, state="failed", code="INVALID_ARGUMENT", message="`timeout_s` is over the limit"
    )
    assert _why(step) == "INVALID_ARGUMENT: `timeout_s` is over the limit"
    assert _why(StepInfo(name="train", attempt=1, state="succeeded")) == ""


def _connected(monkeypatch: pytest.MonkeyPatch, sandbox: object) -> None:
    @contextlib.contextmanager
    def connect() -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(sandboxes=SimpleNamespace(get=lambda _: sandbox))

    monkeypatch.setattr(connection, "connect", connect)


def test_what_has_drifted_is_the_answer_and_no_remark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change = PackageChange(manager="apt", name="gcc", before=None, after="12.2")
    view = PackageView(packages=(), since_template=(change,), complete=True, label=Label.PUBLIC)
    _connected(monkeypatch, SimpleNamespace(packages=lambda **_: view))
    sandboxes.packages("sbx", drift=True)
    told = capsys.readouterr()
    assert "gcc" in told.out and "12.2" in told.out and told.err == ""


@pytest.mark.parametrize(("files", "told"), [(None, "taken\n"), (3, "taken, 3 files, 9 bytes\n")])
def test_a_snapshot_whose_size_is_not_known_yet_leaves_no_gap(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], files: int | None, told: str
) -> None:
    taken = SimpleNamespace(snapshot_id="a1", files=files, bytes=None if files is None else 9, was_live=False)
    taken.created_at = datetime.now(UTC)
    _connected(monkeypatch, SimpleNamespace(take_snapshot=lambda *_, **__: taken))
    snapshots.take("sbx", name="")
    assert capsys.readouterr().out.startswith(f"a1: {told}")


def test_facts_of_a_template_are_rows_however_deep_they_lie() -> None:
    known = {"name": "app", "tags": ["a", "b"], "base": None, "settings": {"env": {"MODE": "x"}, "start": None}}
    marks = {"known_good": [{"by": "ada", "check_ms": 3}, {"by": "bob"}], "withdrawn": {}}
    assert _facts("", {**known, **marks}) == [
        *(("name", "app"), ("tags", "a, b"), ("settings env MODE", "x")),
        *(("known good 1 by", "ada"), ("known good 1 check ms", 3), ("known good 2 by", "bob")),
    ]
