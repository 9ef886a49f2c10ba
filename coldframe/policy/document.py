"""A YAML document as a tree that knows its lines, and nothing else of YAML.

Only scalars, lists and mappings with text keys. Anchors, aliases, tags of one's own, merge keys, duplicate keys and a
second document are refused: each is a way to say something other than what a reviewer reads.
"""

from collections.abc import Iterator

import yaml

from coldframe.contract.errors import RulesInvalid

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 12
MAX_NODES = 200_000

Scalar = str | int | float | bool | None

_TAGS = {
    "tag:yaml.org,2002:str": str,
    "tag:yaml.org,2002:int": int,
    "tag:yaml.org,2002:bool": bool,
    "tag:yaml.org,2002:null": type(None),
    "tag:yaml.org,2002:float": float,
}
_START = yaml.Mark("", 0, 0, 0, "", 0)
_TRUE, _FALSE = ("true",), ("false",)

_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1 if node.start_mark is not None else 1


class Tree:
    """One node. `value` is set for scalars."""

    __slots__ = ("_node", "line", "value")

    def __init__(self, node: yaml.Node) -> None:
        self._node = node
        self.line: int = _line(node)
        self.value: Scalar | object = _scalar(node, self.line) if isinstance(node, yaml.ScalarNode) else node

    @property
    def is_empty(self) -> bool:
        return isinstance(self._node, yaml.ScalarNode) and self.value is None

    def fault(self, message: str) -> RulesInvalid:
        return RulesInvalid(f"line {self.line}: {message}", line=self.line)

    def require_mapping(self, what: str, keys: tuple[str, ...] | None, required: tuple[str, ...] = ()) -> None:
        """Raise unless this is a mapping with text keys, all of them among `keys` if given, none twice."""
        if not isinstance(self._node, yaml.MappingNode):
            raise self.fault(f"{what} must be a mapping")
        seen: set[str] = set()
        for name, child in self.pairs():
            if keys is not None and name not in keys:
                raise child.fault(f"unknown key `{name}` in {what}; known are {', '.join(keys)}")
            if name in seen:
                raise child.fault(f"key `{name}` stands twice in {what}")
            seen.add(name)
        for name in required:
            if name not in seen:
                raise self.fault(f"{what} needs `{name}`")

    def pairs(self) -> Iterator[tuple[str, "Tree"]]:
        if not isinstance(self._node, yaml.MappingNode):
            raise self.fault("must be a mapping")
        for key, value in self._node.value:
            name = _scalar(key, _line(key)) if isinstance(key, yaml.ScalarNode) else None
            child = Tree(value)
            child.line = _line(key)
            if not isinstance(name, str):
                raise child.fault("keys must be text")
            yield name, child

    def items(self, what: str) -> list["Tree"]:
        if self.is_empty:
            return []
        if not isinstance(self._node, yaml.SequenceNode):
            raise self.fault(f"{what} must be a list")
        return [Tree(node) for node in self._node.value]

    def child(self, name: str) -> "Tree | None":
        return next((child for key, child in self.pairs() if key == name), None)

    def child_or_self(self, name: str) -> "Tree":
        return self.child(name) or self

    def text(self, name: str, *, limit: int = 200, default: str | None = None) -> str:
        child = self.child(name)
        if child is None:
            if default is None:
                raise self.fault(f"`{name}` is missing")
            return default
        if not isinstance(child.value, str):
            raise child.fault(f"`{name}` must be text")
        if len(child.value) > limit:
            raise child.fault(f"`{name}` is longer than {limit} characters")
        return child.value

    def plain(self) -> object:
        """Scalars, lists and dicts."""
        if isinstance(self._node, yaml.ScalarNode):
            return self.value
        if isinstance(self._node, yaml.SequenceNode):
            return [Tree(node).plain() for node in self._node.value]
        self.require_mapping("an operator", None)
        return {name: child.plain() for name, child in self.pairs()}


def read_document(text: str) -> Tree:
    """Parse one document. Raises RulesInvalid with `line`."""
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise RulesInvalid("line 1: the file is not UTF-8", line=1) from None
    if size > MAX_BYTES:
        raise RulesInvalid(f"line 1: the file is larger than {MAX_BYTES} bytes", line=1)
    try:
        _check_events(text)
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        raise RulesInvalid(f"line {line}: no valid YAML: {error.problem or error.context}", line=line) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        raise RulesInvalid(f"line {line}: no valid YAML: {type(error).__name__}", line=line) from None
    if node is None:
        return Tree(yaml.ScalarNode("tag:yaml.org,2002:null", "", _START))
    return Tree(node)


def _check_events(text: str) -> None:
    """Refuse what a tree must not have before it is built."""
    depth = nodes = documents = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1 if event.start_mark is not None else 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise RulesInvalid(f"line {line}: anchors and aliases are not accepted", line=line)
        if isinstance(event, yaml.NodeEvent):
            nodes += 1
            tag = getattr(event, "tag", None)
            if tag is not None and tag != "!":
                raise RulesInvalid(f"line {line}: tags are not accepted", line=line)
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH or nodes > MAX_NODES or documents > 1:
            raise RulesInvalid(f"line {line}: too deep, too many values, or more than one document", line=line)


def _scalar(node: yaml.ScalarNode, line: int) -> Scalar:
    """The value of a scalar; `yes`, `on`, dates and the like are text, as they look."""
    kind = _TAGS.get(node.tag)
    raw: str = node.value
    if kind is bool:
        return raw.lower() in _TRUE if raw.lower() in (*_TRUE, *_FALSE) else raw
    if kind is int:
        return int(raw) if raw.lstrip("-").isdecimal() and len(raw) < 19 else raw
    if kind is type(None):
        return None
    if kind is float:
        return raw
    if node.tag == "tag:yaml.org,2002:merge":
        raise RulesInvalid(f"line {line}: merge keys are not accepted", line=line)
    return raw
