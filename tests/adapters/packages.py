"""The frameworks that adapters are for: those that are not installed are told, and their tests skipped."""

import importlib
import warnings
from types import ModuleType

import pytest


def framework(name: str) -> ModuleType:
    """Imported, without a word about what its own packages warn of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            pytest.skip(f"`{name}` is not installed (extra `adapters`): {error}", allow_module_level=True)
