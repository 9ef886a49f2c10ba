"""What can be wrong with recipes, templates, and what these start."""

from typing import ClassVar

from coldframe.contract.error_families import (
    Family,
    InvalidArgument,
    Retry,
    Unfit,
)


class RecipeInvalid(InvalidArgument):
    """A recipe or Dockerfile cannot be read as one. Nothing was built."""

    code = "RECIPE_INVALID"
    status = 422
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "input"
    hint = "correct the recipe where the message says"
    offer = ("template.list", "lists the templates that there are", {})


class BuildFailed(Unfit):
    """A step of a recipe ended badly. No template was made; the steps before it are kept for the next build."""

    code = "TEMPLATE_BUILD_FAILED"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "input"
    hint = "look at the log of the build, correct the step that is named, and build again: the steps before it are kept"
    offer = ("template.log", "shows the log of the build", {})


class DependencyMissing(Unfit):
    """A version of a package that was asked for is not to be had. No other version was taken in its place."""

    code = "DEPENDENCY_MISSING"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "input"
    hint = "ask for one of the versions in `nearest`, or build without the lock"
    offer = ("template.log", "shows the log of the build", {})


class TemplateChanged(Unfit):
    """A template on disk is not what was built. Nothing was started from it."""

    code = "TEMPLATE_CHANGED"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "state"
    hint = "remove the template and build it again: somebody has changed its files on this machine"
    offer = ("template.list", "lists the templates that there are", {})


class TemplateWithdrawn(Unfit):
    """Somebody took the template back. Nothing new starts from it."""

    code = "TEMPLATE_WITHDRAWN"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "state"
    hint = "use another version; `why` says what was wrong with this one"
    offer = ("template.list", "lists the templates that there are", {})


class TemplateCheckFailed(Unfit):
    """The check that was to vouch for a template did not pass in a fresh sandbox of it. It is marked as before."""

    code = "TEMPLATE_CHECK_FAILED"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "state"
    hint = "look at `stdout` and `stderr`; correct the check, or the template, and mark it then"
    offer = ("template.show", "shows what is in the template", {})


class StartNotReady(Unfit):
    """What the template starts did not come to serve in time, or ended. The sandbox was taken down again."""

    code = "START_NOT_READY"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "state"
    hint = "look at `log`, correct the start command or its ready check, and build the template again"
    offer = ("template.show", "shows the start command and its check", {})
