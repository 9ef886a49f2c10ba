"""Of what kind something is, by where it is from and how it is called."""

import pytest

from coldframe.contract.artifact import ArtifactKind, ArtifactOrigin
from coldframe.control.artifact_kinds import Facts, judge


@pytest.mark.req("T4.15")
@pytest.mark.parametrize(
    ("path", "origin", "command", "kind"),
    [
        ("app.py", "written", "", "source"),
        ("data/list.csv", "written", "", "source"),
        ("data/list.csv", "uploaded", "", "input"),
        ("main.go", "uploaded", "", "source"),
        ("inputs/main.go", "uploaded", "", "input"),
        ("repo/src/lib.rs", "downloaded", "git clone https://example.org/repo", "source"),
        ("repo/logo.png", "downloaded", "git clone https://example.org/repo", "input"),
        ("site/src/App.tsx", "downloaded", "npm create vite site", "source"),
        ("model.py", "downloaded", "curl -O https://example.org/model.py", "input"),
        ("archive.tar.gz", "downloaded", "wget https://example.org/archive.tar.gz", "input"),
        ("dist/app.whl", "downloaded", "pip install build && python -m build", "output"),
        (".venv/lib/python3.11/site-packages/a.py", "downloaded", "pip install a", "input"),
        ("app.py", "made", "cat > app.py <<'END'", "source"),
        ("schema.ts", "made", "python generate.py", "output"),
        ("a.out", "made", "gcc main.c", "output"),
        ("src/__pycache__/a.cpython-311.pyc", "made", "python src/a.py", "output"),
        ("htmlcov/index.html", "made", "pytest --cov", "test"),
        ("reports/junit-1.xml", "made", "pytest", "test"),
        (".coverage", "made", "coverage run a.py", "test"),
        ("npm-debug.log", "made", "npm test", "log"),
        ("log/2026.txt", "made", "./serve", "log"),
        ("out/Screen Shot 1.png", "made", "shoot", "screenshot"),
        ("figures/plot.png", "made", "python plot.py", "output"),
    ],
)
def test_by_origin_and_path(path: str, origin: ArtifactOrigin, command: str, kind: ArtifactKind) -> None:
    assert judge(Facts(path, origin, command)).kind == kind


@pytest.mark.req("T4.15")
def test_source_that_a_command_changes_stays_source_and_what_was_declared_is_an_output() -> None:
    assert judge(Facts("app.py", "made", "black .", was_source=True)).kind == "source"
    assert judge(Facts("app.py", "made", "black .")).kind == "output"
    assert judge(Facts("summary.md", "made", "python a.py", declared="file")).kind == "output"
    assert judge(Facts("checks.xml", "made", "pytest", declared="test_report")).kind == "test"
    assert judge(Facts("app.py", "written", said_source="https://example.org/app.py")).kind == "input"
