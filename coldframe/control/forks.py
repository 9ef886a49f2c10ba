"""Forks: a new sandbox whose files begin as those of another are now, or as a snapshot.

Files and their label go along, a system of its own with them, and nothing else: no token, session, credential, network or limit. Those are the new one's
own, by the rules for its agent.
"""

import hashlib

from coldframe.contract.caller import Caller
from coldframe.contract.errors import InvalidArgument
from coldframe.contract.sandbox import SandboxInfo, SandboxSpec
from coldframe.contract.snapshot import AUTOMATIC_S, SnapshotRequest
from coldframe.control.creation import Beside, Creation, writes_nothing
from coldframe.control.judged_acts import JudgedActs
from coldframe.control.sandbox_specs import check_spec
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.snapshots import Snapshots


class Forks:
    """The act; its right is `sandbox.create`. Of a snapshot it is `Creation.create` with that in the spec."""

    def __init__(self, snapshots: Snapshots, sandboxes: Sandboxes, creation: Creation, judged: JudgedActs) -> None:
        self._judged = judged
        self._snapshots = snapshots
        self._sandboxes = sandboxes
        self._creation = creation

    async def fork(
        self,
        caller: Caller,
        sandbox_id: str,
        spec: SandboxSpec,
        *,
        idempotency_key: str | None = None,
        beside: Beside = writes_nothing,
    ) -> SandboxInfo:
        """Take a snapshot of a sandbox, which is kept for a day, and make a new one of it, as *spec* says: on the same
        template, if it says nothing about that. *beside* is as for creation.

        Raises:
            InvalidArgument: the spec names a snapshot of its own.
            GrantMissing, NotFound, Refused, WrongState, LimitReached: no snapshot can be taken.
            Conflict: the agent is there already. And what else creation raises.
        """
        if spec.snapshot is not None:
            raise InvalidArgument(
                "a fork of a sandbox begins as what that is now, and not as a snapshot",
                hint="create a sandbox with `snapshot` to begin as one",
                argument="snapshot",
            )
        self._judged.require_grant(caller, "sandbox.create", "fork_sandbox", sandbox_id)
        check_spec(caller, spec)
        if not spec.model_fields_set & {"template", "profile"}:  # a computer, if that is one
            source = self._sandboxes.get(caller, sandbox_id).spec
            spec = SandboxSpec.model_validate({**spec.model_dump(exclude_unset=True), "template": source.template})
        key = None
        if idempotency_key is not None:  # what is taken on the way is known again by it as well
            key = f"fork-{hashlib.sha256(idempotency_key.encode()).hexdigest()}"
        asked = SnapshotRequest(name=f"fork of {sandbox_id}", expires_in_s=AUTOMATIC_S)
        taken = await self._snapshots.take(caller, sandbox_id, asked, idempotency_key=key, reason="automatic")
        spec = spec.model_copy(update={"snapshot": taken.snapshot_id})
        return await self._creation.create(caller, spec, idempotency_key=idempotency_key, beside=beside)
