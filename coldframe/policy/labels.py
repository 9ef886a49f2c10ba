"""Arithmetic of labels: join, parse, and the one direction in which data may flow.

Labels are a total order, so join is the maximum and there is nothing else to know. A label is never taken from
content: it comes from rules, profiles and people.
"""

from coldframe.contract.policy import Label


def join(*labels: Label) -> Label:
    """The highest of the labels; PUBLIC of none. Never lower than any argument."""
    highest, rank = Label.PUBLIC, 0
    for label in labels:
        known = parse(label)
        if known.rank > rank:
            highest, rank = known, known.rank
    return highest


def parse(value: object) -> Label:
    """The label that a stored or received value means. Whatever is no exact name of a label is RESTRICTED."""
    if isinstance(value, Label):
        return value
    if isinstance(value, str):
        for label in Label:
            if label.value == value:
                return label
    return Label.RESTRICTED


def may_flow(source: Label, target: Label) -> bool:
    """Whether data of `source` may go to a place that is cleared up to `target`. An unknown target is PUBLIC."""
    cleared = target if isinstance(target, Label) else Label.PUBLIC
    return parse(source).rank <= cleared.rank
