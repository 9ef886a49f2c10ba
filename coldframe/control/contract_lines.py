"""Lines of a contract document, as plain JSON: a document has about two hundred, and every creation of a sandbox waits for one."""

from typing import Any

from coldframe.contract.document import NOT_VERIFIED

Line = dict[str, Any]
"""A ContractLine, as JSON."""
Lines = list[Line]


def line(line_id: str, text: str, value: Any, verified_by: str = NOT_VERIFIED) -> Line:
    return {"id": line_id, "text": text, "value": value, "verified_by": verified_by}
