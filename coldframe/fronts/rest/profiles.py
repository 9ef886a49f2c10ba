"""Profiles: the table, a promotion, and what somebody who evaluates a sandbox or goes on with its work needs to know."""

from starlette.requests import Request

from coldframe.contract.description import Description
from coldframe.contract.overview import WorkspaceOverview
from coldframe.contract.profile import ProfileInfo, Recommendation, Requirements, list_profiles, recommend_profile
from coldframe.contract.promotion import Promotion, PromotionRequest
from coldframe.contract.summary import WorkspaceSummary
from coldframe.fronts.rest.json_routes import JsonRoute
from coldframe.fronts.rest.request import caller_of, control_of


async def get_profiles(_: Request) -> list[ProfileInfo]:
    """The four profiles, from the smallest to the largest, with what each can do."""
    return list_profiles()


async def recommend(_: Request, requirements: Requirements) -> Recommendation:
    """The smallest profile that is enough for what is known of a piece of work, and why no smaller one is."""
    return recommend_profile(requirements)


async def promote_sandbox(request: Request, asked: PromotionRequest) -> Promotion:
    """Let it go on in a larger profile, under the same id, with its files and its record. There is no way back."""
    control = control_of(request)
    done = await control.promotions.promote(caller_of(request), request.path_params["sandbox_id"], asked)
    return control.timers.shown(done)


async def describe_sandbox(request: Request) -> Description:
    """What the agent can do in it, which state remains, and how reliably people can look at the result or take it back."""
    return await control_of(request).descriptions.describe(caller_of(request), request.path_params["sandbox_id"])


async def summarize_workspace(request: Request) -> WorkspaceSummary:
    """In at most 8 KiB: files, recent changes, commands that run or have failed, open ports, notes, essentials of the contract."""
    return await control_of(request).summaries.summarize(caller_of(request), request.path_params["sandbox_id"])


async def overview_workspace(request: Request) -> WorkspaceOverview:
    """Files, Git, activity, builds, logs, previews and deployment of the workspace that a sandbox is or was on, each entry linked to its
    receipt, with what can be done from there. Nothing is started for it."""
    return await control_of(request).overviews.overview(caller_of(request), request.path_params["sandbox_id"])


_ONE = "/v1/sandboxes/{sandbox_id}"
ROUTES = (
    JsonRoute("GET", "/v1/profiles", get_profiles, list[ProfileInfo]),
    JsonRoute("POST", "/v1/profiles/recommend", recommend, Recommendation, body=Requirements),
    JsonRoute("POST", _ONE + "/promote", promote_sandbox, Promotion, body=PromotionRequest),
    JsonRoute("GET", _ONE + "/description", describe_sandbox, Description),
    JsonRoute("GET", _ONE + "/summary", summarize_workspace, WorkspaceSummary),
    JsonRoute("GET", _ONE + "/overview", overview_workspace, WorkspaceOverview),
)
