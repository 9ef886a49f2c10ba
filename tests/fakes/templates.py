"""The templates of the fake: builds that carry nothing out, and say what real ones say."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from datetime import UTC, datetime

from coldframe.contract.errors import (
    BuildFailed,
    HostUnreachable,
    InvalidArgument,
    NotFound,
    TemplateChanged,
    WrongState,
)
from coldframe.contract.snapshot import WorkspacePoint
from coldframe.contract.template import (
    BuildEvent,
    BuildLine,
    BuildOrder,
    Package,
    PipStep,
    RunStep,
    Settings,
    StepEnd,
    TemplateFacts,
    describe_step,
    template_digest,
)


class FakeTemplates:
    """`Templates` in memory. The command `fail` fails, `vanish` takes the daemon along, `wait` waits until `go` is set, `say N` says N lines."""

    def __init__(self, check_reachable: Callable[[], None]) -> None:
        self._check_reachable = check_reachable
        self.known: dict[str, TemplateFacts] = {}
        self.inputs: dict[str, bytes] = {}
        self.changed: set[str] = set()
        """Digests whose bytes somebody has changed."""
        self.on: dict[str, str] = {}
        """Workspace to digest."""
        self.go = asyncio.Event()
        self.made, self.may_tell = asyncio.Event(), asyncio.Event()
        """A template is there; and whoever has it built may be told of it."""
        self.may_tell.set()
        self.may_end = asyncio.Event()
        """A build whose box has to be ended takes as long."""
        self.may_end.set()
        self.looked: list[str] = []
        """Digests of which the facts were asked."""
        self.orders: list[BuildOrder] = []
        self.left = 0
        """Builds that were left before their end."""

    def add_setup(self, name: str = "debian") -> TemplateFacts:
        """One that `coldframe setup` has built."""
        digest = hashlib.sha256(f"{name}{len(self.known)}".encode()).hexdigest()
        facts = TemplateFacts(
            digest=digest,
            name=name,
            version=None,
            origin="setup",
            base=None,
            created_at=datetime(2026, 1, 2, tzinfo=UTC),
            recipe_sha256=None,
            settings=Settings(),
            packages=(Package(manager="apt", name="bash", version="5.2", architecture="amd64"),),
            bytes=1000,
        )
        self.known[digest] = facts
        return facts

    async def missing_inputs(self, digests: Sequence[str]) -> tuple[str, ...]:
        self._check_reachable()
        return tuple(one for one in digests if one not in self.inputs)

    async def put_input(self, sha256: str, content: AsyncIterable[bytes], *, most_bytes: int) -> int:
        data = b"".join([part async for part in content])
        if hashlib.sha256(data).hexdigest() != sha256:
            raise InvalidArgument("the bytes have another digest")
        self.inputs[sha256] = data
        return len(data)

    async def reached(self) -> tuple[str, ...]:
        return ()

    async def build(self, order: BuildOrder) -> AsyncGenerator[BuildEvent, None]:
        self._check_reachable()
        self.orders.append(order)
        ended = False
        try:
            for number, step in enumerate(order.recipe.steps, 1):
                yield BuildLine(step=number, stream="build", text=describe_step(step))
                said = step.command if isinstance(step, RunStep) else ""
                command = said if isinstance(said, str) else said[-1]
                if command == "fail":
                    yield BuildLine(step=number, stream="stderr", text="it does not work")
                    raise BuildFailed(f"step {number} ended with exit code 3", step=number, log="it does not work\n")
                if command == "vanish":
                    raise HostUnreachable("the host daemon does not answer")
                if command == "wait":
                    await self.go.wait()
                if command.startswith("say "):
                    for index in range(int(command.split()[1])):
                        yield BuildLine(step=number, stream="stdout", text=f"line {index}")
                yield StepEnd(step=number, was_cached=False, duration_s=0.5)
            facts = self._facts(order)
            self.known.setdefault(facts.digest, facts)
            self.made.set()
            await self.may_tell.wait()
            ended = True
            yield self.known[facts.digest]
        except BuildFailed:
            ended = True
            raise
        finally:
            await self.may_end.wait()
            self.left += not ended

    def _facts(self, order: BuildOrder) -> TemplateFacts:
        packages = self.known[order.base].packages if order.base is not None else ()
        for step in order.recipe.steps:
            if isinstance(step, PipStep):
                packages += tuple(Package(manager="pip", name=one, version="1") for one in step.packages)
        layers = tuple(step.model_dump_json() for step in order.recipe.steps)
        settings = order.recipe.settings
        return TemplateFacts(
            digest=template_digest(order.base, layers, settings),
            name=order.recipe.name,
            version=order.recipe.version,
            origin="snapshot" if order.recipe.snapshot else "archive" if order.recipe.archive else "recipe",
            base=order.base,
            created_at=datetime(2026, 1, 2, tzinfo=UTC),
            recipe_sha256=order.recipe.sha256,
            settings=settings,
            packages=packages,
            bytes=10,
            build_id=order.build_id,
        )

    async def digests(self) -> set[str]:
        self._check_reachable()
        return set(self.known)

    async def get(self, digest: str) -> TemplateFacts:
        self.looked.append(digest)
        if digest not in self.known:
            raise NotFound(f"no template `{digest}` on this machine")
        return self.known[digest]

    async def begun(self, workspace: WorkspacePoint) -> str | None:
        return self.on.get(place_of(workspace))

    async def verify(self, digest: str) -> None:
        if digest in self.changed:
            raise TemplateChanged(f"template `{digest}` is not what was built")

    async def remove(self, digest: str) -> None:
        users = [name for name, one in self.on.items() if one == digest]
        if users:
            raise WrongState(f"{len(users)} workspaces stand on it", used_by=users)
        self.known.pop(digest, None)


def place_of(workspace: WorkspacePoint) -> str:
    return workspace.agent_id or f"background/{workspace.session_id}"
