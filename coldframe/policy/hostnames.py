"""Host names in the one form in which they are compared: lower case, letters, digits, hyphen and underscore, no dot at the end.

Other scripts are accepted as A-labels only (`xn--…`): to translate them would need tables that differ between versions,
and then what a rule names need not be what a program asks for. A text that some program could take for an address is no
name, and neither is a single label, which resolvers complete from a list of their own.
"""

import re

from coldframe.policy.addresses import looks_like_address

MAX_NAME_CHARACTERS = 253
"""What fits into 255 bytes on the wire (RFC 1035, 2.3.4)."""
MAX_LABEL_CHARACTERS = 63
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")


class NameInvalid(Exception):
    """Why a text is no host name; whoever asked adds where it stood."""


def read_name(text: str) -> str:
    """The name that a text means, or NameInvalid. Reading the answer again gives the same."""
    if not text.isascii():
        raise NameInvalid("other letters than those of ASCII are written as A-labels (`xn--…`)")
    name = text.removesuffix(".").lower()
    if not name or len(name) > MAX_NAME_CHARACTERS:
        raise NameInvalid(f"a name has 1 to {MAX_NAME_CHARACTERS} characters")
    if looks_like_address(text):
        raise NameInvalid("it could be taken for an address")
    labels = name.split(".")
    for label in labels:
        if _LABEL.fullmatch(label) is None:
            raise NameInvalid(
                f"a label has 1 to {MAX_LABEL_CHARACTERS} letters, digits, underscores and hyphens, and no hyphen at its ends"
            )
        if label.startswith("xn--") and not _is_a_label(label):
            raise NameInvalid("an A-label does not decode to what it stands for")
    if len(labels) < 2:
        raise NameInvalid("a single label is completed by each resolver in its own way")
    if labels[-1] == "localhost":
        raise NameInvalid("`localhost` is this machine")
    return name


def parents_of(name: str) -> list[str]:
    """Names above one, the nearest first: `org` last of `a.example.org`."""
    labels = name.split(".")
    return [".".join(labels[start:]) for start in range(1, len(labels))]


def _is_a_label(label: str) -> bool:
    """Whether it is the punycode of something that needs it, in the only spelling."""
    encoded = label.removeprefix("xn--")
    try:
        decoded = encoded.encode("ascii").decode("punycode")
        spelled = decoded.encode("punycode").decode("ascii")
    except UnicodeError:
        return False
    return not decoded.isascii() and decoded.isprintable() and spelled == encoded
