"""Every error an outsider can meet.

    ColdframeError
    ├── InvalidArgument            INVALID_ARGUMENT     the call itself is wrong
    │   ├── InvalidPattern         INVALID_PATTERN
    │   ├── RecipeInvalid          RECIPE_INVALID       with the field or line of the recipe
    │   └── RulesInvalid           RULES_INVALID        with the line of the rule file
    ├── Unauthenticated            UNAUTHENTICATED
    │   └── PreviewLocked          PREVIEW_LOCKED       it takes a link or a token
    ├── Refused                    family permission: nothing was done, and will not be
    │   ├── GrantMissing           GRANT_MISSING        the role may not
    │   ├── DeniedByRule           DENIED_BY_RULE
    │   ├── NotInProfile           NOT_IN_PROFILE       the tool is switched off here, or no part of the profile
    │   │   └── InstallNotInProfile INSTALL_NOT_IN_PROFILE packages cannot be installed there
    │   ├── PendingApproval        PENDING_APPROVAL     a person must decide first
    │   ├── CredentialBudget       CREDENTIAL_BUDGET    it was used as often as it may be
    │   ├── CredentialExpired      CREDENTIAL_EXPIRED
    │   ├── CredentialRevoked      CREDENTIAL_REVOKED
    │   ├── PreviewLabelled        PREVIEW_LABEL        what it shows is labelled higher than it may show
    │   ├── OutsideWorkspace       OUTSIDE_WORKSPACE
    │   ├── PermissionDenied       PERMISSION_DENIED    file mode or owner
    │   └── ReadOnly               READ_ONLY
    ├── Missing                    family input
    │   ├── NotFound               NOT_FOUND            sandbox, agent, command, token …
    │   ├── ResultExpired          EXPIRED              it was kept for its time
    │   ├── PreviewGone            PREVIEW_GONE         it was revoked, or its time is over
    │   ├── InputMissing           INPUT_MISSING        what it was made from is not there any more
    │   ├── CredentialMissing      CREDENTIAL_MISSING   a credential that it needs is not to be had
    │   ├── UnknownTool            UNKNOWN_TOOL
    │   └── FileMissing            FILE_NOT_FOUND
    ├── Unfit                      family conflict or input: the thing is there but not fit for this
    │   ├── Conflict               CONFLICT             it changed, or the name is taken
    │   ├── WrongState             WRONG_STATE
    │   │   ├── PauseKindUnsupported PAUSE_KIND_UNSUPPORTED  this machine cannot hold processes still
    │   │   ├── SessionExpired     SESSION_EXPIRED      what cells have defined is gone with its sandbox
    │   │   ├── SandboxExpired     SANDBOX_EXPIRED      it is older than it may get
    │   │   └── VolumeBusy         VOLUME_BUSY          another sandbox has the volume
    │   ├── UnsavedWork            UNSAVED_WORK         it would lose work that is in no commit
    │   ├── IsDirectory            IS_A_DIRECTORY
    │   ├── NotDirectory           NOT_A_DIRECTORY
    │   ├── NotRegular             NOT_A_REGULAR_FILE
    │   ├── EditNotFound           EDIT_NOT_FOUND
    │   ├── EditNotUnique          EDIT_NOT_UNIQUE
    │   ├── DemotionRefused        DEMOTION_REFUSED     no way back to a smaller profile
    │   ├── ContractChanged        CONTRACT_CHANGED     what was agreed to is not what would be made
    │   ├── ContractDrift          CONTRACT_DRIFT       what was made is not what was agreed to
    │   ├── NotReplayable          NOT_REPLAYABLE       what a call began from is not to be had
    │   ├── InputChanged           INPUT_CHANGED        what it was made from is not what it was
    │   ├── SnapshotCorrupt        SNAPSHOT_CORRUPT     a snapshot or an archive of one is not what it was
    │   ├── BuildFailed            TEMPLATE_BUILD_FAILED  a step of a recipe ended badly
    │   ├── DependencyMissing      DEPENDENCY_MISSING   that version of a package is not to be had
    │   ├── TemplateChanged        TEMPLATE_CHANGED     a template is not what was built
    │   ├── TemplateWithdrawn      TEMPLATE_WITHDRAWN   somebody took it back
    │   ├── TemplateCheckFailed    TEMPLATE_CHECK_FAILED  the check that was to vouch for it did not pass
    │   ├── CellNotBegun           CELL_NOT_BEGUN       its turn did not come, and it will not run
    │   ├── KernelUnavailable      KERNEL_UNAVAILABLE   what runs code cells cannot be started, or has ended
    │   ├── StartNotReady          START_NOT_READY      what a template starts does not serve
    │   ├── TooLarge               TOO_LARGE
    │   └── PatternTooSlow         PATTERN_TOO_SLOW
    ├── LimitReached               LIMIT_DISK, LIMIT_…  with kind, limit, used
    │   └── TooManySandboxes       LIMIT_SANDBOXES      as many run as the operator lets
    └── Unavailable                family infrastructure or isolation
        ├── IsolationUnavailable   ISOLATION_UNAVAILABLE
        ├── PolicyUnavailable      POLICY_UNAVAILABLE   the gate cannot judge, so it refuses
        ├── LedgerUnavailable      LEDGER_UNAVAILABLE   the gate cannot record, so it refuses
        ├── CredentialUnreadable   CREDENTIAL_UNREADABLE the key that secrets are kept under is missing or wrong
        ├── HostUnreachable        HOST_UNREACHABLE     outcome not known yet; ask again
        ├── GuestLost              GUEST_LOST           the keeper of the sandbox ended
        ├── PreviewUnavailable     PREVIEW_UNAVAILABLE  what a preview shows does not serve
        │   ├── PreviewNotListening PREVIEW_NOT_LISTENING nothing listens on the port
        │   ├── PreviewUnhealthy PREVIEW_UNHEALTHY it listens, and gives no answer
        │   ├── PreviewStarting    PREVIEW_STARTING     it is not ready yet
        │   ├── PreviewProcessExited      PREVIEW_PROCESS_EXITED       its process ended
        │   ├── PreviewOutOfMemory PREVIEW_OUT_OF_MEMORY its process was ended for memory
        │   ├── PreviewPortMoved   PREVIEW_PORT_MOVED   its process listens on another port
        │   ├── PreviewStopped     PREVIEW_STOPPED      somebody stopped it
        │   ├── PreviewAsleep      PREVIEW_ASLEEP       the sandbox is paused or stopped
        │   └── PreviewEnded       PREVIEW_ENDED        the sandbox has ended
        └── Internal               INTERNAL             a fault of ours

A class has a stable ``code``, an HTTP ``status``, ``retry`` and JSON-ready ``facts``. Nobody
matches on the text. From the wire an error is rebuilt from a closed table: the far side chooses
a code, never a class to import.
"""

from typing import Any, ClassVar

from coldframe.contract.credential_errors import CredentialBudget as CredentialBudget
from coldframe.contract.credential_errors import CredentialExpired as CredentialExpired
from coldframe.contract.credential_errors import CredentialMissing as CredentialMissing
from coldframe.contract.credential_errors import CredentialRevoked as CredentialRevoked
from coldframe.contract.credential_errors import CredentialUnreadable as CredentialUnreadable
from coldframe.contract.error_families import RETRIES as RETRIES
from coldframe.contract.error_families import ColdframeError as ColdframeError
from coldframe.contract.error_families import Fact as Fact
from coldframe.contract.error_families import Family as Family
from coldframe.contract.error_families import InvalidArgument as InvalidArgument
from coldframe.contract.error_families import LimitReached as LimitReached
from coldframe.contract.error_families import Missing as Missing
from coldframe.contract.error_families import NextAction as NextAction
from coldframe.contract.error_families import Refused as Refused
from coldframe.contract.error_families import Retry as Retry
from coldframe.contract.error_families import Unauthenticated as Unauthenticated
from coldframe.contract.error_families import Unavailable as Unavailable
from coldframe.contract.error_families import Unfit as Unfit
from coldframe.contract.error_families import next_action as next_action
from coldframe.contract.git_errors import GitConflict as GitConflict
from coldframe.contract.git_errors import GitFailed as GitFailed
from coldframe.contract.git_errors import GitNoRepository as GitNoRepository
from coldframe.contract.git_errors import GitUnknownRevision as GitUnknownRevision
from coldframe.contract.git_errors import GitUnreadable as GitUnreadable
from coldframe.contract.preview_errors import PreviewAsleep as PreviewAsleep
from coldframe.contract.preview_errors import PreviewEnded as PreviewEnded
from coldframe.contract.preview_errors import PreviewGone as PreviewGone
from coldframe.contract.preview_errors import PreviewLabelled as PreviewLabelled
from coldframe.contract.preview_errors import PreviewLocked as PreviewLocked
from coldframe.contract.preview_errors import PreviewNotListening as PreviewNotListening
from coldframe.contract.preview_errors import PreviewOutOfMemory as PreviewOutOfMemory
from coldframe.contract.preview_errors import PreviewPortMoved as PreviewPortMoved
from coldframe.contract.preview_errors import PreviewProcessExited as PreviewProcessExited
from coldframe.contract.preview_errors import PreviewStarting as PreviewStarting
from coldframe.contract.preview_errors import PreviewStopped as PreviewStopped
from coldframe.contract.preview_errors import PreviewUnavailable as PreviewUnavailable
from coldframe.contract.preview_errors import PreviewUnhealthy as PreviewUnhealthy
from coldframe.contract.template_errors import BuildFailed as BuildFailed
from coldframe.contract.template_errors import DependencyMissing as DependencyMissing
from coldframe.contract.template_errors import RecipeInvalid as RecipeInvalid
from coldframe.contract.template_errors import StartNotReady as StartNotReady
from coldframe.contract.template_errors import TemplateChanged as TemplateChanged
from coldframe.contract.template_errors import TemplateCheckFailed as TemplateCheckFailed
from coldframe.contract.template_errors import TemplateWithdrawn as TemplateWithdrawn


class InvalidPattern(InvalidArgument):
    """A search pattern is no regular expression."""

    code = "INVALID_PATTERN"
    status = 400
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "input"
    hint = "correct the pattern, or search for it literally with `regex: false`"
    offer = ("search_files", "looks for the text as it is", {"regex": False})


class RulesInvalid(InvalidArgument):
    """A rule file does not validate; the old set stays in force."""

    code = "RULES_INVALID"
    status = 422
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "input"
    hint = "correct the rule file at the line given; the rules in force are unchanged"
    offer = ("policy.show", "shows the rules in force", {})


class GrantMissing(Refused):
    """The role of the token does not include this operation."""

    code = "GRANT_MISSING"
    status = 403
    retry: ClassVar[Retry] = "never"
    family: ClassVar[Family] = "permission"
    hint = "use a token whose role has this right"


class DeniedByRule(Refused):
    """A rule, a list or the floor refused the call before any effect."""

    code = "DENIED_BY_RULE"
    status = 403
    retry: ClassVar[Retry] = "never"
    family: ClassVar[Family] = "permission"
    hint = "do it another way; `coldframe policy show` lists the rules"


class NotInProfile(Refused):
    """The operation is not offered to this agent, role or profile."""

    code = "NOT_IN_PROFILE"
    status = 403
    retry: ClassVar[Retry] = "never"
    family: ClassVar[Family] = "permission"
    hint = "choose a tool from `GET /v1/sandboxes/{id}/allowed`"


class InstallNotInProfile(NotInProfile):
    """Packages would be installed where there are only those of the managed environment."""

    code = "INSTALL_NOT_IN_PROFILE"
    status = 403
    retry: ClassVar[Retry] = "never"
    family: ClassVar[Family] = "permission"
    hint = "use a package of the environment, or promote the sandbox to a profile that can install"
    offer = ("sandbox.promote", "goes on as `workspace` under the same id, with the same files", {"to": "workspace"})


class PendingApproval(Refused):
    """A rule says that a person must decide first. Nothing was done."""

    code = "PENDING_APPROVAL"
    status = 409
    retry: ClassVar[Retry] = "after_approval"
    family: ClassVar[Family] = "permission"
    hint = "a person has to decide; this version records the request but cannot grant it yet"
    offer = ("policy.show", "shows the rule that asks for a person", {})


class OutsideWorkspace(Refused):
    """The path, or a link in it, leaves the workspace."""

    code = "OUTSIDE_WORKSPACE"
    status = 403
    retry: ClassVar[Retry] = "never"
    family: ClassVar[Family] = "permission"
    hint = "give a path relative to the workspace"
    offer = ("list_directory", "shows what is in the workspace", {"path": ""})


class PermissionDenied(Refused):
    """The sandbox user may not do this to the file."""

    code = "PERMISSION_DENIED"
    status = 403
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "permission"
    hint = "change the mode of the file first"
    offer = ("run_command", "gives the owner read and write", {"command": ["chmod", "u+rw", "PATH"]})


class ReadOnly(Refused):
    """The place is read-only by construction."""

    code = "READ_ONLY"
    status = 403
    retry: ClassVar[Retry] = "never"
    family: ClassVar[Family] = "permission"
    hint = "write below the workspace instead"
    offer = ("list_directory", "shows what is in the workspace", {"path": ""})


class NotFound(Missing):
    """No such object, or it is not yours to see."""

    code = "NOT_FOUND"
    status = 404
    retry: ClassVar[Retry] = "never"
    family: ClassVar[Family] = "input"
    hint = "list what exists and correct the id"


class ResultExpired(Missing):
    """What the command left behind was kept for its time, and is gone. Its receipt stays, with the digests."""

    code = "EXPIRED"
    status = 410
    retry: ClassVar[Retry] = "never"
    family: ClassVar[Family] = "state"
    hint = "look at its receipt; run it again for new output"
    offer = ("receipt.get", "has the digests of what there was", {})


class InputMissing(Missing):
    """Something that it was made from is not to be had any more. Nothing was taken in its place."""

    code = "INPUT_MISSING"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "state"
    hint = "put back what is named in `input`, or make it anew from what there is"
    offer = ("preview.show", "shows what it was made from", {})


class UnknownTool(Missing):
    """There is no tool of that name."""

    code = "UNKNOWN_TOOL"
    status = 404
    retry: ClassVar[Retry] = "never"
    family: ClassVar[Family] = "input"
    hint = "`GET /v1/tools` lists the tools"
    offer = ("tools.list", "lists the tools", {})


class FileMissing(Missing):
    """No file or directory at that path."""

    code = "FILE_NOT_FOUND"
    status = 404
    retry: ClassVar[Retry] = "never"
    family: ClassVar[Family] = "input"
    hint = "list the directory to see what is there"
    offer = ("list_directory", "shows what is there", {"path": ""})


class Conflict(Unfit):
    """It was changed by somebody else, or the name is taken."""

    code = "CONFLICT"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "conflict"
    hint = "read it again and repeat the change on what is there now"
    offer = ("read_file", "gives what is there now, and its version", {})


class WrongState(Unfit):
    """The object is in a state in which this is not possible."""

    code = "WRONG_STATE"
    status = 409
    retry: ClassVar[Retry] = "later"
    family: ClassVar[Family] = "state"
    hint = "look at the state and its next actions"


class PauseKindUnsupported(WrongState):
    """This machine cannot pause a sandbox in this way. Nothing has changed."""

    code = "PAUSE_KIND_UNSUPPORTED"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "state"
    hint = "pause with kind `files`, which ends its processes and keeps its files"
    offer = ("sandbox.stop", "ends its processes and keeps its files", {})


class VolumeBusy(WrongState):
    """Another sandbox has the volume, or somebody writes to it. Nothing has changed."""

    code = "VOLUME_BUSY"
    status = 409
    retry: ClassVar[Retry] = "later"
    family: ClassVar[Family] = "conflict"
    hint = "end the sandbox that is told in `holders`; to read beside it, have the volume read-only"
    offer = ("volume.show", "tells who has it", {})


class SessionExpired(WrongState):
    """A cell for a session of code whose sandbox has ended. Variables and files are gone; receipts stay."""

    code = "SESSION_EXPIRED"
    hint = "create another sandbox, attach the files again and run the cells again"
    offer = ("sandbox.create", "makes a sandbox for a new session", {})


class SandboxExpired(WrongState):
    """A sandbox has reached its maximum age, and is started or resumed only after it was extended."""

    code = "SANDBOX_EXPIRED"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "state"
    hint = "extend it first, or create another on the same workspace"
    offer = ("sandbox.extend", "gives it more time", {})


class UnsavedWork(Unfit):
    """The end of a sandbox would lose work in a Git repository that no commit has. Nothing was done."""

    code = "UNSAVED_WORK"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "state"
    hint = "commit it and take the repository along, end it with `snapshot`, or say `discard`"
    offer = ("sandbox.terminate", "takes a snapshot of its files and ends it", {"snapshot": True})


class IsDirectory(Unfit):
    """The path is a directory."""

    code = "IS_A_DIRECTORY"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "input"
    hint = "name a file, or list the directory"
    offer = ("list_directory", "lists it", {})


class NotDirectory(Unfit):
    """A component of the path is not a directory."""

    code = "NOT_A_DIRECTORY"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "input"
    hint = "name a directory"
    offer = ("read_file", "reads the file that it is", {})


class NotRegular(Unfit):
    """The path is a device, pipe, socket or the like."""

    code = "NOT_A_REGULAR_FILE"
    status = 409
    retry: ClassVar[Retry] = "never"
    family: ClassVar[Family] = "input"
    hint = "only regular files can be read and written by tools"
    offer = ("list_directory", "shows what kind of thing it is", {})


class EditNotFound(Unfit):
    """The old text does not occur in the file, which is unchanged."""

    code = "EDIT_NOT_FOUND"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "input"
    hint = "read the file and copy the old text exactly, white space included"
    offer = ("read_file", "gives the text as it is now", {})


class EditNotUnique(Unfit):
    """The old text occurs more than once; the file is unchanged."""

    code = "EDIT_NOT_UNIQUE"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "input"
    hint = "add surrounding lines to the old text until it is unique, or set `replace_all`"
    offer = ("edit_file", "replaces every occurrence", {"replace_all": True})


class TooLarge(Unfit):
    """The content is larger than one answer or request may be."""

    code = "TOO_LARGE"
    status = 413
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "limit"
    hint = "ask for a range, or use the raw file routes"
    offer = ("read_file", "reads a range", {"offset": 0, "length": 1048576})


class DemotionRefused(Unfit):
    """A sandbox does not go back to a smaller profile: that could not hold what it has."""

    code = "DEMOTION_REFUSED"
    status = 409
    retry: ClassVar[Retry] = "never"
    family: ClassVar[Family] = "conflict"
    hint = "create a smaller sandbox, and copy the files that it needs"
    offer = ("sandbox.create", "makes one of the smaller profile", {})


class ContractChanged(Unfit):
    """The contract that was agreed to is not the one that the sandbox would have now. Nothing was made."""

    code = "CONTRACT_CHANGED"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "conflict"
    hint = "look at `changes`; to accept them, create it with the digest that is told"
    offer = ("contract.plan", "shows the contract that it would have now", {})


class ContractDrift(Unfit):
    """The sandbox that was made differs from the contract that was agreed to. It was taken down again."""

    code = "CONTRACT_DRIFT"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "conflict"
    hint = "look at `changes`, plan it again, and agree to that"
    offer = ("contract.plan", "shows the contract that it would have now", {})


class NotReplayable(Unfit):
    """What a call began from is not to be had any more, or was never recorded. Nothing was run."""

    code = "NOT_REPLAYABLE"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "state"
    hint = "take a snapshot before a command that is to be replayed, or have a rule with `snapshot: true` do so"
    offer = ("receipt.get", "shows what it began from", {})


class InputChanged(Unfit):
    """Something that it was made from is not what it was. Nothing is served from it."""

    code = "INPUT_CHANGED"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "state"
    hint = "`input` names it: get the old one back, or make it anew from what there is now"
    offer = ("preview.show", "shows what it was made from", {})


class SnapshotCorrupt(Unfit):
    """A snapshot, or an archive of one, is cut off or was altered. Nothing was started from it, and nothing of it stays."""

    code = "SNAPSHOT_CORRUPT"
    status = 409
    retry: ClassVar[Retry] = "never"
    family: ClassVar[Family] = "state"
    hint = "use another snapshot, or get the archive again from where it was made"


class CellNotBegun(Unfit):
    """A cell whose turn did not come in time, or whose sender has left before. It will not run."""

    code = "CELL_NOT_BEGUN"
    status = 409
    retry: ClassVar[Retry] = "later"
    family: ClassVar[Family] = "state"
    hint = "wait for the cells before it, interrupt the one that runs, or make another context"
    offer = ("context.list", "shows which contexts work, and how many cells wait in each", {})


class KernelUnavailable(Unfit):
    """The kernel of a context of code cells cannot be started, or has ended. Cells that are sent again get a new one."""

    code = "KERNEL_UNAVAILABLE"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "state"
    hint = "look at the message: install what is missing, make a context with another directory, or send the cell again"
    offer = ("command.output", "shows what the kernel wrote", {})


class PatternTooSlow(Unfit):
    """The pattern exceeded its time budget and was stopped."""

    code = "PATTERN_TOO_SLOW"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "limit"
    hint = "simplify the pattern (no nested repetition) or search literally"
    offer = ("search_files", "looks for the text as it is", {"regex": False})


class TooManySandboxes(LimitReached):
    """As many sandboxes run as the operator lets. Nothing was made or started."""

    code = "LIMIT_SANDBOXES"
    status = 409
    retry: ClassVar[Retry] = "later"
    family: ClassVar[Family] = "limit"
    hint = "stop or end one, or wait for a turn: create it with `queue_s`"
    offer = ("sandbox.list", "lists those that run", {"state": ["running", "paused"]})


class DiskFull(LimitReached):
    """No space left in the workspace."""

    code = "LIMIT_DISK"
    status = 507
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "limit"
    hint = "delete files in the workspace, or have an admin raise the disk limit"
    offer = ("run_command", "shows what takes the space", {"command": ["du", "-sk", "."]})


class IsolationUnavailable(Unavailable):
    """A wall that was asked for cannot be raised on this host; nothing was started."""

    code = "ISOLATION_UNAVAILABLE"
    status = 503
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "isolation"
    hint = "`coldframe doctor` names the missing control and its remedy"


class PolicyUnavailable(Unavailable):
    """The gate cannot judge, so it refuses."""

    code = "POLICY_UNAVAILABLE"
    status = 503
    retry: ClassVar[Retry] = "later"
    family: ClassVar[Family] = "infrastructure"
    hint = "have the owner look at the server log"
    offer = ("policy.show", "shows the rules in force", {})


class LedgerUnavailable(Unavailable):
    """The gate cannot record, so it refuses."""

    code = "LEDGER_UNAVAILABLE"
    status = 503
    retry: ClassVar[Retry] = "later"
    family: ClassVar[Family] = "infrastructure"
    hint = "free disk space for the data directory, then try again"
    offer = ("ledger.verify", "tells whether the ledger is whole", {})


class HostUnreachable(Unavailable):
    """The host daemon does not answer; the outcome is not known yet."""

    code = "HOST_UNREACHABLE"
    status = 503
    retry: ClassVar[Retry] = "later"
    family: ClassVar[Family] = "infrastructure"
    hint = "ask again with the same idempotency key"
    offer = ("tool.call", "asks again: with the same idempotency key it is carried out once", {})


class GuestLost(Unavailable):
    """The keeper of the sandbox ended, and its commands with it."""

    code = "GUEST_LOST"
    status = 503
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "infrastructure"
    hint = "create a new sandbox; the files of the workspace are kept"
    offer = ("sandbox.create", "makes a new sandbox on the same workspace", {})


class Internal(Unavailable):
    """A fault of ours."""

    code = "INTERNAL"
    status = 500
    retry: ClassVar[Retry] = "later"
    family: ClassVar[Family] = "infrastructure"
    hint = "report this with the server log around this time"


def _all_classes(root: type[ColdframeError]) -> list[type[ColdframeError]]:
    return [root, *(found for child in root.__subclasses__() for found in _all_classes(child))]


def catalogue() -> dict[str, type[ColdframeError]]:
    """Every code with the most specific class that carries it."""
    return {cls.code: cls for cls in _all_classes(ColdframeError)}


def from_wire(answer: dict[str, Any]) -> ColdframeError:
    """Rebuild an error that another process sent. Unknown codes keep their code in the base class."""
    code = str(answer.get("code", "INTERNAL"))
    cls = catalogue().get(code, ColdframeError)
    facts = answer.get("facts") or {}
    told = answer.get("retry")
    error = cls(str(answer.get("message", code)), hint=answer.get("hint"), retry=told if told in RETRIES else None)
    error.facts = facts if isinstance(facts, dict) else {}
    if isinstance(actions := answer.get("next_actions"), list):  # a box sends none: the code's own stays
        error.next_actions = [NextAction(a) for a in actions if isinstance(a, dict)]
    if error.code != code:
        error.wire_code = code
    return error
