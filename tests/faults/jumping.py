"""An installation whose clock can be set while it runs."""

import os
import shutil
import struct
from pathlib import Path

from tests.chaos.storm import KillableInstallation
from tests.installation import CHECKOUT

CLOCK = Path(__file__).with_name("jumping_clock.py")


class JumpingInstallation(KillableInstallation):
    """Its programs are those of the checkout, by way of a directory in which their clock lies beside them."""

    def __init__(self, **environment: str) -> None:
        super().__init__(**environment)
        os.mkdir(self.checkout, 0o755)
        os.symlink(CHECKOUT / "coldframe", self.checkout / "coldframe")
        shutil.copy(CLOCK, self.checkout / "sitecustomize.py")
        for name in ("clock", "sitecustomize.py"):
            (self.checkout / name).touch()
            (self.checkout / name).chmod(0o644)
        self.jump(0)

    @property
    def checkout(self) -> Path:
        return Path(self.folder, "programs")

    def jump(self, ahead_s: float) -> None:
        """Let the clock of all that runs here be that far from the machine's own, from now on."""
        with open(self.checkout / "clock", "r+b" if (self.checkout / "clock").stat().st_size else "wb") as file:
            file.write(struct.pack("d", ahead_s))
