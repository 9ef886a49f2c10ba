export namespace CODES {
    namespace CANCELLED {
        let of: "command";
        let family: "state";
        let retry: "later";
        let meaning: "A caller ended it, or its sandbox was ended.";
        let fix: "run it again";
        let op: "run_command";
    }
    namespace CELL_NOT_BEGUN {
        let of_1: "call";
        export { of_1 as of };
        let family_1: "state";
        export { family_1 as family };
        let retry_1: "later";
        export { retry_1 as retry };
        let meaning_1: "A cell whose turn did not come in time, or whose sender has left before. It will not run.";
        export { meaning_1 as meaning };
        let fix_1: "wait for the cells before it, interrupt the one that runs, or make another context";
        export { fix_1 as fix };
        let op_1: "context.list";
        export { op_1 as op };
    }
    namespace CONFLICT {
        let of_2: "call";
        export { of_2 as of };
        let family_2: "conflict";
        export { family_2 as family };
        let retry_2: "after_change";
        export { retry_2 as retry };
        let meaning_2: "It was changed by somebody else, or the name is taken.";
        export { meaning_2 as meaning };
        let fix_2: "read it again and repeat the change on what is there now";
        export { fix_2 as fix };
        let op_2: "read_file";
        export { op_2 as op };
    }
    namespace CONTRACT_CHANGED {
        let of_3: "call";
        export { of_3 as of };
        let family_3: "conflict";
        export { family_3 as family };
        let retry_3: "after_change";
        export { retry_3 as retry };
        let meaning_3: "The contract that was agreed to is not the one that the sandbox would have now. Nothing was made.";
        export { meaning_3 as meaning };
        let fix_3: "look at `changes`; to accept them, create it with the digest that is told";
        export { fix_3 as fix };
        let op_3: "contract.plan";
        export { op_3 as op };
    }
    namespace CONTRACT_DRIFT {
        let of_4: "call";
        export { of_4 as of };
        let family_4: "conflict";
        export { family_4 as family };
        let retry_4: "after_change";
        export { retry_4 as retry };
        let meaning_4: "The sandbox that was made differs from the contract that was agreed to. It was taken down again.";
        export { meaning_4 as meaning };
        let fix_4: "look at `changes`, plan it again, and agree to that";
        export { fix_4 as fix };
        let op_4: "contract.plan";
        export { op_4 as op };
    }
    namespace CREDENTIAL_BUDGET {
        let of_5: "call";
        export { of_5 as of };
        let family_5: "budget";
        export { family_5 as family };
        let retry_5: "after_change";
        export { retry_5 as retry };
        let meaning_5: "The credential was used as often as it may be.";
        export { meaning_5 as meaning };
        let fix_5: "an owner or admin can add another credential with a budget of its own";
        export { fix_5 as fix };
        let op_5: "credential.read";
        export { op_5 as op };
    }
    namespace CREDENTIAL_EXPIRED {
        let of_6: "call";
        export { of_6 as of };
        let family_6: "permission";
        export { family_6 as family };
        let retry_6: "after_change";
        export { retry_6 as retry };
        let meaning_6: "The time for which the credential was given is over.";
        export { meaning_6 as meaning };
        let fix_6: "an owner or admin can add another credential";
        export { fix_6 as fix };
        let op_6: "credential.read";
        export { op_6 as op };
    }
    namespace CREDENTIAL_MISSING {
        let of_7: "call";
        export { of_7 as of };
        let family_7: "permission";
        export { family_7 as family };
        let retry_7: "after_change";
        export { retry_7 as retry };
        let meaning_7: "A credential or variable that it was made with is not to be had. Nothing was taken in its place.";
        export { meaning_7 as meaning };
        let fix_7: "have an admin add the credential that is named, or give the variable with `env`";
        export { fix_7 as fix };
        let op_7: "credential.read";
        export { op_7 as op };
    }
    namespace CREDENTIAL_REVOKED {
        let of_8: "call";
        export { of_8 as of };
        let family_8: "permission";
        export { family_8 as family };
        let retry_8: "never";
        export { retry_8 as retry };
        let meaning_8: "Somebody took the credential back.";
        export { meaning_8 as meaning };
        let fix_8: "do it without; an owner or admin took it back";
        export { fix_8 as fix };
        let op_8: "credential.read";
        export { op_8 as op };
    }
    namespace CREDENTIAL_UNREADABLE {
        let of_9: "call";
        export { of_9 as of };
        let family_9: "infrastructure";
        export { family_9 as family };
        let retry_9: "after_change";
        export { retry_9 as retry };
        let meaning_9: "The key under which secrets are kept is missing, or is not the one they were written with.";
        export { meaning_9 as meaning };
        let fix_9: "put the file `credentials.key` back as it was, or revoke the credentials and add them again";
        export { fix_9 as fix };
        let op_9: "credential.read";
        export { op_9 as op };
    }
    namespace DEMOTION_REFUSED {
        let of_10: "call";
        export { of_10 as of };
        let family_10: "conflict";
        export { family_10 as family };
        let retry_10: "never";
        export { retry_10 as retry };
        let meaning_10: "A sandbox does not go back to a smaller profile: that could not hold what it has.";
        export { meaning_10 as meaning };
        let fix_10: "create a smaller sandbox, and copy the files that it needs";
        export { fix_10 as fix };
        let op_10: "sandbox.create";
        export { op_10 as op };
    }
    namespace DENIED_BY_RULE {
        let of_11: "call";
        export { of_11 as of };
        let family_11: "permission";
        export { family_11 as family };
        let retry_11: "never";
        export { retry_11 as retry };
        let meaning_11: "A rule, a list or the floor refused the call before any effect.";
        export { meaning_11 as meaning };
        let fix_11: "do it another way; `coldframe policy show` lists the rules";
        export { fix_11 as fix };
        let op_11: "sandbox.allowed";
        export { op_11 as op };
    }
    namespace DEPENDENCY_MISSING {
        let of_12: "command";
        export { of_12 as of };
        let family_12: "input";
        export { family_12 as family };
        let retry_12: "after_change";
        export { retry_12 as retry };
        let meaning_12: "It failed, and its output says that something is not installed.";
        export { meaning_12 as meaning };
        let fix_12: "look at `diagnosis`: it names what is missing and suggests what may help";
        export { fix_12 as fix };
        let op_12: "run_command";
        export { op_12 as op };
    }
    namespace EDIT_NOT_FOUND {
        let of_13: "call";
        export { of_13 as of };
        let family_13: "input";
        export { family_13 as family };
        let retry_13: "after_change";
        export { retry_13 as retry };
        let meaning_13: "The old text does not occur in the file, which is unchanged.";
        export { meaning_13 as meaning };
        let fix_13: "read the file and copy the old text exactly, white space included";
        export { fix_13 as fix };
        let op_13: "read_file";
        export { op_13 as op };
    }
    namespace EDIT_NOT_UNIQUE {
        let of_14: "call";
        export { of_14 as of };
        let family_14: "input";
        export { family_14 as family };
        let retry_14: "after_change";
        export { retry_14 as retry };
        let meaning_14: "The old text occurs more than once; the file is unchanged.";
        export { meaning_14 as meaning };
        let fix_14: "add surrounding lines to the old text until it is unique, or set `replace_all`";
        export { fix_14 as fix };
        let op_14: "edit_file";
        export { op_14 as op };
    }
    namespace EXPIRED {
        let of_15: "command";
        export { of_15 as of };
        let family_15: "state";
        export { family_15 as family };
        let retry_15: "never";
        export { retry_15 as retry };
        let meaning_15: "What it wrote was kept for its time, and is removed.";
        export { meaning_15 as meaning };
        let fix_15: "run it again";
        export { fix_15 as fix };
        let op_15: "run_command";
        export { op_15 as op };
    }
    namespace FILE_NOT_FOUND {
        let of_16: "call";
        export { of_16 as of };
        let family_16: "input";
        export { family_16 as family };
        let retry_16: "never";
        export { retry_16 as retry };
        let meaning_16: "No file or directory at that path.";
        export { meaning_16 as meaning };
        let fix_16: "list the directory to see what is there";
        export { fix_16 as fix };
        let op_16: "list_directory";
        export { op_16 as op };
    }
    namespace GIT_CONFLICT {
        let of_17: "call";
        export { of_17 as of };
        let family_17: "conflict";
        export { family_17 as family };
        let retry_17: "after_change";
        export { retry_17 as retry };
        let meaning_17: "Both sides changed the same: files are in conflict, and nothing is committed until they are resolved.";
        export { meaning_17 as meaning };
        let fix_17: "edit the `files`, then commit them; or give the merge up with `abort`";
        export { fix_17 as fix };
        let op_17: "git.status";
        export { op_17 as op };
    }
    namespace GIT_FAILED {
        let of_18: "call";
        export { of_18 as of };
        let family_18: "conflict";
        export { family_18 as family };
        let retry_18: "after_change";
        export { retry_18 as retry };
        let meaning_18: "Git ran in the sandbox and ended with an error.";
        export { meaning_18 as meaning };
        let fix_18: "`output` is what Git said of it; the receipt has all of it";
        export { fix_18 as fix };
        let op_18: "git.status";
        export { op_18 as op };
    }
    namespace GIT_NO_REPOSITORY {
        let of_19: "call";
        export { of_19 as of };
        let family_19: "input";
        export { family_19 as family };
        let retry_19: "after_change";
        export { retry_19 as retry };
        let meaning_19: "There is no Git repository at that path of the workspace, or above it.";
        export { meaning_19 as meaning };
        let fix_19: "name the directory of one, or begin one with `git.init` or `git.clone`";
        export { fix_19 as fix };
        let op_19: "git.init";
        export { op_19 as op };
    }
    namespace GIT_UNKNOWN_REVISION {
        let of_20: "call";
        export { of_20 as of };
        let family_20: "input";
        export { family_20 as family };
        let retry_20: "after_change";
        export { retry_20 as retry };
        let meaning_20: "No branch, tag or commit of the repository is meant by that name.";
        export { meaning_20 as meaning };
        let fix_20: "name a branch, a tag, or a commit by the begin of its id; `~N` and `^N` may stand behind it";
        export { fix_20 as fix };
        let op_20: "git.refs";
        export { op_20 as op };
    }
    namespace GIT_UNREADABLE {
        let of_21: "call";
        export { of_21 as of };
        let family_21: "conflict";
        export { family_21 as family };
        let retry_21: "after_change";
        export { retry_21 as retry };
        let meaning_21: "The repository is damaged, kept in a form that is not read, or leads out of the workspace.";
        export { meaning_21 as meaning };
        let fix_21: "run `git fsck` in the sandbox; what Git itself can read there can be asked for by a command";
        export { fix_21 as fix };
        let op_21: "tool.call";
        export { op_21 as op };
    }
    namespace GRANT_MISSING {
        let of_22: "call";
        export { of_22 as of };
        let family_22: "permission";
        export { family_22 as family };
        let retry_22: "never";
        export { retry_22 as retry };
        let meaning_22: "The role of the token does not include this operation.";
        export { meaning_22 as meaning };
        let fix_22: "use a token whose role has this right";
        export { fix_22 as fix };
        let op_22: "sandbox.allowed";
        export { op_22 as op };
    }
    namespace GUEST_LOST {
        let of_23: "call";
        export { of_23 as of };
        let family_23: "infrastructure";
        export { family_23 as family };
        let retry_23: "after_change";
        export { retry_23 as retry };
        let meaning_23: "The keeper of the sandbox ended, and its commands with it.";
        export { meaning_23 as meaning };
        let fix_23: "create a new sandbox; the files of the workspace are kept";
        export { fix_23 as fix };
        let op_23: "sandbox.create";
        export { op_23 as op };
    }
    namespace HOST_UNREACHABLE {
        let of_24: "call";
        export { of_24 as of };
        let family_24: "infrastructure";
        export { family_24 as family };
        let retry_24: "later";
        export { retry_24 as retry };
        let meaning_24: "The host daemon does not answer; the outcome is not known yet.";
        export { meaning_24 as meaning };
        let fix_24: "ask again with the same idempotency key";
        export { fix_24 as fix };
        let op_24: "tool.call";
        export { op_24 as op };
    }
    namespace INPUT_CHANGED {
        let of_25: "call";
        export { of_25 as of };
        let family_25: "state";
        export { family_25 as family };
        let retry_25: "after_change";
        export { retry_25 as retry };
        let meaning_25: "Something that it was made from is not what it was. Nothing is served from it.";
        export { meaning_25 as meaning };
        let fix_25: "`input` names it: get the old one back, or make it anew from what there is now";
        export { fix_25 as fix };
        let op_25: "preview.show";
        export { op_25 as op };
    }
    namespace INPUT_MISSING {
        let of_26: "call";
        export { of_26 as of };
        let family_26: "state";
        export { family_26 as family };
        let retry_26: "after_change";
        export { retry_26 as retry };
        let meaning_26: "Something that it was made from is not to be had any more. Nothing was taken in its place.";
        export { meaning_26 as meaning };
        let fix_26: "put back what is named in `input`, or make it anew from what there is";
        export { fix_26 as fix };
        let op_26: "preview.show";
        export { op_26 as op };
    }
    namespace INSTALL_NOT_IN_PROFILE {
        let of_27: "call";
        export { of_27 as of };
        let family_27: "permission";
        export { family_27 as family };
        let retry_27: "never";
        export { retry_27 as retry };
        let meaning_27: "Packages would be installed where there are only those of the managed environment.";
        export { meaning_27 as meaning };
        let fix_27: "use a package of the environment, or promote the sandbox to a profile that can install";
        export { fix_27 as fix };
        let op_27: "sandbox.promote";
        export { op_27 as op };
    }
    namespace INTERNAL {
        let of_28: "call";
        export { of_28 as of };
        let family_28: "infrastructure";
        export { family_28 as family };
        let retry_28: "later";
        export { retry_28 as retry };
        let meaning_28: "A fault of ours.";
        export { meaning_28 as meaning };
        let fix_28: "report this with the server log around this time";
        export { fix_28 as fix };
        let op_28: "host.doctor";
        export { op_28 as op };
    }
    namespace INVALID_ARGUMENT {
        let of_29: "call";
        export { of_29 as of };
        let family_29: "input";
        export { family_29 as family };
        let retry_29: "after_change";
        export { retry_29 as retry };
        let meaning_29: "An argument is missing, unknown, of the wrong type or out of range.";
        export { meaning_29 as meaning };
        let fix_29: "correct the argument named in the message; `GET /v1/tools` gives the schemas";
        export { fix_29 as fix };
        let op_29: "tools.list";
        export { op_29 as op };
    }
    namespace INVALID_PATTERN {
        let of_30: "call";
        export { of_30 as of };
        let family_30: "input";
        export { family_30 as family };
        let retry_30: "after_change";
        export { retry_30 as retry };
        let meaning_30: "A search pattern is no regular expression.";
        export { meaning_30 as meaning };
        let fix_30: "correct the pattern, or search for it literally with `regex: false`";
        export { fix_30 as fix };
        let op_30: "search_files";
        export { op_30 as op };
    }
    namespace ISOLATION_UNAVAILABLE {
        let of_31: "call";
        export { of_31 as of };
        let family_31: "isolation";
        export { family_31 as family };
        let retry_31: "after_change";
        export { retry_31 as retry };
        let meaning_31: "A wall that was asked for cannot be raised on this host; nothing was started.";
        export { meaning_31 as meaning };
        let fix_31: "`coldframe doctor` names the missing control and its remedy";
        export { fix_31 as fix };
        let op_31: "host.doctor";
        export { op_31 as op };
    }
    namespace IS_A_DIRECTORY {
        let of_32: "call";
        export { of_32 as of };
        let family_32: "input";
        export { family_32 as family };
        let retry_32: "after_change";
        export { retry_32 as retry };
        let meaning_32: "The path is a directory.";
        export { meaning_32 as meaning };
        let fix_32: "name a file, or list the directory";
        export { fix_32 as fix };
        let op_32: "list_directory";
        export { op_32 as op };
    }
    namespace KERNEL_UNAVAILABLE {
        let of_33: "call";
        export { of_33 as of };
        let family_33: "state";
        export { family_33 as family };
        let retry_33: "after_change";
        export { retry_33 as retry };
        let meaning_33: "The kernel of a context of code cells cannot be started, or has ended. Cells that are sent again get a new one.";
        export { meaning_33 as meaning };
        let fix_33: "look at the message: install what is missing, make a context with another directory, or send the cell again";
        export { fix_33 as fix };
        let op_33: "command.output";
        export { op_33 as op };
    }
    namespace LEDGER_UNAVAILABLE {
        let of_34: "call";
        export { of_34 as of };
        let family_34: "infrastructure";
        export { family_34 as family };
        let retry_34: "later";
        export { retry_34 as retry };
        let meaning_34: "The gate cannot record, so it refuses.";
        export { meaning_34 as meaning };
        let fix_34: "free disk space for the data directory, then try again";
        export { fix_34 as fix };
        let op_34: "ledger.verify";
        export { op_34 as op };
    }
    namespace LIMIT {
        let of_35: "call";
        export { of_35 as of };
        let family_35: "limit";
        export { family_35 as family };
        let retry_35: "after_change";
        export { retry_35 as retry };
        let meaning_35: "A resource limit stopped the call.";
        export { meaning_35 as meaning };
        let fix_35: "free some of the resource named, or have an admin raise the limit";
        export { fix_35 as fix };
        let op_35: "sandbox.contract";
        export { op_35 as op };
    }
    namespace LIMIT_CPU {
        let of_36: "command";
        export { of_36 as of };
        let family_36: "limit";
        export { family_36 as family };
        let retry_36: "after_change";
        export { retry_36 as retry };
        let meaning_36: "Its processes used all the CPU time that they have.";
        export { meaning_36 as meaning };
        let fix_36: "give it more `cpu_s`";
        export { fix_36 as fix };
        let op_36: "run_command";
        export { op_36 as op };
    }
    namespace LIMIT_DISK {
        let of_37: "command";
        export { of_37 as of };
        let family_37: "limit";
        export { family_37 as family };
        let retry_37: "after_change";
        export { retry_37 as retry };
        let meaning_37: "The disk of the workspace is full.";
        export { meaning_37 as meaning };
        let fix_37: "remove files, and run it again";
        export { fix_37 as fix };
        let op_37: "run_command";
        export { op_37 as op };
    }
    namespace LIMIT_MEMORY {
        let of_38: "command";
        export { of_38 as of };
        let family_38: "limit";
        export { family_38 as family };
        let retry_38: "after_change";
        export { retry_38 as retry };
        let meaning_38: "It needed more memory than the sandbox has.";
        export { meaning_38 as meaning };
        let fix_38: "use less, or create a sandbox with a higher `limits.memory_mib`";
        export { fix_38 as fix };
        let op_38: "sandbox.create";
        export { op_38 as op };
    }
    namespace LIMIT_OUTPUT {
        let of_39: "command";
        export { of_39 as of };
        let family_39: "limit";
        export { family_39 as family };
        let retry_39: "after_change";
        export { retry_39 as retry };
        let meaning_39: "It wrote more output than is kept.";
        export { meaning_39 as meaning };
        let fix_39: "write it to a file, and run it again";
        export { fix_39 as fix };
        let op_39: "run_command";
        export { op_39 as op };
    }
    namespace LIMIT_PIDS {
        let of_40: "command";
        export { of_40 as of };
        let family_40: "limit";
        export { family_40 as family };
        let retry_40: "after_change";
        export { retry_40 as retry };
        let meaning_40: "It wanted more processes than the sandbox may have.";
        export { meaning_40 as meaning };
        let fix_40: "end what is left running, or create a sandbox with higher `limits.pids`";
        export { fix_40 as fix };
        let op_40: "sandbox.create";
        export { op_40 as op };
    }
    namespace LIMIT_SANDBOXES {
        let of_41: "call";
        export { of_41 as of };
        let family_41: "limit";
        export { family_41 as family };
        let retry_41: "later";
        export { retry_41 as retry };
        let meaning_41: "As many sandboxes run as the operator lets. Nothing was made or started.";
        export { meaning_41 as meaning };
        let fix_41: "stop or end one, or wait for a turn: create it with `queue_s`";
        export { fix_41 as fix };
        let op_41: "sandbox.list";
        export { op_41 as op };
    }
    namespace NOT_A_DIRECTORY {
        let of_42: "call";
        export { of_42 as of };
        let family_42: "input";
        export { family_42 as family };
        let retry_42: "after_change";
        export { retry_42 as retry };
        let meaning_42: "A component of the path is not a directory.";
        export { meaning_42 as meaning };
        let fix_42: "name a directory";
        export { fix_42 as fix };
        let op_42: "read_file";
        export { op_42 as op };
    }
    namespace NOT_A_REGULAR_FILE {
        let of_43: "call";
        export { of_43 as of };
        let family_43: "input";
        export { family_43 as family };
        let retry_43: "never";
        export { retry_43 as retry };
        let meaning_43: "The path is a device, pipe, socket or the like.";
        export { meaning_43 as meaning };
        let fix_43: "only regular files can be read and written by tools";
        export { fix_43 as fix };
        let op_43: "list_directory";
        export { op_43 as op };
    }
    namespace NOT_FOUND {
        let of_44: "call";
        export { of_44 as of };
        let family_44: "input";
        export { family_44 as family };
        let retry_44: "never";
        export { retry_44 as retry };
        let meaning_44: "No such object, or it is not yours to see.";
        export { meaning_44 as meaning };
        let fix_44: "list what exists and correct the id";
        export { fix_44 as fix };
        let op_44: "sandbox.list";
        export { op_44 as op };
    }
    namespace NOT_IN_PROFILE {
        let of_45: "call";
        export { of_45 as of };
        let family_45: "permission";
        export { family_45 as family };
        let retry_45: "never";
        export { retry_45 as retry };
        let meaning_45: "The operation is not offered to this agent, role or profile.";
        export { meaning_45 as meaning };
        let fix_45: "choose a tool from `GET /v1/sandboxes/{id}/allowed`";
        export { fix_45 as fix };
        let op_45: "sandbox.allowed";
        export { op_45 as op };
    }
    namespace NOT_REPLAYABLE {
        let of_46: "call";
        export { of_46 as of };
        let family_46: "state";
        export { family_46 as family };
        let retry_46: "after_change";
        export { retry_46 as retry };
        let meaning_46: "What a call began from is not to be had any more, or was never recorded. Nothing was run.";
        export { meaning_46 as meaning };
        let fix_46: "take a snapshot before a command that is to be replayed, or have a rule with `snapshot: true` do so";
        export { fix_46 as fix };
        let op_46: "receipt.get";
        export { op_46 as op };
    }
    namespace NOT_STARTED {
        let of_47: "command";
        export { of_47 as of };
        let family_47: "input";
        export { family_47 as family };
        let retry_47: "after_change";
        export { retry_47 as retry };
        let meaning_47: "Its program could not be started.";
        export { meaning_47 as meaning };
        let fix_47: "look which programs there are";
        export { fix_47 as fix };
        let op_47: "sandbox.runtimes";
        export { op_47 as op };
    }
    namespace OUTPUT_MISSING {
        let of_48: "command";
        export { of_48 as of };
        let family_48: "input";
        export { family_48 as family };
        let retry_48: "after_change";
        export { retry_48 as retry };
        let meaning_48: "Something that it declared to make is not there, whatever it returned.";
        export { meaning_48 as meaning };
        let fix_48: "look at what it wrote, correct it, and run it again";
        export { fix_48 as fix };
        let op_48: "command.output";
        export { op_48 as op };
    }
    namespace OUTSIDE_WORKSPACE {
        let of_49: "call";
        export { of_49 as of };
        let family_49: "permission";
        export { family_49 as family };
        let retry_49: "never";
        export { retry_49 as retry };
        let meaning_49: "The path, or a link in it, leaves the workspace.";
        export { meaning_49 as meaning };
        let fix_49: "give a path relative to the workspace";
        export { fix_49 as fix };
        let op_49: "list_directory";
        export { op_49 as op };
    }
    namespace PATTERN_TOO_SLOW {
        let of_50: "call";
        export { of_50 as of };
        let family_50: "limit";
        export { family_50 as family };
        let retry_50: "after_change";
        export { retry_50 as retry };
        let meaning_50: "The pattern exceeded its time budget and was stopped.";
        export { meaning_50 as meaning };
        let fix_50: "simplify the pattern (no nested repetition) or search literally";
        export { fix_50 as fix };
        let op_50: "search_files";
        export { op_50 as op };
    }
    namespace PAUSE_KIND_UNSUPPORTED {
        let of_51: "call";
        export { of_51 as of };
        let family_51: "state";
        export { family_51 as family };
        let retry_51: "after_change";
        export { retry_51 as retry };
        let meaning_51: "This machine cannot pause a sandbox in this way. Nothing has changed.";
        export { meaning_51 as meaning };
        let fix_51: "pause with kind `files`, which ends its processes and keeps its files";
        export { fix_51 as fix };
        let op_51: "sandbox.stop";
        export { op_51 as op };
    }
    namespace PENDING_APPROVAL {
        let of_52: "call";
        export { of_52 as of };
        let family_52: "permission";
        export { family_52 as family };
        let retry_52: "after_approval";
        export { retry_52 as retry };
        let meaning_52: "A rule says that a person must decide first. Nothing was done.";
        export { meaning_52 as meaning };
        let fix_52: "a person has to decide; this version records the request but cannot grant it yet";
        export { fix_52 as fix };
        let op_52: "policy.show";
        export { op_52 as op };
    }
    namespace PERMISSION_DENIED {
        let of_53: "call";
        export { of_53 as of };
        let family_53: "permission";
        export { family_53 as family };
        let retry_53: "after_change";
        export { retry_53 as retry };
        let meaning_53: "The sandbox user may not do this to the file.";
        export { meaning_53 as meaning };
        let fix_53: "change the mode of the file first";
        export { fix_53 as fix };
        let op_53: "run_command";
        export { op_53 as op };
    }
    namespace POLICY_UNAVAILABLE {
        let of_54: "call";
        export { of_54 as of };
        let family_54: "infrastructure";
        export { family_54 as family };
        let retry_54: "later";
        export { retry_54 as retry };
        let meaning_54: "The gate cannot judge, so it refuses.";
        export { meaning_54 as meaning };
        let fix_54: "have the owner look at the server log";
        export { fix_54 as fix };
        let op_54: "policy.show";
        export { op_54 as op };
    }
    namespace PREVIEW_ASLEEP {
        let of_55: "call";
        export { of_55 as of };
        let family_55: "state";
        export { family_55 as family };
        let retry_55: "after_change";
        export { retry_55 as retry };
        let meaning_55: "The sandbox of the preview is paused or stopped.";
        export { meaning_55 as meaning };
        let fix_55: "resume or start the sandbox";
        export { fix_55 as fix };
        let op_55: "preview.restart";
        export { op_55 as op };
    }
    namespace PREVIEW_ENDED {
        let of_56: "call";
        export { of_56 as of };
        let family_56: "state";
        export { family_56 as family };
        let retry_56: "after_change";
        export { retry_56 as retry };
        let meaning_56: "The sandbox of the preview has ended, and with it what was shown.";
        export { meaning_56 as meaning };
        let fix_56: "rebuild it on another sandbox from what was recorded";
        export { fix_56 as fix };
        let op_56: "preview.rebuild";
        export { op_56 as op };
    }
    namespace PREVIEW_GONE {
        let of_57: "call";
        export { of_57 as of };
        let family_57: "state";
        export { family_57 as family };
        let retry_57: "never";
        export { retry_57 as retry };
        let meaning_57: "The preview was revoked, or its time is over.";
        export { meaning_57 as meaning };
        let fix_57: "ask whoever shared it to share it again";
        export { fix_57 as fix };
        let op_57: "preview.create";
        export { op_57 as op };
    }
    namespace PREVIEW_LABEL {
        let of_58: "call";
        export { of_58 as of };
        let family_58: "permission";
        export { family_58 as family };
        let retry_58: "after_change";
        export { retry_58 as retry };
        let meaning_58: "What the preview shows is labelled higher than it was shared for.";
        export { meaning_58 as meaning };
        let fix_58: "whoever shares it can raise `up_to` of a preview that is not public, or serve it from another session";
        export { fix_58 as fix };
        let op_58: "preview.show";
        export { op_58 as op };
    }
    namespace PREVIEW_LOCKED {
        let of_59: "call";
        export { of_59 as of };
        let family_59: "permission";
        export { family_59 as family };
        let retry_59: "after_change";
        export { retry_59 as retry };
        let meaning_59: "The preview is shared with those who have a link or its token.";
        export { meaning_59 as meaning };
        let fix_59: "open it by a link of `coldframe preview open`, or send its token as `Coldframe-Preview-Token`";
        export { fix_59 as fix };
        let op_59: "preview.open";
        export { op_59 as op };
    }
    namespace PREVIEW_NOT_LISTENING {
        let of_60: "call";
        export { of_60 as of };
        let family_60: "state";
        export { family_60 as family };
        let retry_60: "later";
        export { retry_60 as retry };
        let meaning_60: "Nothing listens on that port of the sandbox, on no address.";
        export { meaning_60 as meaning };
        let fix_60: "start the server, or look at `sandbox.processes` for the port that it listens on";
        export { fix_60 as fix };
        let op_60: "preview.restart";
        export { op_60 as op };
    }
    namespace PREVIEW_OUT_OF_MEMORY {
        let of_61: "call";
        export { of_61 as of };
        let family_61: "limit";
        export { family_61 as family };
        let retry_61: "after_change";
        export { retry_61 as retry };
        let meaning_61: "The process that the preview shows was ended, since the memory of the sandbox was used up.";
        export { meaning_61 as meaning };
        let fix_61: "have it use less memory, or give the sandbox more, and restart it";
        export { fix_61 as fix };
        let op_61: "preview.restart";
        export { op_61 as op };
    }
    namespace PREVIEW_PORT_MOVED {
        let of_62: "call";
        export { of_62 as of };
        let family_62: "state";
        export { family_62 as family };
        let retry_62: "after_change";
        export { retry_62 as retry };
        let meaning_62: "The process that the preview shows listens on another port than the shared one.";
        export { meaning_62 as meaning };
        let fix_62: "share one of the ports in `ports`, or have it listen on the one that is shared";
        export { fix_62 as fix };
        let op_62: "preview.create";
        export { op_62 as op };
    }
    namespace PREVIEW_PROCESS_EXITED {
        let of_63: "call";
        export { of_63 as of };
        let family_63: "state";
        export { family_63 as family };
        let retry_63: "after_change";
        export { retry_63 as retry };
        let meaning_63: "The process that the preview shows has ended by itself.";
        export { meaning_63 as meaning };
        let fix_63: "look at `log_lines` for the cause, and restart it";
        export { fix_63 as fix };
        let op_63: "preview.restart";
        export { op_63 as op };
    }
    namespace PREVIEW_STARTING {
        let of_64: "call";
        export { of_64 as of };
        let family_64: "state";
        export { family_64 as family };
        let retry_64: "later";
        export { retry_64 as retry };
        let meaning_64: "What the preview shows was started and is not ready yet.";
        export { meaning_64 as meaning };
        let fix_64: "wait a moment and ask again";
        export { fix_64 as fix };
        let op_64: "preview.show";
        export { op_64 as op };
    }
    namespace PREVIEW_STOPPED {
        let of_65: "call";
        export { of_65 as of };
        let family_65: "state";
        export { family_65 as family };
        let retry_65: "after_change";
        export { retry_65 as retry };
        let meaning_65: "Somebody stopped what the preview shows.";
        export { meaning_65 as meaning };
        let fix_65: "start it again if you may";
        export { fix_65 as fix };
        let op_65: "preview.restart";
        export { op_65 as op };
    }
    namespace PREVIEW_UNAVAILABLE {
        let of_66: "call";
        export { of_66 as of };
        let family_66: "state";
        export { family_66 as family };
        let retry_66: "later";
        export { retry_66 as retry };
        let meaning_66: "What a preview shows does not serve now. Its address stays.";
        export { meaning_66 as meaning };
        let fix_66: "look at the state and the log of the preview";
        export { fix_66 as fix };
        let op_66: "preview.show";
        export { op_66 as op };
    }
    namespace PREVIEW_UNHEALTHY {
        let of_67: "call";
        export { of_67 as of };
        let family_67: "state";
        export { family_67 as family };
        let retry_67: "later";
        export { retry_67 as retry };
        let meaning_67: "Something listens on the port, and gives no answer.";
        export { meaning_67 as meaning };
        let fix_67: "look at its log; restart it if it hangs";
        export { fix_67 as fix };
        let op_67: "preview.restart";
        export { op_67 as op };
    }
    namespace PROCESS_LOST {
        let of_68: "command";
        export { of_68 as of };
        let family_68: "infrastructure";
        export { family_68 as family };
        let retry_68: "later";
        export { retry_68 as retry };
        let meaning_68: "Something below it ended, and nobody knows how it did.";
        export { meaning_68 as meaning };
        let fix_68: "look at what it wrote and changed, then run it again";
        export { fix_68 as fix };
        let op_68: "command.output";
        export { op_68 as op };
    }
    namespace READ_ONLY {
        let of_69: "call";
        export { of_69 as of };
        let family_69: "permission";
        export { family_69 as family };
        let retry_69: "never";
        export { retry_69 as retry };
        let meaning_69: "The place is read-only by construction.";
        export { meaning_69 as meaning };
        let fix_69: "write below the workspace instead";
        export { fix_69 as fix };
        let op_69: "list_directory";
        export { op_69 as op };
    }
    namespace RECIPE_INVALID {
        let of_70: "call";
        export { of_70 as of };
        let family_70: "input";
        export { family_70 as family };
        let retry_70: "after_change";
        export { retry_70 as retry };
        let meaning_70: "A recipe or Dockerfile cannot be read as one. Nothing was built.";
        export { meaning_70 as meaning };
        let fix_70: "correct the recipe where the message says";
        export { fix_70 as fix };
        let op_70: "template.list";
        export { op_70 as op };
    }
    namespace REFUSED {
        let of_71: "call";
        export { of_71 as of };
        let family_71: "permission";
        export { family_71 as family };
        let retry_71: "never";
        export { retry_71 as retry };
        let meaning_71: "Nothing was done, and the same call will be refused again.";
        export { meaning_71 as meaning };
        let fix_71: "ask the owner of this installation";
        export { fix_71 as fix };
        let op_71: "sandbox.allowed";
        export { op_71 as op };
    }
    namespace REGISTRY_UNREACHABLE {
        let of_72: "command";
        export { of_72 as of };
        let family_72: "infrastructure";
        export { family_72 as family };
        let retry_72: "later";
        export { retry_72 as retry };
        let meaning_72: "It failed, and a package registry that it asked could not be reached.";
        export { meaning_72 as meaning };
        let fix_72: "run it again later; the log of its contacts says which registry";
        export { fix_72 as fix };
        let op_72: "run_command";
        export { op_72 as op };
    }
    namespace RULES_INVALID {
        let of_73: "call";
        export { of_73 as of };
        let family_73: "input";
        export { family_73 as family };
        let retry_73: "after_change";
        export { retry_73 as retry };
        let meaning_73: "A rule file does not validate; the old set stays in force.";
        export { meaning_73 as meaning };
        let fix_73: "correct the rule file at the line given; the rules in force are unchanged";
        export { fix_73 as fix };
        let op_73: "policy.show";
        export { op_73 as op };
    }
    namespace SANDBOX_EXPIRED {
        let of_74: "call";
        export { of_74 as of };
        let family_74: "state";
        export { family_74 as family };
        let retry_74: "after_change";
        export { retry_74 as retry };
        let meaning_74: "A sandbox has reached its maximum age, and is started or resumed only after it was extended.";
        export { meaning_74 as meaning };
        let fix_74: "extend it first, or create another on the same workspace";
        export { fix_74 as fix };
        let op_74: "sandbox.extend";
        export { op_74 as op };
    }
    namespace SESSION_EXPIRED {
        let of_75: "call";
        export { of_75 as of };
        let family_75: "state";
        export { family_75 as family };
        let retry_75: "later";
        export { retry_75 as retry };
        let meaning_75: "A cell for a session of code whose sandbox has ended. Variables and files are gone; receipts stay.";
        export { meaning_75 as meaning };
        let fix_75: "create another sandbox, attach the files again and run the cells again";
        export { fix_75 as fix };
        let op_75: "sandbox.create";
        export { op_75 as op };
    }
    namespace SNAPSHOT_CORRUPT {
        let of_76: "call";
        export { of_76 as of };
        let family_76: "state";
        export { family_76 as family };
        let retry_76: "never";
        export { retry_76 as retry };
        let meaning_76: "A snapshot, or an archive of one, is cut off or was altered. Nothing was started from it, and nothing of it stays.";
        export { meaning_76 as meaning };
        let fix_76: "use another snapshot, or get the archive again from where it was made";
        export { fix_76 as fix };
        let op_76: "sandbox.get";
        export { op_76 as op };
    }
    namespace START_NOT_READY {
        let of_77: "call";
        export { of_77 as of };
        let family_77: "state";
        export { family_77 as family };
        let retry_77: "after_change";
        export { retry_77 as retry };
        let meaning_77: "What the template starts did not come to serve in time, or ended. The sandbox was taken down again.";
        export { meaning_77 as meaning };
        let fix_77: "look at `log`, correct the start command or its ready check, and build the template again";
        export { fix_77 as fix };
        let op_77: "template.show";
        export { op_77 as op };
    }
    namespace TEMPLATE_BUILD_FAILED {
        let of_78: "call";
        export { of_78 as of };
        let family_78: "input";
        export { family_78 as family };
        let retry_78: "after_change";
        export { retry_78 as retry };
        let meaning_78: "A step of a recipe ended badly. No template was made; the steps before it are kept for the next build.";
        export { meaning_78 as meaning };
        let fix_78: "look at the log of the build, correct the step that is named, and build again: the steps before it are kept";
        export { fix_78 as fix };
        let op_78: "template.log";
        export { op_78 as op };
    }
    namespace TEMPLATE_CHANGED {
        let of_79: "call";
        export { of_79 as of };
        let family_79: "state";
        export { family_79 as family };
        let retry_79: "after_change";
        export { retry_79 as retry };
        let meaning_79: "A template on disk is not what was built. Nothing was started from it.";
        export { meaning_79 as meaning };
        let fix_79: "remove the template and build it again: somebody has changed its files on this machine";
        export { fix_79 as fix };
        let op_79: "template.list";
        export { op_79 as op };
    }
    namespace TEMPLATE_CHECK_FAILED {
        let of_80: "call";
        export { of_80 as of };
        let family_80: "state";
        export { family_80 as family };
        let retry_80: "after_change";
        export { retry_80 as retry };
        let meaning_80: "The check that was to vouch for a template did not pass in a fresh sandbox of it. It is marked as before.";
        export { meaning_80 as meaning };
        let fix_80: "look at `stdout` and `stderr`; correct the check, or the template, and mark it then";
        export { fix_80 as fix };
        let op_80: "template.show";
        export { op_80 as op };
    }
    namespace TEMPLATE_WITHDRAWN {
        let of_81: "call";
        export { of_81 as of };
        let family_81: "state";
        export { family_81 as family };
        let retry_81: "after_change";
        export { retry_81 as retry };
        let meaning_81: "Somebody took the template back. Nothing new starts from it.";
        export { meaning_81 as meaning };
        let fix_81: "use another version; `why` says what was wrong with this one";
        export { fix_81 as fix };
        let op_81: "template.list";
        export { op_81 as op };
    }
    namespace TIMED_OUT_IDLE {
        let of_82: "command";
        export { of_82 as of };
        let family_82: "limit";
        export { family_82 as family };
        let retry_82: "later";
        export { retry_82 as retry };
        let meaning_82: "It was silent longer than it may.";
        export { meaning_82 as meaning };
        let fix_82: "send it input, or run it again";
        export { fix_82 as fix };
        let op_82: "run_command";
        export { op_82 as op };
    }
    namespace TIMED_OUT_WALL {
        let of_83: "command";
        export { of_83 as of };
        let family_83: "limit";
        export { family_83 as family };
        let retry_83: "later";
        export { retry_83 as retry };
        let meaning_83: "It ran longer than it may.";
        export { meaning_83 as meaning };
        let fix_83: "run it again with more time, or as a job";
        export { fix_83 as fix };
        let op_83: "run_command";
        export { op_83 as op };
    }
    namespace TOO_LARGE {
        let of_84: "call";
        export { of_84 as of };
        let family_84: "limit";
        export { family_84 as family };
        let retry_84: "after_change";
        export { retry_84 as retry };
        let meaning_84: "The content is larger than one answer or request may be.";
        export { meaning_84 as meaning };
        let fix_84: "ask for a range, or use the raw file routes";
        export { fix_84 as fix };
        let op_84: "read_file";
        export { op_84 as op };
    }
    namespace UNAUTHENTICATED {
        let of_85: "call";
        export { of_85 as of };
        let family_85: "permission";
        export { family_85 as family };
        let retry_85: "after_change";
        export { retry_85 as retry };
        let meaning_85: "No token, or one that is unknown, expired or revoked.";
        export { meaning_85 as meaning };
        let fix_85: "send `Authorization: Bearer TOKEN`; `coldframe token create` makes one";
        export { fix_85 as fix };
        let op_85: "token.create";
        export { op_85 as op };
    }
    namespace UNAVAILABLE {
        let of_86: "call";
        export { of_86 as of };
        let family_86: "infrastructure";
        export { family_86 as family };
        let retry_86: "later";
        export { retry_86 as retry };
        let meaning_86: "A part of the installation is not there.";
        export { meaning_86 as meaning };
        let fix_86: "try again; `coldframe doctor` tells what is missing";
        export { fix_86 as fix };
        let op_86: "host.doctor";
        export { op_86 as op };
    }
    namespace UNFIT {
        let of_87: "call";
        export { of_87 as of };
        let family_87: "conflict";
        export { family_87 as family };
        let retry_87: "after_change";
        export { retry_87 as retry };
        let meaning_87: "The object is there, but not fit for this call.";
        export { meaning_87 as meaning };
        let fix_87: "look at the object and correct the call";
        export { fix_87 as fix };
        let op_87: "sandbox.get";
        export { op_87 as op };
    }
    namespace UNKNOWN_TOOL {
        let of_88: "call";
        export { of_88 as of };
        let family_88: "input";
        export { family_88 as family };
        let retry_88: "never";
        export { retry_88 as retry };
        let meaning_88: "There is no tool of that name.";
        export { meaning_88 as meaning };
        let fix_88: "`GET /v1/tools` lists the tools";
        export { fix_88 as fix };
        let op_88: "tools.list";
        export { op_88 as op };
    }
    namespace UNSAVED_WORK {
        let of_89: "call";
        export { of_89 as of };
        let family_89: "state";
        export { family_89 as family };
        let retry_89: "after_change";
        export { retry_89 as retry };
        let meaning_89: "The end of a sandbox would lose work in a Git repository that no commit has. Nothing was done.";
        export { meaning_89 as meaning };
        let fix_89: "commit it and take the repository along, end it with `snapshot`, or say `discard`";
        export { fix_89 as fix };
        let op_89: "sandbox.terminate";
        export { op_89 as op };
    }
    namespace VOLUME_BUSY {
        let of_90: "call";
        export { of_90 as of };
        let family_90: "conflict";
        export { family_90 as family };
        let retry_90: "later";
        export { retry_90 as retry };
        let meaning_90: "Another sandbox has the volume, or somebody writes to it. Nothing has changed.";
        export { meaning_90 as meaning };
        let fix_90: "end the sandbox that is told in `holders`; to read beside it, have the volume read-only";
        export { fix_90 as fix };
        let op_90: "volume.show";
        export { op_90 as op };
    }
    namespace WRONG_STATE {
        let of_91: "call";
        export { of_91 as of };
        let family_91: "state";
        export { family_91 as family };
        let retry_91: "later";
        export { retry_91 as retry };
        let meaning_91: "The object is in a state in which this is not possible.";
        export { meaning_91 as meaning };
        let fix_91: "look at the state and its next actions";
        export { fix_91 as fix };
        let op_91: "sandbox.get";
        export { op_91 as op };
    }
}
