"""Who answers at the edge is told by host, headers and path in a fixed order, and no foreign name gets in."""

import pytest

from coldframe.contract.errors import InvalidArgument, Refused
from coldframe.fronts.edge.routing import Asked, Target, check_domains, find_target, label_of, sandbox_of

ID = "0123456789abcdef0123"
SANDBOX = f"sbx_{ID}"
DOMAINS = check_domains(("localhost", "Sandboxes.Example", "deep.sandboxes.example"))
NAMES = frozenset({"machine.example", "10.1.2.3"})
ENVD, CELLS = Target("envd", port=49983), Target("cells", port=49999)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        # the host says it all
        (Asked(f"49983-{ID}.localhost:4561", "/files"), Target("envd", SANDBOX, 49983, by_host=True)),
        (Asked(f"49999-{ID}.localhost", "/execute"), Target("cells", SANDBOX, 49999, by_host=True)),
        (Asked(f"8080-{ID}.sandboxes.example", "/sandboxes"), Target("preview", SANDBOX, 8080, by_host=True)),
        (Asked(f"8080-{ID}.deep.sandboxes.example", "/"), Target("preview", SANDBOX, 8080, by_host=True)),
        (Asked(f"8080-{ID}-00ab.SANDBOXES.example.", "/"), Target("preview", SANDBOX, 8080, by_host=True)),
        (Asked(f"8080-{ID}.localhost", "/sandboxes", has_key=True), Target("preview", SANDBOX, 8080, by_host=True)),
        (Asked("api.sandboxes.example", "/files"), Target("control")),
        (Asked("api.localhost", "/v2/sandboxes", sandbox=ID), Target("control")),
        # a key with a path of the control API, whatever else some SDKs send there
        (Asked("localhost:4561", f"/sandboxes/{ID}/connect", ID, "49983", has_key=True), Target("control")),
        (Asked("127.0.0.1:1", "/v3/templates", ID, has_key=True), Target("control")),
        # the headers of a sandbox
        (Asked("localhost", "/sandboxes", ID, "3000"), Target("preview", SANDBOX, 3000)),
        (Asked("[::1]:4561", "/files", f"{ID}-00ab"), Target("envd", SANDBOX, 49983)),
        (Asked("sandbox.sandboxes.example", "/execute", ID, "49999"), Target("cells", SANDBOX, 49999)),
        (Asked("10.1.2.3", "/health", ID, "49983"), Target("envd", SANDBOX, 49983)),
        # only the path, so the token or signature has to tell the sandbox
        (Asked("machine.example", "/process.Process/Start"), ENVD),
        (Asked("localhost", "/files"), ENVD),
        (Asked("localhost", "/contexts/abc"), CELLS),
        (Asked("localhost", "/sandboxes"), Target("control")),
        (Asked("sandboxes.example", "/"), Target("control")),
    ],
)
def test_each_request_has_one_way(asked: Asked, expected: Target) -> None:
    assert find_target(asked, DOMAINS, NAMES) == expected


@pytest.mark.parametrize(
    "host",
    ["evil.example", "", "localhost.evil.example", "sandboxes.example.evil", "notlocalhost", "10.1.2.4", "local host"],
)
def test_a_host_that_is_no_name_of_ours_is_refused(host: str) -> None:
    with pytest.raises(Refused):
        find_target(Asked(host, "/sandboxes", has_key=True), DOMAINS, NAMES)


@pytest.mark.parametrize(
    "asked",
    [
        Asked("nothing.localhost", "/"),
        Asked(f"0-{ID}.localhost", "/"),
        Asked(f"65536-{ID}.localhost", "/"),
        Asked(f"a.8080-{ID}.localhost", "/"),
        Asked("localhost", "/", "../../etc"),
        Asked("localhost", "/", ID, "٣"),
        Asked("localhost", "/", ID, "-1"),
    ],
)
def test_what_names_no_port_of_a_sandbox_is_an_error(asked: Asked) -> None:
    with pytest.raises(InvalidArgument):
        find_target(asked, DOMAINS, NAMES)


def test_a_sandbox_and_its_label_name_each_other() -> None:
    assert (label_of(SANDBOX), sandbox_of(ID), sandbox_of(f"{ID}-00000000")) == (ID, SANDBOX, SANDBOX)


@pytest.mark.parametrize("domain", ["", "127.0.0.1", "[::1]", "a b", "x/y"])
def test_an_edge_domain_is_a_name(domain: str) -> None:
    with pytest.raises(InvalidArgument):
        check_domains((domain,))
