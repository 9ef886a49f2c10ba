"""Promise: a credential is for exactly the requests that its terms name, in whatever way a server could read them."""

from typing import Any

import pytest
from pydantic import ValidationError

from coldframe.contract.credential import CredentialTerms, NewCredential
from coldframe.policy.credentials import ServiceInvalid, Use, allows_path, find_misuse, is_in_place, read_service

USE = Use("api.example.com", 443, "https", True, "GET", "/v1/items/7", "authorization: Bearer {secret}")


def terms(**changes: Any) -> CredentialTerms:
    given = {
        "name": "crm",
        "base": "https://api.example.com/v1",
        "variable": "CRM_TOKEN",
        "paths": ["/items/*"],
        "agents": ["ada"],
    }
    return CredentialTerms.model_validate(given | changes)


@pytest.mark.req("T3.52")
@pytest.mark.parametrize(
    "changed",
    [
        {"name": "api.example.org"},
        {"name": None},
        {"port": 8443},
        {"scheme": "http"},
        {"is_verified": False},
        {"method": "POST"},
        {"method": "WEBSOCKET"},
        {"path": "/v1/items"},
        {"path": "/v1/items/7/8"},
        {"path": "/v1/items/7%2F8"},
        {"path": "/v2/items/7"},
        {"path": "/V1/items/7"},
        {"path": "/v1/other;/items/7"},
        {"path": ""},
        {"path": "/v1/items/" + "x" * 40_000},
        {"header": "x-key: Bearer {secret}"},
        {"header": "authorization: Basic x:{secret}"},
        {"header": "authorization: Bearer {secret}x"},
        {"header": "authorization: Bearer {secret}{secret}"},
        {"header": ""},
    ],
)
def test_whatever_differs_from_the_terms_is_another_use(changed: dict[str, Any]) -> None:
    assert find_misuse(terms(), USE) is None
    assert find_misuse(terms(), USE._replace(**changed)) is not None


def test_head_goes_with_get_and_with_nothing_else() -> None:
    assert find_misuse(terms(), USE._replace(method="HEAD")) is None
    assert find_misuse(terms(methods=["POST"]), USE._replace(method="HEAD")) is not None


@pytest.mark.parametrize(
    ("pattern", "fits", "fails"),
    [
        ("/**", ["/v1", "/v1/", "/v1/a", "/v1/a/b%2Fc"], ["/v1beta", "/", "/v2/a"]),
        ("/items/*", ["/v1/items/7", "/v1/items/"], ["/v1/items", "/v1/items/7/x"]),
        ("/items/*/notes", ["/v1/items/7/notes"], ["/v1/items/notes", "/v1/items/7/notes/1", "/v1/items/7/8/notes"]),
        ("/a**z", ["/v1/az", "/v1/a/b/z"], ["/v1/a"]),
        ("/a.b", ["/v1/a.b"], ["/v1/axb"]),
        ("/items/**", ["/v1/items", "/v1/items/7/x"], ["/v1/itemsx"]),
    ],
)
def test_patterns_of_paths(pattern: str, fits: list[str], fails: list[str]) -> None:
    own = terms(paths=[pattern])
    assert [path for path in fits if not allows_path(own, path)] == []
    assert [path for path in fails if allows_path(own, path)] == []


@pytest.mark.parametrize(
    ("template", "header", "fits"),
    [
        ("Authorization: Bearer {secret}", "authorization: bearer {secret}", True),
        ("Authorization: token {secret}", "authorization: Bearer {secret}", False),
        ("X-Api-Key: {secret}", "x-api-key: {secret}", True),
        ("X-Api-Key: {secret}", "x-api-key: a{secret}", False),
        ("Authorization: Basic {secret}", "authorization: Basic anybody:{secret}", True),
        ("Authorization: Basic {secret}", "authorization: Basic {secret}:", False),
        ("Authorization: Basic {secret}", "authorization: Basic a:b:{secret}", False),
        ("Authorization: Basic {secret}", "authorization: Basic {secret}", True),
        ("Authorization: Basic alice:{secret}", "authorization: Basic alice:{secret}", True),
        ("Authorization: Basic alice:{secret}", "authorization: Basic bob:{secret}", False),
        ("Authorization: Basic {secret}:", "authorization: Basic {secret}:", True),
        ("Authorization: Basic {secret}", "authorization: Bearer {secret}", False),
    ],
)
def test_the_place_of_a_secret(template: str, header: str, fits: bool) -> None:
    assert is_in_place(template, header) is fits


@pytest.mark.parametrize(
    "changes",
    [
        {"base": "http://api.example.com"},
        {"base": "https://api.example.com?x=1"},
        {"base": "https://user@api.example.com"},
        {"base": "https://api.example.com:0"},
        {"base": "api.example.com"},
        {"header": "Authorization: Bearer x"},
        {"header": "Authorization: {secret}{secret}"},
        {"header": "Host: {secret}"},
        {"header": "Transfer-Encoding: {secret}"},
        {"header": "Bad Name: {secret}"},
        {"header": "X: {secret}\r\nY: 1"},
        {"variable": "PATH"},
        {"variable": "LD_PRELOAD"},
        {"variable": "lower"},
        {"methods": ["get"]},
        {"methods": []},
        {"paths": ["items"]},
        {"paths": ["/a/../b"]},
        {"paths": ["/a***b"]},
        {"paths": ["//a"]},
        {"paths": ["/a?b"]},
        {"paths": []},
        {"name": "Has Blanks"},
        {"budget": 0},
        {"label": "ODD"},
        {"agents": ["Not An Id"]},
        {"other": 1},
    ],
)
def test_terms_that_could_not_hold_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        terms(**changes)


@pytest.mark.parametrize("base", ["https://10.0.0.1", "https://localhost", "https://a.b-.c", "https://a.example/x;y"])
def test_an_address_of_no_service_is_refused(base: str) -> None:
    with pytest.raises(ServiceInvalid):
        read_service(base)


@pytest.mark.parametrize(
    "secret", ["short", "x" * 5000, "with\nline", " &leading-blank", "trailing-blank& ", "café-café", "cfh_" + "0" * 48]
)
def test_a_secret_that_could_not_be_kept_out_of_answers_is_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(ValidationError) as refused:
        NewCredential.model_validate({**terms().model_dump(), "secret": secret})
    told = refused.value.errors(include_input=False, include_context=False, include_url=False)
    assert secret not in str(told)
