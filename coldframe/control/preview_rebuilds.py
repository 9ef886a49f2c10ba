"""Makes a preview again on another sandbox, from what is on record of the first and nothing else.

Each input is looked for by its digest before anything is started, and what is fetched meanwhile is held against what was
fetched then. What is missing or is another thing by now ends it with its name: nothing similar is taken in its place. The
address moves only once the new one serves.
"""

import contextlib
from typing import Any

from coldframe.contract.caller import Caller
from coldframe.contract.errors import (
    ColdframeError,
    CredentialMissing,
    GrantMissing,
    InputChanged,
    InputMissing,
    NotFound,
    VolumeBusy,
    WrongState,
)
from coldframe.contract.preview import PreviewInputs, PreviewRebuild, PreviewRebuilt
from coldframe.contract.sandbox import SandboxInfo
from coldframe.control.acts import Acts
from coldframe.control.beginnings import spec_as_then
from coldframe.control.creation import Creation
from coldframe.control.credentials import Credentials
from coldframe.control.judged_acts import JudgedActs
from coldframe.control.ledger import Ledger
from coldframe.control.lifecycle import Lifecycle
from coldframe.control.preview_inputs import PreviewInputsTaken
from coldframe.control.preview_rows import PreviewRow
from coldframe.control.preview_states import PreviewStates
from coldframe.control.previews import Previews, given
from coldframe.control.sandboxes import Sandboxes


class PreviewRebuilds:
    def __init__(
        self,
        ledger: Ledger,
        previews: Previews,
        states: PreviewStates,
        inputs: PreviewInputsTaken,
        sandboxes: Sandboxes,
        creation: Creation,
        lifecycle: Lifecycle,
        credentials: Credentials,
        judged: JudgedActs,
    ) -> None:
        self._ledger = ledger
        self._previews = previews
        self._states = states
        self._inputs = inputs
        self._sandboxes = sandboxes
        self._creation = creation
        self._lifecycle = lifecycle
        self._credentials = credentials
        self._judged = judged
        self._acts = Acts()

    async def close(self) -> None:
        await self._acts.close()

    async def rebuild(self, caller: Caller, preview_id: str, asked: PreviewRebuild) -> PreviewRebuilt:
        """Make it again, and have its address lead there.

        Raises:
            GrantMissing, NotFound.
            WrongState: nothing is on record to make it from.
            InputMissing, InputChanged, CredentialMissing: `input` or `name` says which; nothing was left running.
            Refused: a rule is against it, or against a command of it.
            PreviewUnavailable: it was started and does not serve.
        """
        row = self._previews.own(caller, preview_id, "preview.rebuild")
        if row.inputs is None:
            raise WrongState(
                "from what it was made is not on record, so it cannot be made again",
                hint="share a port with `start` or `record`, or record what serves by `coldframe preview change --record`",
                preview_id=preview_id,
            )
        if row.revoked_at is not None:
            raise WrongState(f"preview `{preview_id}` was taken back", preview_id=preview_id)
        return await self._acts.whole(self._rebuild(caller, row, row.inputs, asked))

    async def _rebuild(
        self, caller: Caller, row: PreviewRow, inputs: PreviewInputs, asked: PreviewRebuild
    ) -> PreviewRebuilt:
        about = {"preview_id": row.preview_id, "sandbox_id": row.sandbox_id, "port": row.port, "caller": caller.name}
        before = self._sandboxes.find(row.sandbox_id)
        _, told = self._judged.allow(caller, before, "rebuild_preview", {"preview_id": row.preview_id})
        self._ledger.append("preview.rebuild_started", row.preview_id, {**about, **told})
        try:
            await self._inputs.require(inputs)
            if lacking := sorted(set(inputs.environment) - set(asked.env)):
                raise CredentialMissing(
                    f"the value of the variable `{lacking[0]}` is not kept: give it", name=lacking[0], kind="variable"
                )
            info, is_new = await self._sandbox(caller, before, inputs, asked)
            try:
                rebuilt = await self._serve(caller, row, info, inputs, asked)
            except BaseException:
                if is_new:
                    with contextlib.suppress(ColdframeError):
                        await self._lifecycle.terminate(caller, info.sandbox_id)
                raise
        except ColdframeError as error:
            facts: dict[str, Any] = {one: error.facts[one] for one in ("input", "name") if one in error.facts}
            self._ledger.append("preview.rebuild_failed", row.preview_id, {**about, "code": error.code, **facts})
            raise
        done = {"to": info.sandbox_id, "body_sha256": rebuilt.body_sha256, "body_same": rebuilt.body_same}
        self._ledger.append("preview.rebuilt", row.preview_id, {**about, **done})
        return rebuilt

    async def _sandbox(
        self, caller: Caller, before: SandboxInfo, inputs: PreviewInputs, asked: PreviewRebuild
    ) -> tuple[SandboxInfo, bool]:
        """The one that is named, if it began as that snapshot; else a new one."""
        if asked.sandbox_id is not None:
            info = self._sandboxes.get(caller, asked.sandbox_id)
            if info.spec.snapshot != inputs.snapshot_id or info.template_sha256 != inputs.template_sha256:
                raise WrongState(
                    f"sandbox `{info.sandbox_id}` did not begin from what is on record",
                    hint="have a new one made: leave `sandbox_id` out",
                    sandbox_id=info.sandbox_id,
                    snapshot=inputs.snapshot_id,
                )
            return info, False
        spec = spec_as_then(
            before.spec,
            agent_id=asked.agent_id,
            snapshot_id=inputs.snapshot_id,
            template=inputs.template,
            template_sha256=inputs.template_sha256,
            network=inputs.network,
        )
        for one in spec.volumes:
            try:
                self._creation.volumes.check(caller, spec.model_copy(update={"volumes": (one,)}))
            except (NotFound, GrantMissing) as error:
                raise _no_volume(one.name, error) from error
        try:
            return await self._creation.create(caller, spec), True
        except VolumeBusy as error:
            raise _no_volume(str(error.facts.get("volume", "")), error) from error

    async def _serve(
        self, caller: Caller, row: PreviewRow, info: SandboxInfo, inputs: PreviewInputs, asked: PreviewRebuild
    ) -> PreviewRebuilt:
        usable = {one.terms.name for one in self._credentials.usable_in(info)}
        if lacking := sorted(set(inputs.credentials) - usable):
            raise CredentialMissing(
                f"the credential `{lacking[0]}` is not to be had in the new sandbox", name=lacking[0], kind="credential"
            )
        now = {one.path: one.sha256 for one in await self._inputs.files(inputs.snapshot_id, inputs.start.cwd)}
        for one in inputs.files:
            if now.get(one.path) != one.sha256:
                raise InputChanged(f"`{one.path}` is not what it was", input=one.path)
        start = given(inputs.start, asked.env)
        try:
            await self._previews.set_up(caller, info.sandbox_id, inputs.setup, start)
        except WrongState:
            await self._require_same_packages(caller, info, inputs)
            raise
        await self._require_same_packages(caller, info, inputs)
        there = row._replace(sandbox_id=info.sandbox_id, command_id=None, started_at=None, stopped_by=None)
        there = await self._previews.start_at(caller, there, start)
        answer = await self._states.ask(there)
        self._previews.access.check_again(row.sandbox_id)
        return PreviewRebuilt(
            **{
                **dict(self._previews.info(there)),
                "status": await self._states.status(there),
                "body_sha256": answer.body_sha256,
                "body_same": None if inputs.body_sha256 is None else answer.body_sha256 == inputs.body_sha256,
            }
        )

    async def _require_same_packages(self, caller: Caller, info: SandboxInfo, inputs: PreviewInputs) -> None:
        """Raises InputChanged, with the name of the first that is another one now."""
        then = {(one.manager, one.name, one.version): one.sha256 for one in inputs.packages}
        for one in await self._inputs.packages(caller, info):
            known = then.get((one.manager, one.name, one.version))
            if known is not None and one.sha256 is not None and known != one.sha256:
                raise InputChanged(
                    f"the registry has another `{one.name}` {one.version} than it had",
                    input=one.name,
                    version=one.version,
                    sha256_before=known,
                    sha256=one.sha256,
                )
            if known is None and then and any(old[:2] == (one.manager, one.name) for old in then):
                raise InputChanged(
                    f"`{one.name}` was fetched in version {one.version}, and in another one then",
                    input=one.name,
                    version=one.version,
                )


def _no_volume(name: str, error: ColdframeError) -> InputMissing:
    return InputMissing(f"the volume `{name}` cannot be attached: {error.message}", input="volume", name=name)
