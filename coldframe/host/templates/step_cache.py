"""What steps of recipes have come to: `<data>/templates/steps/KEY.json`, so that the same step upon the same layers is not
carried out again. A key is the digest of all that a step follows from; what is on record of it is the layer it has left."""

import contextlib
import json
import os
import re
import time
from collections.abc import Sequence
from typing import Any

from coldframe.contract.template import EnvStep, FilesStep, Package, Recipe, RunStep, Step, UnpackStep, digest_of
from coldframe.host.templates.sealed_layers import write_whole

KEPT_S = 30 * 86_400
"""After it was used last."""
_FORM = 1
"""To be raised whenever steps are carried out differently, so that what was made before is made anew."""
_KEY = re.compile(r"([0-9a-f]{64})\.json")


def key_of(recipe: Recipe, step: Step, *, base: str | None, layers: Sequence[str], variables: dict[str, str]) -> str:
    """*layers* are those so far, from the lowest up, and *variables* those of the steps before."""
    told = step.model_dump(mode="json")
    if isinstance(step, RunStep):
        del told["timeout_s"]
    if isinstance(step, FilesStep):
        for file in told["files"]:
            del file["source"]
    if isinstance(step, UnpackStep):
        del told["source"]
    locked: list[list[str]] = []
    if not isinstance(step, (FilesStep, EnvStep)) and recipe.locked is not None:
        locked = sorted(_fields(one) for one in recipe.locked)
    follows: list[Any] = [_FORM, base, list(layers), told, variables]
    follows += [recipe.network, recipe.locked is not None, locked]
    return digest_of([*follows, "home"] if recipe.home else follows)


def _fields(package: Package) -> list[str]:
    return [package.manager, package.name, package.version, package.architecture]


class StepCache:
    """Of one machine. Methods block, and may be called in any thread or process."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find(self, key: str) -> tuple[str | None] | None:
        """The layer that the step has left, which is None if it has changed nothing; None if it is not known. It counts as
        used."""
        path = self._path(key)
        try:
            with open(path, encoding="ascii") as source:
                layer = json.load(source)["layer"]
            os.utime(path)
        except (FileNotFoundError, ValueError, KeyError):
            return None
        return (layer,)

    def keep(self, key: str, layer: str | None) -> None:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        write_whole(self._path(key), json.dumps({"layer": layer}))

    def layers(self) -> set[str]:
        """All that are on record."""
        found = set()
        for name in self._names():
            with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
                with open(os.path.join(self._folder, name), encoding="ascii") as source:
                    found.add(json.load(source)["layer"])
        return found - {None}

    def forget_unused(self) -> None:
        """What nobody has used for KEPT_S, and what was being written by a process that was killed."""
        limit = time.time() - KEPT_S
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._folder):
                path = os.path.join(self._folder, name)
                with contextlib.suppress(FileNotFoundError):
                    changed = os.stat(path).st_mtime
                    if changed < limit or (_KEY.fullmatch(name) is None and changed < time.time() - 3600):
                        os.unlink(path)

    def _names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._folder) if _KEY.fullmatch(name)]
        except FileNotFoundError:
            return []

    def _path(self, key: str) -> str:
        return os.path.join(self._folder, f"{key}.json")
