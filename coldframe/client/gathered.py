"""A recipe together with the files that it takes from the disk of whoever builds. Costs nothing to import."""

from __future__ import annotations

from typing import NamedTuple

from coldframe.client import models


class Gathered(NamedTuple):
    """A recipe, and where its bytes are."""

    recipe: models.Recipe
    sources: dict[str, str | bytes]
    """Digest to a path on this disk, or to the bytes themselves."""
