"""Every model that the SDK gives or takes, each imported when it is first needed.

pydantic and the models of the contract take longer to import than everything else of the SDK, and most programs
need few of them.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coldframe.client.answers import (
        CellOutcome,
        CommandAnswer,
        Edited,
        FileContent,
        Found,
        Listing,
        LiveRules,
        MadeDirectory,
        MovedPath,
        PathEntry,
        PathListing,
        Written,
    )
    from coldframe.contract.artifact import Artifact, ArtifactPage
    from coldframe.contract.build import Build, BuildComparison, BuildLog, BuildSpec, BuildSummary
    from coldframe.contract.caller import TokenInfo
    from coldframe.contract.cell import (
        Attachment,
        CellBegun,
        CellEnded,
        CellError,
        CellEvent,
        CellResult,
        CellText,
        ContextInfo,
        OnceAnswer,
        OnceRecord,
    )
    from coldframe.contract.code import CodeInfo
    from coldframe.contract.command import CommandEvent, CommandInfo, Contact, Ended, InputState, OutputChunk, Started
    from coldframe.contract.credential import CredentialInfo, CredentialUse, HandleInfo
    from coldframe.contract.description import Description, Statement
    from coldframe.contract.diagnosis import Diagnosis
    from coldframe.contract.files import ProcessInfo, Runtime, ShellInfo
    from coldframe.contract.git import (
        GitDiffView,
        GitDone,
        GitLogView,
        GitRefsView,
        GitRepositoriesView,
        GitShowView,
        GitStatusView,
    )
    from coldframe.contract.inputs import InputsPage
    from coldframe.contract.isolation import IsolationReport
    from coldframe.contract.ledger import LedgerEntry, LedgerVerdict
    from coldframe.contract.lineage import LineageItem, LineagePage, LineageTrace
    from coldframe.contract.network import LoggedContact, NetworkContact, NetworkLog, ReachedBy
    from coldframe.contract.outputs import DeclaredOutputs
    from coldframe.contract.overview import WorkspaceOverview
    from coldframe.contract.packages import PackageView
    from coldframe.contract.paths import WatchEvent, WatchEvents
    from coldframe.contract.persistence import ItemNow, Whereabouts
    from coldframe.contract.pipeline import PipelineInfo, PipelineSpec, PipelineStep
    from coldframe.contract.policy import Label, PolicyChange
    from coldframe.contract.profile import ProfileInfo, Recommendation, Requirements, recommend_profile
    from coldframe.contract.promotion import Promotion
    from coldframe.contract.receipt_difference import FileHunks, ReceiptDifference
    from coldframe.contract.replay import Replay
    from coldframe.contract.result import SandboxResult
    from coldframe.contract.sandbox import (
        AgentInfo,
        EndMany,
        Limits,
        Loss,
        ManyEnds,
        SandboxEnd,
        SandboxInfo,
        SandboxSpec,
        SessionInfo,
    )
    from coldframe.contract.snapshot import Comparison, SandboxReset, SnapshotInfo, SnapshotPlan, TextChange
    from coldframe.contract.summary import WorkspaceSummary
    from coldframe.contract.template import (
        BuildInfo,
        BuildLogEntry,
        BuildLogPage,
        MissingInputs,
        Recipe,
        TemplateDetails,
        TemplateRecord,
        TemplateTag,
    )
    from coldframe.contract.tool import AllowedOperation, OutputWindow, ToolInfo, ToolResult
    from coldframe.contract.volume import VolumeInfo, VolumeListing
    from coldframe.contract.webhook import MadeWebhook, WebhookInfo

_HOMES = {
    "client.answers": (
        "CellOutcome",
        "CommandAnswer",
        "Edited",
        "FileContent",
        "Found",
        "Listing",
        "LiveRules",
        "MadeDirectory",
        "MovedPath",
        "PathEntry",
        "PathListing",
        "Written",
    ),
    "contract.artifact": ("Artifact", "ArtifactPage"),
    "contract.build": ("Build", "BuildComparison", "BuildLog", "BuildSpec", "BuildSummary"),
    "contract.caller": ("TokenInfo",),
    "contract.cell": (
        "Attachment",
        "CellBegun",
        "CellEnded",
        "CellError",
        "CellEvent",
        "CellResult",
        "CellText",
        "ContextInfo",
        "OnceAnswer",
        "OnceRecord",
    ),
    "contract.code": ("CodeInfo",),
    "contract.command": ("CommandEvent", "CommandInfo", "Contact", "Ended", "InputState", "OutputChunk", "Started"),
    "contract.credential": ("CredentialInfo", "CredentialUse", "HandleInfo"),
    "contract.files": ("ProcessInfo", "Runtime", "ShellInfo"),
    "contract.git": (
        "GitDiffView",
        "GitDone",
        "GitLogView",
        "GitRefsView",
        "GitRepositoriesView",
        "GitShowView",
        "GitStatusView",
    ),
    "contract.inputs": ("InputsPage",),
    "contract.isolation": ("IsolationReport",),
    "contract.ledger": ("LedgerEntry", "LedgerVerdict"),
    "contract.lineage": ("LineageItem", "LineagePage", "LineageTrace"),
    "contract.network": ("LoggedContact", "NetworkContact", "NetworkLog", "ReachedBy"),
    "contract.pipeline": ("PipelineInfo", "PipelineSpec", "PipelineStep"),
    "contract.outputs": ("DeclaredOutputs",),
    "contract.overview": ("WorkspaceOverview",),
    "contract.packages": ("PackageView",),
    "contract.paths": ("WatchEvent", "WatchEvents"),
    "contract.persistence": ("ItemNow", "Whereabouts"),
    "contract.policy": ("Label", "PolicyChange"),
    "contract.edge": ("EdgeInfo",),
    "contract.pool": ("PoolStatus",),
    "contract.preview": ("PreviewCreated", "PreviewInfo", "PreviewLink", "PreviewRebuilt"),
    "contract.description": ("Description", "Statement"),
    "contract.diagnosis": ("Diagnosis",),
    "contract.profile": ("ProfileInfo", "Recommendation", "Requirements", "recommend_profile"),
    "contract.promotion": ("Promotion",),
    "contract.summary": ("WorkspaceSummary",),
    "contract.receipt_difference": ("FileHunks", "ReceiptDifference"),
    "contract.replay": ("Replay",),
    "contract.result": ("SandboxResult",),
    "contract.sandbox": (
        "AgentInfo",
        "EndMany",
        "Limits",
        "Loss",
        "ManyEnds",
        "SandboxEnd",
        "SandboxInfo",
        "SandboxSpec",
        "SessionInfo",
    ),
    "contract.snapshot": ("Comparison", "SandboxReset", "SnapshotInfo", "SnapshotPlan", "TextChange"),
    "contract.template": (
        "BuildInfo",
        "BuildLogEntry",
        "BuildLogPage",
        "MissingInputs",
        "Recipe",
        "TemplateDetails",
        "TemplateRecord",
        "TemplateTag",
        "TemplateTag",
    ),
    "contract.tool": ("AllowedOperation", "OutputWindow", "ToolInfo", "ToolResult"),
    "contract.volume": ("VolumeInfo", "VolumeListing"),
    "contract.webhook": ("MadeWebhook", "WebhookInfo"),
}
__all__ = [
    "AgentInfo",
    "AllowedOperation",
    "Artifact",
    "ArtifactPage",
    "Attachment",
    "Build",
    "BuildComparison",
    "BuildInfo",
    "BuildLog",
    "BuildLogEntry",
    "BuildLogPage",
    "BuildSpec",
    "BuildSummary",
    "CellBegun",
    "CellEnded",
    "CellError",
    "CellEvent",
    "CellOutcome",
    "CellResult",
    "CellText",
    "CodeInfo",
    "CommandAnswer",
    "CommandEvent",
    "CommandInfo",
    "Comparison",
    "Contact",
    "ContextInfo",
    "CredentialInfo",
    "CredentialUse",
    "DeclaredOutputs",
    "Description",
    "Diagnosis",
    "Edited",
    "EndMany",
    "Ended",
    "FileContent",
    "FileHunks",
    "Found",
    "GitDiffView",
    "GitDone",
    "GitLogView",
    "GitRefsView",
    "GitRepositoriesView",
    "GitShowView",
    "GitStatusView",
    "HandleInfo",
    "InputState",
    "InputsPage",
    "IsolationReport",
    "ItemNow",
    "Label",
    "LedgerEntry",
    "LedgerVerdict",
    "Limits",
    "LineageItem",
    "LineagePage",
    "LineageTrace",
    "Listing",
    "LiveRules",
    "LoggedContact",
    "Loss",
    "MadeDirectory",
    "MadeWebhook",
    "ManyEnds",
    "MissingInputs",
    "MovedPath",
    "NetworkContact",
    "NetworkLog",
    "OnceAnswer",
    "OnceRecord",
    "OutputChunk",
    "OutputWindow",
    "PackageView",
    "PathEntry",
    "PathListing",
    "PipelineInfo",
    "PipelineSpec",
    "PipelineStep",
    "PolicyChange",
    "ProcessInfo",
    "ProfileInfo",
    "Promotion",
    "ReachedBy",
    "ReceiptDifference",
    "Recipe",
    "Recommendation",
    "Replay",
    "Requirements",
    "Runtime",
    "SandboxEnd",
    "SandboxInfo",
    "SandboxReset",
    "SandboxResult",
    "SandboxSpec",
    "SessionInfo",
    "ShellInfo",
    "SnapshotInfo",
    "SnapshotPlan",
    "Started",
    "Statement",
    "TemplateDetails",
    "TemplateRecord",
    "TemplateTag",
    "TextChange",
    "TokenInfo",
    "ToolInfo",
    "ToolResult",
    "VolumeInfo",
    "VolumeListing",
    "WatchEvent",
    "WatchEvents",
    "WebhookInfo",
    "Whereabouts",
    "WorkspaceOverview",
    "WorkspaceSummary",
    "Written",
    "recommend_profile",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            found = getattr(importlib.import_module(f"coldframe.{home}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
