"""Why a preview is not shown, each a state that whoever looks at it can understand."""

from typing import ClassVar

from coldframe.contract.error_families import (
    Family,
    Missing,
    Refused,
    Retry,
    Unauthenticated,
    Unavailable,
)


class PreviewLocked(Unauthenticated):
    """The preview is shared with those who have a link or its token."""

    code = "PREVIEW_LOCKED"
    status = 401
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "permission"
    hint = "open it by a link of `coldframe preview open`, or send its token as `Coldframe-Preview-Token`"
    offer = ("preview.open", "gives a link that opens it once", {})


class PreviewLabelled(Refused):
    """What the preview shows is labelled higher than it was shared for."""

    code = "PREVIEW_LABEL"
    status = 403
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "permission"
    hint = "whoever shares it can raise `up_to` of a preview that is not public, or serve it from another session"
    offer = ("preview.show", "shows how high it is labelled now", {})


class PreviewGone(Missing):
    """The preview was revoked, or its time is over."""

    code = "PREVIEW_GONE"
    status = 410
    retry: ClassVar[Retry] = "never"
    family: ClassVar[Family] = "state"
    hint = "ask whoever shared it to share it again"
    offer = ("preview.create", "shares the port again", {})


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


class PreviewUnhealthy(PreviewUnavailable):
    """Something listens on the port, and gives no answer."""

    code = "PREVIEW_UNHEALTHY"
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


class PreviewProcessExited(PreviewUnavailable):
    """The process that the preview shows has ended by itself."""

    code = "PREVIEW_PROCESS_EXITED"
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
