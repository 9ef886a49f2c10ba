"""What vouches for a template: a person, and a check that passed in a fresh sandbox of it."""

import contextlib
from collections.abc import Callable
from datetime import datetime

from coldframe.contract.caller import Caller
from coldframe.contract.errors import ColdframeError, TemplateCheckFailed
from coldframe.contract.sandbox import SandboxSpec
from coldframe.contract.template import KnownGood, TemplateRecord
from coldframe.control.creation import Creation
from coldframe.control.gate import Gate
from coldframe.control.lifecycle import Lifecycle
from coldframe.control.rights import require
from coldframe.control.templates import Templates

KEPT_CHARACTERS = 4096
"""Of the end of each stream, in the error."""


class TemplateChecks:
    """Their right is `template.mark`, which no agent has."""

    def __init__(
        self, templates: Templates, creation: Creation, lifecycle: Lifecycle, gate: Gate, clock: Callable[[], datetime]
    ) -> None:
        self._templates = templates
        self._creation = creation
        self._lifecycle = lifecycle
        self._gate = gate
        self._clock = clock

    async def mark_known_good(
        self, caller: Caller, ref: str, check: str, *, timeout_s: float, network: str | None = None
    ) -> TemplateRecord:
        """Run *check*, a line for bash, in a fresh sandbox of the template, and mark it if that ends with 0.

        Raises:
            GrantMissing, NotFound: not by this caller. TemplateWithdrawn, and what else creation raises.
            TemplateCheckFailed: it did not pass; the template is as before.
        """
        require(caller, "template.mark")
        digest = await self._templates.usable(ref)
        spec = SandboxSpec(background=True, ephemeral=True, template=f"sha256:{digest}", network=network)
        info = await self._creation.create(caller, spec)
        try:
            arguments = {"command": check, "timeout_s": timeout_s}
            result = await self._gate.call(caller, info.sandbox_id, "run_command", arguments)
        finally:
            with contextlib.suppress(ColdframeError):
                await self._lifecycle.terminate(caller, info.sandbox_id)
        if result.error is not None or result.value.get("exit_code") != 0:
            value = result.value
            how = f"exit code {value.get('exit_code')}" if result.error is None else result.error["message"]
            raise TemplateCheckFailed(
                f"the check did not pass: {how}",
                stdout=str(value.get("stdout", ""))[-KEPT_CHARACTERS:],
                stderr=str(value.get("stderr", ""))[-KEPT_CHARACTERS:],
                exit_code=value.get("exit_code"),
                sandbox_id=info.sandbox_id,
            )
        known = KnownGood(
            by=caller.name,
            check=check,
            at=self._clock(),
            sandbox_id=info.sandbox_id,
            command_id=str(result.value["command_id"]),
        )
        return self._templates.mark(caller, digest, known)
