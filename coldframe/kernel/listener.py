"""The two sides of a kernel: what it can be told to do, and whom it tells what becomes of it."""

from typing import Any, Protocol


class Listener(Protocol):
    """Is told what a kernel does. It may tell that kernel something meanwhile."""

    def on_ready(self, version: str) -> None:
        """It takes code."""
        ...

    def on_count(self, count: int) -> None:
        """It has begun with the cell of that number."""
        ...

    def on_stream(self, name: str, text: str) -> None: ...
    def on_result(self, bundle: dict[str, Any], *, is_main: bool) -> None: ...
    def on_error(self, name: str, value: str, traceback: str) -> None: ...
    def on_idle(self, *, exit_code: int | None = None, names: list[str] | None = None) -> None:
        """It is done with what it was given."""
        ...

    def on_death(self, reason: str) -> None:
        """It is gone."""
        ...

    def take_up(self) -> None:
        """After it has got ready: go on with what waits."""
        ...


class Kernel(Protocol):
    """What runs code. It tells of it by the callbacks that it was made with."""

    def start(self) -> None: ...
    def files(self) -> list[int]:
        """Descriptors to wait for."""
        ...

    def step(self) -> None:
        """Take what there is, without waiting."""
        ...

    def execute(self, code: str, *, silent: bool) -> None: ...
    def interrupt(self) -> None: ...
    def kill(self) -> None:
        """Gone when this returns."""
        ...

    def wait_s(self) -> float | None:
        """When it wants to be stepped at the latest."""
        ...

    def set_environment(self, values: dict[str, str | None]) -> str:
        """Code that sets these, and takes away those that are None."""
        ...
