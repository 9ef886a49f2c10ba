"""What Python objects look like beside their text: the columns of a data frame, the data of a chart, a shown image.

A package is looked at only when the program has loaded it itself.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from IPython.core.formatters import BaseFormatter, JSONFormatter
from traitlets import ObjectName, Unicode


class DataFormatter(BaseFormatter):  # type: ignore[misc]  # IPython has no types here
    """A data frame as lists, column by column."""

    format_type = Unicode("e2b/data")
    print_method = ObjectName("_repr_e2b_data_")
    _return_type = (dict, str)

    def __call__(self, shown: Any) -> Any:
        pandas = sys.modules.get("pandas")
        if pandas is None or not isinstance(shown, pandas.DataFrame):
            return super().__call__(shown)
        columns = {str(name): shown.iloc[:, place].tolist() for place, name in enumerate(shown.columns)}
        return {name: [_plain(value) for value in values] for name, values in columns.items()}


class ChartFormatter(BaseFormatter):  # type: ignore[misc]
    """The data that a figure of matplotlib shows."""

    format_type = Unicode("e2b/chart")
    print_method = ObjectName("_repr_e2b_chart_")
    _return_type = (dict, str)

    def __call__(self, shown: Any) -> Any:
        figures = sys.modules.get("matplotlib.figure")
        if figures is None or not isinstance(shown, figures.Figure):
            return super().__call__(shown)
        try:
            from e2b_charts import chart_figure_to_dict

            return chart_figure_to_dict(shown)
        except Exception:  # noqa: BLE001  the picture is shown all the same
            return None


class ValueFormatter(JSONFormatter):  # type: ignore[misc]
    """Lists and dictionaries as JSON, where they have a form in it."""

    def __call__(self, shown: Any) -> Any:
        if type(shown) in (list, dict):
            try:
                return json.loads(json.dumps(shown, allow_nan=False)), {"expanded": True}
            except (TypeError, ValueError, RecursionError):
                return None
        return super().__call__(shown)


class _ImageLoader(importlib.abc.Loader):
    """Loads PIL.Image, and has images shown where a program on a desk would open a window."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _show_images(module)


class _ImageFinder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "PIL.Image":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _ImageLoader(spec.loader)
        return spec


def install(shell: Any) -> None:
    """Add all this to a shell of IPython."""
    formatters = shell.display_formatter.formatters
    parent = shell.display_formatter
    formatters["e2b/data"] = DataFormatter(parent=parent)
    formatters["e2b/chart"] = ChartFormatter(parent=parent)
    formatters["application/json"] = ValueFormatter(parent=parent)
    sys.meta_path.insert(0, _ImageFinder())


def _plain(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None  # which JSON cannot say otherwise
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if hasattr(value, "isoformat"):
        try:
            return value.isoformat()
        except ValueError:  # of what stands for no time at all
            return None
    return str(value)


def _show_images(module: ModuleType) -> None:
    from IPython.display import display

    plain_save = module.Image.save

    def save(image: Any, fp: Any, format: str | None = None, **options: Any) -> None:  # noqa: A002  PIL's own name
        plain_save(image, fp, format, **options)
        if isinstance(fp, str) and not sys._getframe(1).f_globals.get("__name__", "").startswith("matplotlib."):
            display(image)  # a figure that is saved is shown by its own command

    def show(image: Any, title: str | None = None) -> None:
        display(image)

    module.Image.save, module.Image.show = save, show
