"""The published schema is valid, complete, and tells no secret."""

from typing import Any

import jsonschema
import pytest

from coldframe.contract.tool import ToolResult
from coldframe.tools.registry import all_tools
from tests.fronts.served import Served


@pytest.fixture(scope="module")
def schema(served: Served) -> dict[str, Any]:
    answer: dict[str, Any] = served.json("GET", "/openapi.json", token="")[1]
    return answer


def references(node: object) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*(references(value) for value in node.values()))
    if isinstance(node, list):
        return set().union(*(references(value) for value in node))
    return set()


def test_every_reference_resolves(schema: dict[str, Any]) -> None:
    for reference in references(schema):
        found: Any = schema
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]
        assert isinstance(found, dict)


def test_every_operation_has_an_id_of_its_own_a_summary_and_the_error_form(schema: dict[str, Any]) -> None:
    operations = [operation for path in schema["paths"].values() for operation in path.values()]
    ids = [operation["operationId"] for operation in operations]
    assert len(set(ids)) == len(ids)
    assert schema["openapi"].startswith("3.1")
    for operation in operations:
        assert operation["summary"]
        assert "default" in operation["responses"] and "422" not in operation["responses"]


def test_every_path_parameter_is_declared(schema: dict[str, Any]) -> None:
    for path, methods in schema["paths"].items():
        named = {part[1:-1] for part in path.split("/") if part.startswith("{")}
        for operation in methods.values():
            declared = {one["name"] for one in operation.get("parameters", []) if one["in"] == "path"}
            assert declared == named, path


def test_each_tool_has_a_path_with_its_own_arguments(schema: dict[str, Any]) -> None:
    for name, spec in all_tools().items():
        operation = schema["paths"][f"/v1/sandboxes/{{sandbox_id}}/tools/{name}"]["post"]
        reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        assert reference.endswith(spec.arguments.__name__)


def test_component_schemas_are_json_schemas(schema: dict[str, Any]) -> None:
    for component in schema["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(component)


def test_a_real_result_fits_the_schema(served: Served, schema: dict[str, Any]) -> None:
    with served.sync_client() as client, client.sandboxes.create("schema") as sandbox:
        path = f"/v1/sandboxes/{sandbox.id}/tools/run_command"
        result = served.json("POST", path, {"command": "echo hi"})[1]
        failed = served.json("POST", path, {"command": 1})[1]
    root = {"$ref": "#/components/schemas/ToolResult", "components": schema["components"]}
    jsonschema.validate(result, root)
    jsonschema.validate(failed, {"$ref": "#/components/schemas/Error", "components": schema["components"]})
    assert ToolResult.model_validate(result).value["exit_code"] == 0
