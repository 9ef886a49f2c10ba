// Every code of the catalogue. Written by `scripts/typescript_sdk`; do not edit.

/** By code: of what it is, its family, when the same call can succeed, what it means, and what to do. A newer server may know more. */
export const CODES = /** @type {const} */ ({
  "CANCELLED": {
    "of": "command",
    "family": "state",
    "retry": "later",
    "meaning": "A caller ended it, or its sandbox was ended.",
    "fix": "run it again",
    "op": "run_command"
  },
  "CELL_NOT_BEGUN": {
    "of": "call",
    "family": "state",
    "retry": "later",
    "meaning": "A cell whose turn did not come in time, or whose sender has left before. It will not run.",
    "fix": "wait for the cells before it, interrupt the one that runs, or make another context",
    "op": "context.list"
  },
  "CONFLICT": {
    "of": "call",
    "family": "conflict",
    "retry": "after_change",
    "meaning": "It was changed by somebody else, or the name is taken.",
    "fix": "read it again and repeat the change on what is there now",
    "op": "read_file"
  },
  "CONTRACT_CHANGED": {
    "of": "call",
    "family": "conflict",
    "retry": "after_change",
    "meaning": "The contract that was agreed to is not the one that the sandbox would have now. Nothing was made.",
    "fix": "look at `changes`; to accept them, create it with the digest that is told",
    "op": "contract.plan"
  },
  "CONTRACT_DRIFT": {
    "of": "call",
    "family": "conflict",
    "retry": "after_change",
    "meaning": "The sandbox that was made differs from the contract that was agreed to. It was taken down again.",
    "fix": "look at `changes`, plan it again, and agree to that",
    "op": "contract.plan"
  },
  "CREDENTIAL_BUDGET": {
    "of": "call",
    "family": "budget",
    "retry": "after_change",
    "meaning": "The credential was used as often as it may be.",
    "fix": "an owner or admin can add another credential with a budget of its own",
    "op": "credential.read"
  },
  "CREDENTIAL_EXPIRED": {
    "of": "call",
    "family": "permission",
    "retry": "after_change",
    "meaning": "The time for which the credential was given is over.",
    "fix": "an owner or admin can add another credential",
    "op": "credential.read"
  },
  "CREDENTIAL_MISSING": {
    "of": "call",
    "family": "permission",
    "retry": "after_change",
    "meaning": "A credential or variable that it was made with is not to be had. Nothing was taken in its place.",
    "fix": "have an admin add the credential that is named, or give the variable with `env`",
    "op": "credential.read"
  },
  "CREDENTIAL_REVOKED": {
    "of": "call",
    "family": "permission",
    "retry": "never",
    "meaning": "Somebody took the credential back.",
    "fix": "do it without; an owner or admin took it back",
    "op": "credential.read"
  },
  "CREDENTIAL_UNREADABLE": {
    "of": "call",
    "family": "infrastructure",
    "retry": "after_change",
    "meaning": "The key under which secrets are kept is missing, or is not the one they were written with.",
    "fix": "put the file `credentials.key` back as it was, or revoke the credentials and add them again",
    "op": "credential.read"
  },
  "DEMOTION_REFUSED": {
    "of": "call",
    "family": "conflict",
    "retry": "never",
    "meaning": "A sandbox does not go back to a smaller profile: that could not hold what it has.",
    "fix": "create a smaller sandbox, and copy the files that it needs",
    "op": "sandbox.create"
  },
  "DENIED_BY_RULE": {
    "of": "call",
    "family": "permission",
    "retry": "never",
    "meaning": "A rule, a list or the floor refused the call before any effect.",
    "fix": "do it another way; `coldframe policy show` lists the rules",
    "op": "sandbox.allowed"
  },
  "DEPENDENCY_MISSING": {
    "of": "command",
    "family": "input",
    "retry": "after_change",
    "meaning": "It failed, and its output says that something is not installed.",
    "fix": "look at `diagnosis`: it names what is missing and suggests what may help",
    "op": "run_command"
  },
  "EDIT_NOT_FOUND": {
    "of": "call",
    "family": "input",
    "retry": "after_change",
    "meaning": "The old text does not occur in the file, which is unchanged.",
    "fix": "read the file and copy the old text exactly, white space included",
    "op": "read_file"
  },
  "EDIT_NOT_UNIQUE": {
    "of": "call",
    "family": "input",
    "retry": "after_change",
    "meaning": "The old text occurs more than once; the file is unchanged.",
    "fix": "add surrounding lines to the old text until it is unique, or set `replace_all`",
    "op": "edit_file"
  },
  "EXPIRED": {
    "of": "command",
    "family": "state",
    "retry": "never",
    "meaning": "What it wrote was kept for its time, and is removed.",
    "fix": "run it again",
    "op": "run_command"
  },
  "FILE_NOT_FOUND": {
    "of": "call",
    "family": "input",
    "retry": "never",
    "meaning": "No file or directory at that path.",
    "fix": "list the directory to see what is there",
    "op": "list_directory"
  },
  "GIT_CONFLICT": {
    "of": "call",
    "family": "conflict",
    "retry": "after_change",
    "meaning": "Both sides changed the same: files are in conflict, and nothing is committed until they are resolved.",
    "fix": "edit the `files`, then commit them; or give the merge up with `abort`",
    "op": "git.status"
  },
  "GIT_FAILED": {
    "of": "call",
    "family": "conflict",
    "retry": "after_change",
    "meaning": "Git ran in the sandbox and ended with an error.",
    "fix": "`output` is what Git said of it; the receipt has all of it",
    "op": "git.status"
  },
  "GIT_NO_REPOSITORY": {
    "of": "call",
    "family": "input",
    "retry": "after_change",
    "meaning": "There is no Git repository at that path of the workspace, or above it.",
    "fix": "name the directory of one, or begin one with `git.init` or `git.clone`",
    "op": "git.init"
  },
  "GIT_UNKNOWN_REVISION": {
    "of": "call",
    "family": "input",
    "retry": "after_change",
    "meaning": "No branch, tag or commit of the repository is meant by that name.",
    "fix": "name a branch, a tag, or a commit by the begin of its id; `~N` and `^N` may stand behind it",
    "op": "git.refs"
  },
  "GIT_UNREADABLE": {
    "of": "call",
    "family": "conflict",
    "retry": "after_change",
    "meaning": "The repository is damaged, kept in a form that is not read, or leads out of the workspace.",
    "fix": "run `git fsck` in the sandbox; what Git itself can read there can be asked for by a command",
    "op": "tool.call"
  },
  "GRANT_MISSING": {
    "of": "call",
    "family": "permission",
    "retry": "never",
    "meaning": "The role of the token does not include this operation.",
    "fix": "use a token whose role has this right",
    "op": "sandbox.allowed"
  },
  "GUEST_LOST": {
    "of": "call",
    "family": "infrastructure",
    "retry": "after_change",
    "meaning": "The keeper of the sandbox ended, and its commands with it.",
    "fix": "create a new sandbox; the files of the workspace are kept",
    "op": "sandbox.create"
  },
  "HOST_UNREACHABLE": {
    "of": "call",
    "family": "infrastructure",
    "retry": "later",
    "meaning": "The host daemon does not answer; the outcome is not known yet.",
    "fix": "ask again with the same idempotency key",
    "op": "tool.call"
  },
  "INPUT_CHANGED": {
    "of": "call",
    "family": "state",
    "retry": "after_change",
    "meaning": "Something that it was made from is not what it was. Nothing is served from it.",
    "fix": "`input` names it: get the old one back, or make it anew from what there is now",
    "op": "preview.show"
  },
  "INPUT_MISSING": {
    "of": "call",
    "family": "state",
    "retry": "after_change",
    "meaning": "Something that it was made from is not to be had any more. Nothing was taken in its place.",
    "fix": "put back what is named in `input`, or make it anew from what there is",
    "op": "preview.show"
  },
  "INSTALL_NOT_IN_PROFILE": {
    "of": "call",
    "family": "permission",
    "retry": "never",
    "meaning": "Packages would be installed where there are only those of the managed environment.",
    "fix": "use a package of the environment, or promote the sandbox to a profile that can install",
    "op": "sandbox.promote"
  },
  "INTERNAL": {
    "of": "call",
    "family": "infrastructure",
    "retry": "later",
    "meaning": "A fault of ours.",
    "fix": "report this with the server log around this time",
    "op": "host.doctor"
  },
  "INVALID_ARGUMENT": {
    "of": "call",
    "family": "input",
    "retry": "after_change",
    "meaning": "An argument is missing, unknown, of the wrong type or out of range.",
    "fix": "correct the argument named in the message; `GET /v1/tools` gives the schemas",
    "op": "tools.list"
  },
  "INVALID_PATTERN": {
    "of": "call",
    "family": "input",
    "retry": "after_change",
    "meaning": "A search pattern is no regular expression.",
    "fix": "correct the pattern, or search for it literally with `regex: false`",
    "op": "search_files"
  },
  "ISOLATION_UNAVAILABLE": {
    "of": "call",
    "family": "isolation",
    "retry": "after_change",
    "meaning": "A wall that was asked for cannot be raised on this host; nothing was started.",
    "fix": "`coldframe doctor` names the missing control and its remedy",
    "op": "host.doctor"
  },
  "IS_A_DIRECTORY": {
    "of": "call",
    "family": "input",
    "retry": "after_change",
    "meaning": "The path is a directory.",
    "fix": "name a file, or list the directory",
    "op": "list_directory"
  },
  "KERNEL_UNAVAILABLE": {
    "of": "call",
    "family": "state",
    "retry": "after_change",
    "meaning": "The kernel of a context of code cells cannot be started, or has ended. Cells that are sent again get a new one.",
    "fix": "look at the message: install what is missing, make a context with another directory, or send the cell again",
    "op": "command.output"
  },
  "LEDGER_UNAVAILABLE": {
    "of": "call",
    "family": "infrastructure",
    "retry": "later",
    "meaning": "The gate cannot record, so it refuses.",
    "fix": "free disk space for the data directory, then try again",
    "op": "ledger.verify"
  },
  "LIMIT": {
    "of": "call",
    "family": "limit",
    "retry": "after_change",
    "meaning": "A resource limit stopped the call.",
    "fix": "free some of the resource named, or have an admin raise the limit",
    "op": "sandbox.contract"
  },
  "LIMIT_CPU": {
    "of": "command",
    "family": "limit",
    "retry": "after_change",
    "meaning": "Its processes used all the CPU time that they have.",
    "fix": "give it more `cpu_s`",
    "op": "run_command"
  },
  "LIMIT_DISK": {
    "of": "command",
    "family": "limit",
    "retry": "after_change",
    "meaning": "The disk of the workspace is full.",
    "fix": "remove files, and run it again",
    "op": "run_command"
  },
  "LIMIT_MEMORY": {
    "of": "command",
    "family": "limit",
    "retry": "after_change",
    "meaning": "It needed more memory than the sandbox has.",
    "fix": "use less, or create a sandbox with a higher `limits.memory_mib`",
    "op": "sandbox.create"
  },
  "LIMIT_OUTPUT": {
    "of": "command",
    "family": "limit",
    "retry": "after_change",
    "meaning": "It wrote more output than is kept.",
    "fix": "write it to a file, and run it again",
    "op": "run_command"
  },
  "LIMIT_PIDS": {
    "of": "command",
    "family": "limit",
    "retry": "after_change",
    "meaning": "It wanted more processes than the sandbox may have.",
    "fix": "end what is left running, or create a sandbox with higher `limits.pids`",
    "op": "sandbox.create"
  },
  "LIMIT_SANDBOXES": {
    "of": "call",
    "family": "limit",
    "retry": "later",
    "meaning": "As many sandboxes run as the operator lets. Nothing was made or started.",
    "fix": "stop or end one, or wait for a turn: create it with `queue_s`",
    "op": "sandbox.list"
  },
  "NOT_A_DIRECTORY": {
    "of": "call",
    "family": "input",
    "retry": "after_change",
    "meaning": "A component of the path is not a directory.",
    "fix": "name a directory",
    "op": "read_file"
  },
  "NOT_A_REGULAR_FILE": {
    "of": "call",
    "family": "input",
    "retry": "never",
    "meaning": "The path is a device, pipe, socket or the like.",
    "fix": "only regular files can be read and written by tools",
    "op": "list_directory"
  },
  "NOT_FOUND": {
    "of": "call",
    "family": "input",
    "retry": "never",
    "meaning": "No such object, or it is not yours to see.",
    "fix": "list what exists and correct the id",
    "op": "sandbox.list"
  },
  "NOT_IN_PROFILE": {
    "of": "call",
    "family": "permission",
    "retry": "never",
    "meaning": "The operation is not offered to this agent, role or profile.",
    "fix": "choose a tool from `GET /v1/sandboxes/{id}/allowed`",
    "op": "sandbox.allowed"
  },
  "NOT_REPLAYABLE": {
    "of": "call",
    "family": "state",
    "retry": "after_change",
    "meaning": "What a call began from is not to be had any more, or was never recorded. Nothing was run.",
    "fix": "take a snapshot before a command that is to be replayed, or have a rule with `snapshot: true` do so",
    "op": "receipt.get"
  },
  "NOT_STARTED": {
    "of": "command",
    "family": "input",
    "retry": "after_change",
    "meaning": "Its program could not be started.",
    "fix": "look which programs there are",
    "op": "sandbox.runtimes"
  },
  "OUTPUT_MISSING": {
    "of": "command",
    "family": "input",
    "retry": "after_change",
    "meaning": "Something that it declared to make is not there, whatever it returned.",
    "fix": "look at what it wrote, correct it, and run it again",
    "op": "command.output"
  },
  "OUTSIDE_WORKSPACE": {
    "of": "call",
    "family": "permission",
    "retry": "never",
    "meaning": "The path, or a link in it, leaves the workspace.",
    "fix": "give a path relative to the workspace",
    "op": "list_directory"
  },
  "PATTERN_TOO_SLOW": {
    "of": "call",
    "family": "limit",
    "retry": "after_change",
    "meaning": "The pattern exceeded its time budget and was stopped.",
    "fix": "simplify the pattern (no nested repetition) or search literally",
    "op": "search_files"
  },
  "PAUSE_KIND_UNSUPPORTED": {
    "of": "call",
    "family": "state",
    "retry": "after_change",
    "meaning": "This machine cannot pause a sandbox in this way. Nothing has changed.",
    "fix": "pause with kind `files`, which ends its processes and keeps its files",
    "op": "sandbox.stop"
  },
  "PENDING_APPROVAL": {
    "of": "call",
    "family": "permission",
    "retry": "after_approval",
    "meaning": "A rule says that a person must decide first. Nothing was done.",
    "fix": "a person has to decide; this version records the request but cannot grant it yet",
    "op": "policy.show"
  },
  "PERMISSION_DENIED": {
    "of": "call",
    "family": "permission",
    "retry": "after_change",
    "meaning": "The sandbox user may not do this to the file.",
    "fix": "change the mode of the file first",
    "op": "run_command"
  },
  "POLICY_UNAVAILABLE": {
    "of": "call",
    "family": "infrastructure",
    "retry": "later",
    "meaning": "The gate cannot judge, so it refuses.",
    "fix": "have the owner look at the server log",
    "op": "policy.show"
  },
  "PREVIEW_ASLEEP": {
    "of": "call",
    "family": "state",
    "retry": "after_change",
    "meaning": "The sandbox of the preview is paused or stopped.",
    "fix": "resume or start the sandbox",
    "op": "preview.restart"
  },
  "PREVIEW_ENDED": {
    "of": "call",
    "family": "state",
    "retry": "after_change",
    "meaning": "The sandbox of the preview has ended, and with it what was shown.",
    "fix": "rebuild it on another sandbox from what was recorded",
    "op": "preview.rebuild"
  },
  "PREVIEW_GONE": {
    "of": "call",
    "family": "state",
    "retry": "never",
    "meaning": "The preview was revoked, or its time is over.",
    "fix": "ask whoever shared it to share it again",
    "op": "preview.create"
  },
  "PREVIEW_LABEL": {
    "of": "call",
    "family": "permission",
    "retry": "after_change",
    "meaning": "What the preview shows is labelled higher than it was shared for.",
    "fix": "whoever shares it can raise `up_to` of a preview that is not public, or serve it from another session",
    "op": "preview.show"
  },
  "PREVIEW_LOCKED": {
    "of": "call",
    "family": "permission",
    "retry": "after_change",
    "meaning": "The preview is shared with those who have a link or its token.",
    "fix": "open it by a link of `coldframe preview open`, or send its token as `Coldframe-Preview-Token`",
    "op": "preview.open"
  },
  "PREVIEW_NOT_LISTENING": {
    "of": "call",
    "family": "state",
    "retry": "later",
    "meaning": "Nothing listens on that port of the sandbox, on no address.",
    "fix": "start the server, or look at `sandbox.processes` for the port that it listens on",
    "op": "preview.restart"
  },
  "PREVIEW_OUT_OF_MEMORY": {
    "of": "call",
    "family": "limit",
    "retry": "after_change",
    "meaning": "The process that the preview shows was ended, since the memory of the sandbox was used up.",
    "fix": "have it use less memory, or give the sandbox more, and restart it",
    "op": "preview.restart"
  },
  "PREVIEW_PORT_MOVED": {
    "of": "call",
    "family": "state",
    "retry": "after_change",
    "meaning": "The process that the preview shows listens on another port than the shared one.",
    "fix": "share one of the ports in `ports`, or have it listen on the one that is shared",
    "op": "preview.create"
  },
  "PREVIEW_PROCESS_EXITED": {
    "of": "call",
    "family": "state",
    "retry": "after_change",
    "meaning": "The process that the preview shows has ended by itself.",
    "fix": "look at `log_lines` for the cause, and restart it",
    "op": "preview.restart"
  },
  "PREVIEW_STARTING": {
    "of": "call",
    "family": "state",
    "retry": "later",
    "meaning": "What the preview shows was started and is not ready yet.",
    "fix": "wait a moment and ask again",
    "op": "preview.show"
  },
  "PREVIEW_STOPPED": {
    "of": "call",
    "family": "state",
    "retry": "after_change",
    "meaning": "Somebody stopped what the preview shows.",
    "fix": "start it again if you may",
    "op": "preview.restart"
  },
  "PREVIEW_UNAVAILABLE": {
    "of": "call",
    "family": "state",
    "retry": "later",
    "meaning": "What a preview shows does not serve now. Its address stays.",
    "fix": "look at the state and the log of the preview",
    "op": "preview.show"
  },
  "PREVIEW_UNHEALTHY": {
    "of": "call",
    "family": "state",
    "retry": "later",
    "meaning": "Something listens on the port, and gives no answer.",
    "fix": "look at its log; restart it if it hangs",
    "op": "preview.restart"
  },
  "PROCESS_LOST": {
    "of": "command",
    "family": "infrastructure",
    "retry": "later",
    "meaning": "Something below it ended, and nobody knows how it did.",
    "fix": "look at what it wrote and changed, then run it again",
    "op": "command.output"
  },
  "READ_ONLY": {
    "of": "call",
    "family": "permission",
    "retry": "never",
    "meaning": "The place is read-only by construction.",
    "fix": "write below the workspace instead",
    "op": "list_directory"
  },
  "RECIPE_INVALID": {
    "of": "call",
    "family": "input",
    "retry": "after_change",
    "meaning": "A recipe or Dockerfile cannot be read as one. Nothing was built.",
    "fix": "correct the recipe where the message says",
    "op": "template.list"
  },
  "REFUSED": {
    "of": "call",
    "family": "permission",
    "retry": "never",
    "meaning": "Nothing was done, and the same call will be refused again.",
    "fix": "ask the owner of this installation",
    "op": "sandbox.allowed"
  },
  "REGISTRY_UNREACHABLE": {
    "of": "command",
    "family": "infrastructure",
    "retry": "later",
    "meaning": "It failed, and a package registry that it asked could not be reached.",
    "fix": "run it again later; the log of its contacts says which registry",
    "op": "run_command"
  },
  "RULES_INVALID": {
    "of": "call",
    "family": "input",
    "retry": "after_change",
    "meaning": "A rule file does not validate; the old set stays in force.",
    "fix": "correct the rule file at the line given; the rules in force are unchanged",
    "op": "policy.show"
  },
  "SANDBOX_EXPIRED": {
    "of": "call",
    "family": "state",
    "retry": "after_change",
    "meaning": "A sandbox has reached its maximum age, and is started or resumed only after it was extended.",
    "fix": "extend it first, or create another on the same workspace",
    "op": "sandbox.extend"
  },
  "SESSION_EXPIRED": {
    "of": "call",
    "family": "state",
    "retry": "later",
    "meaning": "A cell for a session of code whose sandbox has ended. Variables and files are gone; receipts stay.",
    "fix": "create another sandbox, attach the files again and run the cells again",
    "op": "sandbox.create"
  },
  "SNAPSHOT_CORRUPT": {
    "of": "call",
    "family": "state",
    "retry": "never",
    "meaning": "A snapshot, or an archive of one, is cut off or was altered. Nothing was started from it, and nothing of it stays.",
    "fix": "use another snapshot, or get the archive again from where it was made",
    "op": "sandbox.get"
  },
  "START_NOT_READY": {
    "of": "call",
    "family": "state",
    "retry": "after_change",
    "meaning": "What the template starts did not come to serve in time, or ended. The sandbox was taken down again.",
    "fix": "look at `log`, correct the start command or its ready check, and build the template again",
    "op": "template.show"
  },
  "TEMPLATE_BUILD_FAILED": {
    "of": "call",
    "family": "input",
    "retry": "after_change",
    "meaning": "A step of a recipe ended badly. No template was made; the steps before it are kept for the next build.",
    "fix": "look at the log of the build, correct the step that is named, and build again: the steps before it are kept",
    "op": "template.log"
  },
  "TEMPLATE_CHANGED": {
    "of": "call",
    "family": "state",
    "retry": "after_change",
    "meaning": "A template on disk is not what was built. Nothing was started from it.",
    "fix": "remove the template and build it again: somebody has changed its files on this machine",
    "op": "template.list"
  },
  "TEMPLATE_CHECK_FAILED": {
    "of": "call",
    "family": "state",
    "retry": "after_change",
    "meaning": "The check that was to vouch for a template did not pass in a fresh sandbox of it. It is marked as before.",
    "fix": "look at `stdout` and `stderr`; correct the check, or the template, and mark it then",
    "op": "template.show"
  },
  "TEMPLATE_WITHDRAWN": {
    "of": "call",
    "family": "state",
    "retry": "after_change",
    "meaning": "Somebody took the template back. Nothing new starts from it.",
    "fix": "use another version; `why` says what was wrong with this one",
    "op": "template.list"
  },
  "TIMED_OUT_IDLE": {
    "of": "command",
    "family": "limit",
    "retry": "later",
    "meaning": "It was silent longer than it may.",
    "fix": "send it input, or run it again",
    "op": "run_command"
  },
  "TIMED_OUT_WALL": {
    "of": "command",
    "family": "limit",
    "retry": "later",
    "meaning": "It ran longer than it may.",
    "fix": "run it again with more time, or as a job",
    "op": "run_command"
  },
  "TOO_LARGE": {
    "of": "call",
    "family": "limit",
    "retry": "after_change",
    "meaning": "The content is larger than one answer or request may be.",
    "fix": "ask for a range, or use the raw file routes",
    "op": "read_file"
  },
  "UNAUTHENTICATED": {
    "of": "call",
    "family": "permission",
    "retry": "after_change",
    "meaning": "No token, or one that is unknown, expired or revoked.",
    "fix": "send `Authorization: Bearer TOKEN`; `coldframe token create` makes one",
    "op": "token.create"
  },
  "UNAVAILABLE": {
    "of": "call",
    "family": "infrastructure",
    "retry": "later",
    "meaning": "A part of the installation is not there.",
    "fix": "try again; `coldframe doctor` tells what is missing",
    "op": "host.doctor"
  },
  "UNFIT": {
    "of": "call",
    "family": "conflict",
    "retry": "after_change",
    "meaning": "The object is there, but not fit for this call.",
    "fix": "look at the object and correct the call",
    "op": "sandbox.get"
  },
  "UNKNOWN_TOOL": {
    "of": "call",
    "family": "input",
    "retry": "never",
    "meaning": "There is no tool of that name.",
    "fix": "`GET /v1/tools` lists the tools",
    "op": "tools.list"
  },
  "UNSAVED_WORK": {
    "of": "call",
    "family": "state",
    "retry": "after_change",
    "meaning": "The end of a sandbox would lose work in a Git repository that no commit has. Nothing was done.",
    "fix": "commit it and take the repository along, end it with `snapshot`, or say `discard`",
    "op": "sandbox.terminate"
  },
  "VOLUME_BUSY": {
    "of": "call",
    "family": "conflict",
    "retry": "later",
    "meaning": "Another sandbox has the volume, or somebody writes to it. Nothing has changed.",
    "fix": "end the sandbox that is told in `holders`; to read beside it, have the volume read-only",
    "op": "volume.show"
  },
  "WRONG_STATE": {
    "of": "call",
    "family": "state",
    "retry": "later",
    "meaning": "The object is in a state in which this is not possible.",
    "fix": "look at the state and its next actions",
    "op": "sandbox.get"
  }
})
