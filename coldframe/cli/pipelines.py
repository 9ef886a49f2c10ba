"""`coldframe pipeline`: named steps that run one after the other, and again where they did not succeed."""

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from coldframe.cli.output import EXIT_NOT_NOW, Chosen, note, show, show_json, show_table

if TYPE_CHECKING:
    from coldframe.client.sync import Pipeline
    from coldframe.contract.pipeline import PipelineInfo, PipelineSpec, StepInfo

app = typer.Typer(help="Named steps, run one after the other.", no_args_is_help=True)
SandboxId = Annotated[str, typer.Argument(metavar="SANDBOX", help="Id of the sandbox; it may have ended.")]
PipelineId = Annotated[str, typer.Argument(metavar="PIPELINE", help="Id of the pipeline.")]
EXIT_FAILED = 1
"""Of `wait`, as of a program that fails."""


@app.command()
def start(
    sandbox: SandboxId,
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="YAML or JSON with `steps`, each a `name` and a `command`; `-` for input."),
    ],
    *,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for its end, and end with 1 unless all succeeded.")
    ] = False,
) -> int:
    """Start a pipeline, and print its id."""
    from coldframe.cli.connection import connect

    spec = _read_spec(file)
    with connect() as client:
        pipeline = client.sandboxes.get(sandbox).start_pipeline(spec.steps, name=spec.name, on_failure=spec.on_failure)
        if not wait:
            show(pipeline.info(), pipeline.id)
            return 0
        note(f"{pipeline.id} runs")
        return _followed(pipeline)


@app.command("list")
def list_(sandbox: SandboxId) -> None:
    """List the newest hundred pipelines of a sandbox, those that are over too."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.sandboxes.get(sandbox).pipelines()
    rows = [(one.pipeline_id, one.state, _counted(one), one.started_at, one.spec.name) for one in found]
    show_table(found, ("pipeline", "state", "succeeded", "started", "name"), rows, empty="no pipelines")


@app.command("show")
def show_(sandbox: SandboxId, pipeline: PipelineId) -> None:
    """Show how a pipeline and each of its steps stands."""
    from coldframe.cli.connection import connect

    with connect() as client:
        info = client.sandboxes.get(sandbox).pipeline(pipeline).info()
    _show(info)


@app.command()
def wait(
    sandbox: SandboxId,
    pipeline: PipelineId,
    *,
    timeout_s: Annotated[float | None, typer.Option(help="Longest time to wait, in seconds.")] = None,
) -> int:
    """Wait for its end; ends with 0 if all succeeded, 1 if not, 6 if it runs on after the time."""
    from coldframe.cli.connection import connect

    with connect() as client:
        return _followed(client.sandboxes.get(sandbox).pipeline(pipeline), timeout_s)


@app.command()
def rerun(
    sandbox: SandboxId,
    pipeline: PipelineId,
    steps: Annotated[
        list[str] | None, typer.Argument(metavar="[STEP]...", help="These; by default all that did not succeed.")
    ] = None,
    *,
    changed: Annotated[
        str, typer.Option(help="Where inputs of steps that succeeded are others now: refuse, rerun or keep.")
    ] = "refuse",
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for its end, and end with 1 unless all succeeded.")
    ] = False,
) -> int:
    """Run again what did not succeed."""
    from coldframe.cli.connection import connect
    from coldframe.contract.errors import InvalidArgument

    choices: dict[str, Literal["refuse", "rerun", "keep"]] = {"refuse": "refuse", "rerun": "rerun", "keep": "keep"}
    if changed not in choices:
        raise InvalidArgument("`--changed` is refuse, rerun or keep", argument="changed")
    with connect() as client:
        found = client.sandboxes.get(sandbox).pipeline(pipeline)
        info = found.rerun(*(steps or ()), changed=choices[changed])
        if not wait:
            _show(info)
            return 0
        return _followed(found)


@app.command()
def cancel(sandbox: SandboxId, pipeline: PipelineId) -> None:
    """Start no further step, and end the one that runs."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.sandboxes.get(sandbox).pipeline(pipeline)
        found.cancel()
        info = found.wait()
    _show(info)


def _why(step: "StepInfo") -> str:
    return ": ".join(part for part in (step.code, step.message) if part)


def _followed(pipeline: "Pipeline", timeout_s: float | None = None) -> int:
    info = pipeline.wait(timeout_s)
    _show(info)
    if info.state == "running":
        return EXIT_NOT_NOW
    return 0 if info.state == "succeeded" else EXIT_FAILED


def _show(info: "PipelineInfo") -> None:
    if Chosen.as_json:
        show_json(info)
        return
    rows = [(one.name, one.state, one.attempt or "", one.exit_code, one.command_id, _why(one)) for one in info.steps]
    show_table(info.steps, ("step", "state", "attempt", "exit code", "job", "why"), rows, empty="no steps")
    named = f" {info.spec.name}" if info.spec.name else ""
    show(info, f"{info.pipeline_id}{named}: {info.state}, {_counted(info)} succeeded")
    if info.state == "failed":
        again = f"coldframe pipeline rerun {info.sandbox_id} {info.pipeline_id}"
        show(info, f"next: {again}: runs again what did not succeed")


def _counted(info: "PipelineInfo") -> str:
    return f"{sum(one.state == 'succeeded' for one in info.steps)} of {len(info.steps)}"


def _read_spec(path: str) -> "PipelineSpec":
    """What the file says. Raises InvalidArgument."""
    import yaml
    from pydantic import ValidationError

    from coldframe.contract.errors import InvalidArgument
    from coldframe.contract.pipeline import PipelineSpec

    try:
        if path == "-":
            content = yaml.safe_load(sys.stdin.read())
        else:
            with open(path, encoding="utf-8") as file:
                content = yaml.safe_load(file)
        return PipelineSpec.model_validate(content)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"`{path}` is neither YAML nor JSON: {error}", argument="file") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidArgument(
            f"`{path}` is no pipeline: {where + ': ' if where else ''}{first['msg']}",
            hint="write `steps:`, a list in which each has a `name` and a `command`",
            argument="file",
        ) from None
