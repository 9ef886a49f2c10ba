"""Volumes and secrets by the official SDK: what they are here, and what is refused because it would be something else."""

import os
from collections.abc import Iterator

import pytest
from e2b import Secret, Volume
from e2b.exceptions import NotFoundException

from coldframe.contract.policy import Role
from coldframe.control.volumes import MOST_LISTED
from tests.e2b.control_api import Api, control_api
from tests.fronts.served import Served, serve_fake


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_fake(str(tmp_path_factory.mktemp("data"))) as served:
        yield served


@pytest.fixture(scope="module")
def api(served: Served) -> Iterator[Api]:
    with control_api(served) as api:
        yield api


def test_files_of_a_volume_are_written_read_listed_and_removed(api: Api) -> None:
    volume = Volume.create("corpus", **api.params)
    at = {"api_url": api.url}
    assert volume.write_file("in/a.txt", "text", **at).size == 4
    assert volume.write_file("in/b.bin", b"\x00\xff" * 40_000, **at).path == "/in/b.bin"
    assert volume.read_file("/in/a.txt", **at) == "text"
    assert volume.read_file("in/b.bin", format="bytes", **at) == b"\x00\xff" * 40_000
    assert [one.name for one in volume.list("in", **at)] == ["a.txt", "b.bin"]
    assert [one.path for one in volume.list("/", depth=2, **at)] == ["/in", "/in/a.txt", "/in/b.bin"]
    assert [one.path for one in volume.list("/", **at)] == ["/in"]
    assert volume.make_dir("out/deep", force=True, **at).path == "/out/deep"
    with pytest.raises(NotFoundException):
        volume.make_dir("nowhere/deep", **at)
    assert volume.exists("out/deep", **at)
    assert not volume.exists("out/deep/er", **at)
    volume.remove("out", **at)
    assert not volume.exists("out", **at)
    with pytest.raises(NotFoundException):
        volume.read_file("out/x", **at)
    with pytest.raises(Exception, match="already"):
        volume.write_file("in/a.txt", "other", force=False, **at)
    assert volume.read_file("in/a.txt", **at) == "text"


def test_a_file_is_found_and_not_replaced_among_more_than_one_listing_tells(api: Api, served: Served) -> None:
    volume = Volume.create("crowded", **api.params)
    at = {"api_url": api.url}
    volume.write_file("many/zz", "last", **at)

    async def crowd() -> None:
        top = os.path.join(served.host.volumes.path(f"vol_{volume.volume_id}"), "many")
        for number in range(MOST_LISTED + 1):
            os.mknod(os.path.join(top, str(number)))

    served.call(crowd())
    assert volume.get_info("many/zz", **at).size == 4
    with pytest.raises(Exception, match="already"):
        volume.write_file("many/zz", "other", force=False, **at)
    assert volume.read_file("many/zz", **at) == "last"
    assert volume.write_file("many/new", "new", force=False, **at).size == 3


def test_volumes_are_listed_found_again_and_destroyed(api: Api, served: Served) -> None:
    volume = Volume.create("passing", **api.params)
    assert "passing" in {one.name for one in Volume.list(**api.params)}
    again = Volume.connect(volume.volume_id, **api.params)
    assert (again.name, again.token) == ("passing", volume.token)
    with served.sync_client() as client:
        assert client.volumes.get("passing").volume_id == f"vol_{volume.volume_id}"
    for name in ("", "No Name", "x" * 200, "\ud800".encode("utf-8", "replace").decode()):
        with pytest.raises(Exception, match="400"):
            Volume.create(name, **api.params)
    with pytest.raises(Exception, match="409"):
        Volume.create("passing", **api.params)
    assert Volume.destroy(volume.volume_id, **api.params)
    assert not Volume.destroy(volume.volume_id, **api.params)


def test_a_token_opens_its_volume_alone_and_ends_with_its_holder(api: Api, served: Served) -> None:
    one, other = Volume.create("one", **api.params), Volume.create("other", **api.params)

    async def member() -> tuple[str, str]:
        secret, info = served.control.tokens.create(Role.MEMBER, "passing by", form="e2b")
        return secret, info.token_id

    key, token_id = served.call(member())
    theirs = Volume.connect(one.volume_id, **{**api.params, "api_key": key})
    assert theirs.token != one.token
    assert theirs.write_file("mine", "1", api_url=api.url).size == 1
    for wrong in (
        other.token,
        str(theirs.token)[:-1] + ("1" if str(theirs.token).endswith("0") else "0"),
        "cfv_",
        api.key,
    ):
        with pytest.raises(Exception, match="401"):
            theirs.read_file("mine", api_url=api.url, token=wrong)

    async def revoke() -> None:
        from coldframe.contract.caller import Caller

        served.control.tokens.revoke(token_id, caller=Caller(token_id="test", role=Role.OWNER))

    served.call(revoke())
    with pytest.raises(Exception, match="401"):
        theirs.read_file("mine", api_url=api.url)


def test_owner_and_mode_of_files_at_rest_are_refused_and_not_passed_over(api: Api) -> None:
    volume = Volume.create("modes", **api.params)
    for more in ({"uid": 0}, {"mode": 0o600}):
        with pytest.raises(Exception, match="cannot be had here"):
            volume.write_file("a", "a", api_url=api.url, **more)
    assert volume.write_file("a", "a", api_url=api.url, uid=1000, gid=1000).uid == 1000
    with pytest.raises(Exception, match="cannot be had here"):
        volume.update_metadata("a", mode=0o600, api_url=api.url)


def test_a_secret_says_what_it_may_be_used_for(api: Api, served: Served) -> None:
    with pytest.raises(Exception, match="does not say its `base` and `variable`"):
        Secret.create("token", "value-of-it", **api.params)
    with pytest.raises(Exception, match="`colour` is no term"):
        Secret.create(
            "token", "value-of-it", metadata={"base": "https://a.example", "variable": "T", "colour": "1"}, **api.params
        )
    with pytest.raises(Exception, match="base"):
        Secret.create("token", "value-of-it", metadata={"base": "http://a.example", "variable": "T"}, **api.params)
    terms = {"base": "https://api.example.com/v1", "variable": "API_TOKEN", "methods": "GET, POST"}
    made = Secret.create("token", "value-of-it", metadata=terms, **api.params)
    assert (made.version, made.metadata["roles"]) == (1, "owner")
    with served.sync_client() as client:
        assert client.credentials.get("token").terms.methods == ("GET", "POST")
    assert "value-of-it" not in repr(made)
    assert Secret.exists("token", **api.params)
    assert Secret.update(made.secret_id, "another-value", **api.params).version == 2
    assert [one.name for one in Secret.list(**api.params).next_items()] == ["token"]
    assert Secret.destroy("token", **api.params)
    assert not Secret.exists("token", **api.params)
