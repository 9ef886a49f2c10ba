"""Pipelines: named steps of a sandbox, started, looked at, run again, cancelled."""

from typing import Annotated

from pydantic import Field
from starlette.requests import Request

from coldframe.contract.model import Model
from coldframe.contract.pipeline import PipelineInfo, PipelineSpec, RerunRequest
from coldframe.control.pipelines import Pipelines
from coldframe.fronts.rest.commands import MOST_WAIT_S
from coldframe.fronts.rest.json_routes import JsonRoute
from coldframe.fronts.rest.request import caller_of, control_of


class Looked(Model):
    wait_s: Annotated[float, Field(ge=0, le=MOST_WAIT_S)] = 0
    """Wait so long for its end."""


async def start_pipeline(request: Request, spec: PipelineSpec) -> PipelineInfo:
    """Run steps one after the other; answers at once. Each step is a command of its own, through the gate."""
    key = request.headers.get("idempotency-key")
    return _pipelines(request).start(caller_of(request), _sandbox(request), spec, idempotency_key=key)


async def list_pipelines(request: Request) -> list[PipelineInfo]:
    """The newest hundred pipelines of the sandbox, oldest first."""
    return await _pipelines(request).list(caller_of(request), _sandbox(request))


async def get_pipeline(request: Request, looked: Looked) -> PipelineInfo:
    """How it and each of its steps stands; with `wait_s`, as soon as it is over, or after that time as it is then."""
    return await _pipelines(request).get(caller_of(request), *_one(request), wait_s=looked.wait_s)


async def rerun_pipeline(request: Request, rerun: RerunRequest) -> PipelineInfo:
    """Run again what did not succeed, or the steps that are named. What succeeded is left as it is."""
    return await _pipelines(request).rerun(caller_of(request), *_one(request), rerun)


async def cancel_pipeline(request: Request) -> PipelineInfo:
    """Start no further step, and end the one that runs."""
    return await _pipelines(request).cancel(caller_of(request), *_one(request))


def _pipelines(request: Request) -> Pipelines:
    return control_of(request).pipelines


def _sandbox(request: Request) -> str:
    return str(request.path_params["sandbox_id"])


def _one(request: Request) -> tuple[str, str]:
    return _sandbox(request), request.path_params["pipeline_id"]


_LIST = "/v1/sandboxes/{sandbox_id}/pipelines"
_ONE = _LIST + "/{pipeline_id}"
_KEY = (("Idempotency-Key", "The same key is the same pipeline."),)
ROUTES = (
    JsonRoute("POST", _LIST, start_pipeline, PipelineInfo, body=PipelineSpec, headers=_KEY),
    JsonRoute("GET", _LIST, list_pipelines, list[PipelineInfo]),
    JsonRoute("GET", _ONE, get_pipeline, PipelineInfo, query=Looked),
    JsonRoute("POST", _ONE + "/rerun", rerun_pipeline, PipelineInfo, body=RerunRequest),
    JsonRoute("POST", _ONE + "/cancel", cancel_pipeline, PipelineInfo),
)
