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
        │   ├── PreviewNotAnswering PREVIEW_NOT_ANSWERING it listens, and gives no answer
        │   ├── PreviewStarting    PREVIEW_STARTING     it is not ready yet
        │   ├── PreviewExited      PREVIEW_EXITED       its process ended
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

from typing import Any, ClassVar, Literal, get_args

Fact = str | int | float | bool | None | list[Any] | dict[str, Any]
Retry = Literal["never", "later", "after_approval", "after_change"]
RETRIES: tuple[Retry, ...] = get_args(Retry)
Family = Literal["isolation", "permission", "limit", "budget", "input", "state", "conflict", "infrastructure"]


class NextAction(dict[str, Any]):
    """One thing the caller can do now: ``op`` (a public operation), ``args``, ``effect`` (a sentence)."""


def next_action(op: str, effect: str, **args: Fact) -> NextAction:
    return NextAction(op=op, args=args, effect=effect)


class ColdframeError(Exception):
    """Base of all; also what an unknown code from the wire becomes."""

    code: ClassVar[str] = "INTERNAL"
    status: ClassVar[int] = 500
    retry: ClassVar[Retry] = "never"
    family: ClassVar[Family] = "infrastructure"
    hint: ClassVar[str] = "report this with the server log around this time"
    """What to do next, in words, if the raise site has nothing better."""
    offer: ClassVar[tuple[str, str, dict[str, Fact]]] = ("host.doctor", "tells what is missing on this machine", {})
    """The same as one operation: its name, its effect, its arguments."""

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        next_actions: list[NextAction] | None = None,
        retry: Retry | None = None,
        **facts: Fact,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.facts: dict[str, Fact] = facts
        self.advice = hint or self.hint
        operation, effect, arguments = self.offer
        self.next_actions: list[NextAction] = next_actions or [next_action(operation, effect, **arguments)]
        self.retry_now: Retry = retry or self.retry
        """Where this one time says more than the code does, as of a state that will not pass by itself."""
        self.wire_code: str | None = None
        """Code as received, where this process has no class for it."""

    def to_wire(self) -> dict[str, Any]:
        """The JSON form that every surface gives."""
        return {
            "code": self.wire_code or self.code,
            "message": self.message,
            "family": self.family,
            "retry": self.retry_now,
            "hint": self.advice,
            "facts": self.facts,
            "next_actions": [dict(action) for action in self.next_actions],
        }


class InvalidArgument(ColdframeError):
    """An argument is missing, unknown, of the wrong type or out of range."""

    code = "INVALID_ARGUMENT"
    status = 400
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "input"
    hint = "correct the argument named in the message; `GET /v1/tools` gives the schemas"
    offer = ("tools.list", "shows the arguments of every tool", {})


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


class RecipeInvalid(InvalidArgument):
    """A recipe or Dockerfile cannot be read as one. Nothing was built."""

    code = "RECIPE_INVALID"
    status = 422
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "input"
    hint = "correct the recipe where the message says"
    offer = ("template.list", "lists the templates that there are", {})


class Unauthenticated(ColdframeError):
    """No token, or one that is unknown, expired or revoked."""

    code = "UNAUTHENTICATED"
    status = 401
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "permission"
    hint = "send `Authorization: Bearer TOKEN`; `coldframe token create` makes one"
    offer = ("token.create", "makes a token (owner or admin)", {})


class PreviewLocked(Unauthenticated):
    """The preview is shared with those who have a link or its token."""

    code = "PREVIEW_LOCKED"
    status = 401
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "permission"
    hint = "open it by a link of `coldframe preview open`, or send its token as `Coldframe-Preview-Token`"
    offer = ("preview.open", "gives a link that opens it once", {})


class Refused(ColdframeError):
    """Nothing was done, and the same call will be refused again."""

    code = "REFUSED"
    status = 403
    retry: ClassVar[Retry] = "never"
    family: ClassVar[Family] = "permission"
    hint = "ask the owner of this installation"
    offer = ("sandbox.allowed", "lists what may be done", {})


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


class CredentialBudget(Refused):
    """The credential was used as often as it may be."""

    code = "CREDENTIAL_BUDGET"
    status = 403
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "budget"
    hint = "an owner or admin can add another credential with a budget of its own"
    offer = ("credential.read", "shows what is left of it", {})


class CredentialExpired(Refused):
    """The time for which the credential was given is over."""

    code = "CREDENTIAL_EXPIRED"
    status = 403
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "permission"
    hint = "an owner or admin can add another credential"
    offer = ("credential.read", "shows when it ended", {})


class CredentialRevoked(Refused):
    """Somebody took the credential back."""

    code = "CREDENTIAL_REVOKED"
    status = 403
    retry: ClassVar[Retry] = "never"
    family: ClassVar[Family] = "permission"
    hint = "do it without; an owner or admin took it back"
    offer = ("credential.read", "shows when it was taken back", {})


class PreviewLabelled(Refused):
    """What the preview shows is labelled higher than it was shared for."""

    code = "PREVIEW_LABEL"
    status = 403
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "permission"
    hint = "whoever shares it can raise `up_to` of a preview that is not public, or serve it from another session"
    offer = ("preview.show", "shows how high it is labelled now", {})


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


class Missing(ColdframeError):
    """Something that the call names is not there."""

    code = "NOT_FOUND"
    status = 404
    retry: ClassVar[Retry] = "never"
    family: ClassVar[Family] = "input"
    hint = "list what exists and correct the name"
    offer = ("sandbox.list", "lists what there is", {})


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


class PreviewGone(Missing):
    """The preview was revoked, or its time is over."""

    code = "PREVIEW_GONE"
    status = 410
    retry: ClassVar[Retry] = "never"
    family: ClassVar[Family] = "state"
    hint = "ask whoever shared it to share it again"
    offer = ("preview.create", "shares the port again", {})


class InputMissing(Missing):
    """Something that it was made from is not to be had any more. Nothing was taken in its place."""

    code = "INPUT_MISSING"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "state"
    hint = "put back what is named in `input`, or make it anew from what there is"
    offer = ("preview.show", "shows what it was made from", {})


class CredentialMissing(Missing):
    """A credential or variable that it was made with is not to be had. Nothing was taken in its place."""

    code = "CREDENTIAL_MISSING"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "permission"
    hint = "have an admin add the credential that is named, or give the variable with `env`"
    offer = ("credential.read", "lists the credentials", {})


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


class Unfit(ColdframeError):
    """The object is there, but not fit for this call."""

    code = "UNFIT"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "conflict"
    hint = "look at the object and correct the call"
    offer = ("sandbox.get", "shows the state now", {})


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


class BuildFailed(Unfit):
    """A step of a recipe ended badly. No template was made; the steps before it are kept for the next build."""

    code = "TEMPLATE_BUILD_FAILED"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "input"
    hint = "look at the log of the build, correct the step that is named, and build again: the steps before it are kept"
    offer = ("template.log", "shows the log of the build", {})


class DependencyMissing(Unfit):
    """A version of a package that was asked for is not to be had. No other version was taken in its place."""

    code = "DEPENDENCY_MISSING"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "input"
    hint = "ask for one of the versions in `nearest`, or build without the lock"
    offer = ("template.log", "shows the log of the build", {})


class TemplateChanged(Unfit):
    """A template on disk is not what was built. Nothing was started from it."""

    code = "TEMPLATE_CHANGED"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "state"
    hint = "remove the template and build it again: somebody has changed its files on this machine"
    offer = ("template.list", "lists the templates that there are", {})


class TemplateWithdrawn(Unfit):
    """Somebody took the template back. Nothing new starts from it."""

    code = "TEMPLATE_WITHDRAWN"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "state"
    hint = "use another version; `why` says what was wrong with this one"
    offer = ("template.list", "lists the templates that there are", {})


class TemplateCheckFailed(Unfit):
    """The check that was to vouch for a template did not pass in a fresh sandbox of it. It is marked as before."""

    code = "TEMPLATE_CHECK_FAILED"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "state"
    hint = "look at `stdout` and `stderr`; correct the check, or the template, and mark it then"
    offer = ("template.show", "shows what is in the template", {})


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


class StartNotReady(Unfit):
    """What the template starts did not come to serve in time, or ended. The sandbox was taken down again."""

    code = "START_NOT_READY"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "state"
    hint = "look at `log`, correct the start command or its ready check, and build the template again"
    offer = ("template.show", "shows the start command and its check", {})


class PatternTooSlow(Unfit):
    """The pattern exceeded its time budget and was stopped."""

    code = "PATTERN_TOO_SLOW"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "limit"
    hint = "simplify the pattern (no nested repetition) or search literally"
    offer = ("search_files", "looks for the text as it is", {"regex": False})


class LimitReached(ColdframeError):
    """A resource limit stopped the call."""

    code = "LIMIT"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "limit"
    hint = "free some of the resource named, or have an admin raise the limit"
    offer = ("sandbox.contract", "shows the limits", {})


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


class Unavailable(ColdframeError):
    """A part of the installation is not there."""

    code = "UNAVAILABLE"
    status = 503
    retry: ClassVar[Retry] = "later"
    family: ClassVar[Family] = "infrastructure"
    hint = "try again; `coldframe doctor` tells what is missing"
    offer = ("host.doctor", "tells what is missing on this machine", {})


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


class CredentialUnreadable(Unavailable):
    """The key under which secrets are kept is missing, or is not the one they were written with."""

    code = "CREDENTIAL_UNREADABLE"
    status = 503
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "infrastructure"
    hint = "put the file `credentials.key` back as it was, or revoke the credentials and add them again"
    offer = ("credential.read", "lists the credentials", {})


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


class PreviewUnavailable(Unavailable):
    """What a preview shows does not serve now. Its address stays."""

    code = "PREVIEW_UNAVAILABLE"
    status = 503
    retry: ClassVar[Retry] = "later"
    family: ClassVar[Family] = "state"
    hint = "look at the state and the log of the preview"
    offer = ("preview.show", "shows its state and the last lines of its log", {})


class PreviewNotListening(PreviewUnavailable):
    """Nothing listens on that port of the sandbox, on no address."""

    code = "PREVIEW_NOT_LISTENING"
    status = 503
    retry: ClassVar[Retry] = "later"
    family: ClassVar[Family] = "state"
    hint = "start the server, or look at `sandbox.processes` for the port that it listens on"
    offer = ("preview.restart", "starts the recorded command again", {})


class PreviewNotAnswering(PreviewUnavailable):
    """Something listens on the port, and gives no answer."""

    code = "PREVIEW_NOT_ANSWERING"
    status = 503
    retry: ClassVar[Retry] = "later"
    family: ClassVar[Family] = "state"
    hint = "look at its log; restart it if it hangs"
    offer = ("preview.restart", "ends it and starts it again", {})


class PreviewStarting(PreviewUnavailable):
    """What the preview shows was started and is not ready yet."""

    code = "PREVIEW_STARTING"
    status = 503
    retry: ClassVar[Retry] = "later"
    family: ClassVar[Family] = "state"
    hint = "wait a moment and ask again"


class PreviewExited(PreviewUnavailable):
    """The process that the preview shows has ended by itself."""

    code = "PREVIEW_EXITED"
    status = 503
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "state"
    hint = "look at `log_lines` for the cause, and restart it"
    offer = ("preview.restart", "starts the recorded command again", {})


class PreviewOutOfMemory(PreviewUnavailable):
    """The process that the preview shows was ended, since the memory of the sandbox was used up."""

    code = "PREVIEW_OUT_OF_MEMORY"
    status = 503
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "limit"
    hint = "have it use less memory, or give the sandbox more, and restart it"
    offer = ("preview.restart", "starts the recorded command again", {})


class PreviewPortMoved(PreviewUnavailable):
    """The process that the preview shows listens on another port than the shared one."""

    code = "PREVIEW_PORT_MOVED"
    status = 503
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "state"
    hint = "share one of the ports in `ports`, or have it listen on the one that is shared"
    offer = ("preview.create", "shares the other port", {})


class PreviewStopped(PreviewUnavailable):
    """Somebody stopped what the preview shows."""

    code = "PREVIEW_STOPPED"
    status = 503
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "state"
    hint = "start it again if you may"
    offer = ("preview.restart", "starts the recorded command again", {})


class PreviewAsleep(PreviewUnavailable):
    """The sandbox of the preview is paused or stopped."""

    code = "PREVIEW_ASLEEP"
    status = 503
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "state"
    hint = "resume or start the sandbox"
    offer = ("preview.restart", "wakes the sandbox, and starts the recorded command if it no longer runs", {})


class PreviewEnded(PreviewUnavailable):
    """The sandbox of the preview has ended, and with it what was shown."""

    code = "PREVIEW_ENDED"
    status = 503
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "state"
    hint = "rebuild it on another sandbox from what was recorded"
    offer = ("preview.rebuild", "makes it again on another sandbox from what was recorded", {})


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
