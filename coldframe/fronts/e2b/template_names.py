"""How templates are called by E2B, and what stands for them here.

A template of E2B has an id, a name, and tags. The id of one of ours follows from its name, so that nothing has to be kept. Names
of E2B's own templates, and of images of registries, which are not fetched, stand for the nearest of ours.
"""

import hashlib
import re
from typing import NamedTuple

from coldframe.contract.caller import Caller
from coldframe.contract.errors import InvalidArgument, NotFound
from coldframe.contract.template import NAME, VERSION
from coldframe.control.control import Control

DEFAULT_TAG = "default"
"""What a name without a tag means, if there is such a tag; else it is the newest version, as everywhere here."""
STAND_INS: dict[str, tuple[str, ...]] = {
    "base": ("base", "code", "debian"),
    "code-interpreter-v1": ("code-interpreter-v1", "code-interpreter", "code", "python", "debian"),
    "code-interpreter": ("code-interpreter", "code", "python", "debian"),
}
"""Names of E2B's own templates: the first of these that there is stands for it."""
IMAGES: dict[str, tuple[str, ...]] = {
    "e2bdev/base": STAND_INS["base"],
    "e2bdev/code-interpreter": STAND_INS["code-interpreter-v1"],
    "debian": ("debian",),
    "ubuntu": ("debian",),
    "python": ("python", "code"),
    "node": ("node", "code"),
}
"""The same for images."""
_NAME = re.compile(NAME)
_TAG = re.compile(VERSION)
_ID = re.compile(r"[0-9a-f]{20}")
_IMAGE = re.compile(r"(?:docker\.io/)?(?:library/)?([a-z0-9/._-]+?)(?::([A-Za-z0-9._-]+))?(?:@sha256:[0-9a-f]{64})?")


class Named(NamedTuple):
    """A name, with a tag if one was said."""

    name: str
    tag: str | None


def id_of(name: str) -> str:
    """The id that E2B has for templates of this name."""
    return hashlib.sha256(f"template\0{name}".encode()).hexdigest()[:20]


def read_name(text: str) -> Named:
    """`name` or `name:tag`. Raises InvalidArgument."""
    name, has_tag, tag = text.strip().partition(":")
    name = name.lower()
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"`{text[:100]}` is no name for a template",
            hint="names are small letters, digits and hyphens, and begin with a letter",
            argument="name",
        )
    return Named(name, read_tag(tag) if has_tag else None)


def read_tag(text: str) -> str:
    """Raises InvalidArgument."""
    if not _TAG.fullmatch(text):
        raise InvalidArgument(
            f"`{text[:100]}` is no tag",
            hint="tags are letters, digits, dots, underscores and hyphens, 64 at most; a name before a colon is no part of one",
            argument="tags",
        )
    return text


async def name_of(control: Control, caller: Caller, text: str) -> str:
    """The name that *text* is, or whose id it is. Raises NotFound, InvalidArgument."""
    if not _ID.fullmatch(text):
        return read_name(text).name
    for name in await known_names(control, caller):
        if id_of(name) == text:
            return name
    raise NotFound(f"no template `{text[:100]}`", template=text[:100])


async def known_names(control: Control, caller: Caller) -> list[str]:
    """Of templates that there are, and of those that were announced."""
    found = dict.fromkeys(one.name for one in await control.templates.list(caller))
    found |= dict.fromkeys(control.announced_builds.names(caller))
    return list(found)


async def names_template(control: Control, caller: Caller, text: str) -> bool:
    """Whether a template of E2B goes by that, with a tag or without: one that there is, was announced, or is stood for."""
    head = text.strip().partition(":")[0].lower()
    names = {*STAND_INS, *await known_names(control, caller)}
    return head in names or (_ID.fullmatch(head) is not None and head in map(id_of, names))


async def find_template(control: Control, caller: Caller, text: str) -> str:
    """What a template of E2B, by id, name or `name:tag`, is called here: `name:version`.

    Raises:
        NotFound: there is none, and nothing that stands for it.
    """
    head, has_tag, tag = text.strip().partition(":")
    if _ID.fullmatch(head):
        head = await name_of(control, caller, head)
    named = read_name(f"{head}:{tag}" if has_tag else head)
    names = STAND_INS.get(named.name, (named.name,))
    found = await control.templates.find_first(caller, [ref for name in names for ref in _refs(name, named.tag)])
    if found is not None:
        return found.ref
    raise NotFound(
        f"no template `{text[:100]}`",
        hint="`coldframe template list` shows those that there are; `coldframe setup` builds the first",
        template=text[:100],
    )


def _refs(name: str, tag: str | None) -> list[str]:
    """What to look for, in this order."""
    if tag in (None, DEFAULT_TAG):
        return [f"{name}:{DEFAULT_TAG}", name]
    return [f"{name}:{tag}"]


class Stand(NamedTuple):
    """What a build begins from, and what is to be said of that."""

    ref: str
    note: str


class Size(NamedTuple):
    """What sandboxes of a template are to have."""

    cpus: int
    memory_mib: int


async def size_of(control: Control, caller: Caller, ref: str) -> Size | None:
    """None for a template that says nothing of it."""
    row = await control.templates.find(caller, ref)
    found = control.announced_builds.sizes(row.build_id)
    return None if found is None else Size(*found)


async def find_image(control: Control, caller: Caller, image: str) -> Stand:
    """What stands for an image. Raises InvalidArgument: nothing does, or what does is not built."""
    found = _IMAGE.fullmatch(image.strip())
    names = IMAGES.get(found[1]) if found else None
    if names is None:
        raise InvalidArgument(
            f"the image `{image[:100]}` cannot be had: images of registries are not fetched",
            hint=f"begin from a template, or from one of {', '.join(sorted(IMAGES))}, for which templates stand here; "
            "`coldframe template build --archive` makes a template of what `docker export` writes",
            argument="fromImage",
        )
    row = await control.templates.find_first(caller, [ref for name in names for ref in _refs(name, None)])
    if row is not None:
        note = f"the image {image} is not fetched: this begins from the template {row.ref}, which stands for it"
        return Stand(row.ref, note)
    raise InvalidArgument(
        f"the image `{image[:100]}` is not fetched, and the template that would stand for it is not built",
        hint=f"build it with `coldframe setup --template {names[0]}`",
        argument="fromImage",
    )
