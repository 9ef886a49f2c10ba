"""Artifacts of sandboxes: what work has left, by kind, with origin and digest."""

from typing import Annotated

from pydantic import Field
from starlette.requests import Request

from coldframe.contract.artifact import Artifact, ArtifactCorrection, ArtifactKind, ArtifactPage
from coldframe.contract.model import Model
from coldframe.control.artifacts import MOST_LISTED
from coldframe.fronts.rest.json_routes import JsonRoute
from coldframe.fronts.rest.request import caller_of, control_of


class WhichArtifacts(Model):
    kind: tuple[ArtifactKind, ...] = ()
    """Of these kinds; given several times for several of them, and all without."""
    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=MOST_LISTED)] = MOST_LISTED


async def list_artifacts(request: Request, which: WhichArtifacts) -> ArtifactPage:
    """What the work in a sandbox has left, also when it has ended: files of its workspace, and what commands have printed."""
    return await control_of(request).artifacts.list(
        caller_of(request), _sandbox(request), kinds=which.kind, after=which.after, limit=which.limit
    )


async def correct_artifact(request: Request, asked: ArtifactCorrection) -> Artifact:
    """Say of what kind something is, where the rules are wrong. It is recorded, and holds for the name in that workspace."""
    return await control_of(request).artifacts.correct(caller_of(request), _sandbox(request), asked)


def _sandbox(request: Request) -> str:
    return str(request.path_params["sandbox_id"])


_ALL = "/v1/sandboxes/{sandbox_id}/artifacts"
ROUTES = (
    JsonRoute("GET", _ALL, list_artifacts, ArtifactPage, query=WhichArtifacts),
    JsonRoute("POST", _ALL + "/kind", correct_artifact, Artifact, body=ArtifactCorrection),
)
