"""What registries say of packages is read strictly, and told to clients so that all files are had from one place."""

import base64
import contextlib
import hashlib
import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldframe.host.egress.packages import debian, npm, python
from coldframe.host.egress.packages import listing as listings
from coldframe.host.egress.packages.cache import Digest
from coldframe.host.egress.packages.fetch import Page, RegistryFailed, read_page
from coldframe.host.egress.packages.listing import Listing, ListingInvalid, Wanted, read_listing, write_listing
from coldframe.policy.network_rules import Scheme

ONE, TWO = "1" * 64, "2" * 64
PAGE = "https://mirror.example.com/simple/a-b/"
DEMO = Wanted("a-b")


def told_by_python(*files: dict[str, Any], kind: str = python.JSON_TYPE) -> Listing:
    told = {"meta": {"api-version": "1.0"}, "name": "a-b", "files": files}
    return python.read_answer(json.dumps(told).encode(), kind, PAGE, DEMO)


def wheel(**more: Any) -> dict[str, Any]:
    return {"filename": "a_b-1.0-py3-none-any.whl", "url": "../../files/x.whl", "hashes": {"sha256": ONE}, **more}


# -- paths -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/a-b/", Wanted("a-b")),
        ("/A_.b", Wanted("a-b")),
        ("/a-b/a_b-1.0%2Blocal-py3-none-any.whl", Wanted("a-b", "a_b-1.0+local-py3-none-any.whl")),
        ("/", None),
        ("/-a/", None),
        ("/a/b/c", None),
        ("/a%2Fb/", None),
        ("/a/.hidden", None),
        ("/" + "a" * 101 + "/", None),
        ("/a/x%20y", None),
    ],
)
def test_paths_of_a_simple_index_are_projects_and_files(path: str, wanted: Wanted | None) -> None:
    assert python.read_path(path) == wanted


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/left", Wanted("left")),
        ("/@a/b", Wanted("@a/b")),
        ("/@a%2Fb", Wanted("@a/b")),
        ("/left/1.2.3-beta.1+x", Wanted("left", version="1.2.3-beta.1+x")),
        ("/@a/b/-/b-1.0.0.tgz", Wanted("@a/b", "b-1.0.0.tgz")),
        ("/@a/b/-/@a/b-1.0.0.tgz", Wanted("@a/b", "b-1.0.0.tgz")),
        ("/", None),
        ("/-/ping", None),
        ("/-/v1/search", None),
        ("/@a", None),
        ("/left/-/left.zip", None),
        ("/left/1.0/x", None),
        ("/.left", None),
    ],
)
def test_paths_of_npm_are_packages_versions_and_archives(path: str, wanted: Wanted | None) -> None:
    assert npm.read_path(path) == wanted


HASHED = f"dists/bookworm/main/binary-amd64/by-hash/SHA256/{ONE}"


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/dists/bookworm/InRelease", Wanted("dists/bookworm/InRelease")),
        ("/dists/x/main/binary-amd64/Packages.xz", Wanted("dists/x/main/binary-amd64/Packages.xz")),
        (f"/{HASHED}", Wanted(HASHED.rpartition("/")[0], ONE)),
        ("/pool/main/h/hello/hello_2.10-3_amd64.deb", Wanted("pool/main/h/hello", "hello_2.10-3_amd64.deb", "2.10-3")),
        ("/pool/g++_4%3a12.2_all.deb", Wanted("pool", "g++_4:12.2_all.deb", "4:12.2")),
        ("/", None),
        ("/dists/", None),
        ("/dists/../InRelease", None),
        ("/dists/bookworm/secrets.txt", None),
        (f"/dists/by-hash/SHA256/{ONE}.x", None),
        ("/pool/hello_2.10-3.deb", None),
        ("/pool/.hidden/hello_2.10-3_amd64.deb", None),
        ("/" + "a/" * 9 + "InRelease", None),
        ("/" + "a" * 90 + "/" + "b" * 90 + "/" + "c" * 90 + "/" + "d" * 90 + "/InRelease", None),
    ],
)
def test_paths_of_an_archive_are_lists_and_packages(path: str, wanted: Wanted | None) -> None:
    assert debian.read_path(path) == wanted
    if wanted is not None and wanted.file is not None:
        listing = debian.listing_of(wanted, "https://a.example.com/x")
        hashed = Digest("sha256", ONE) if wanted.file == ONE else None
        assert listing.files[wanted.file].digest == hashed
        assert debian.package_of(wanted) in ("hello", "g++", HASHED.rpartition("/")[0])


@pytest.mark.parametrize(
    ("file", "version"),
    [
        ("a_b-1.0-py3-none-any.whl", "1.0"),
        ("a_b-1.0-1-py3-none-any.whl", "1.0"),
        ("a_b-1.0-py3-none-any.whl.metadata", "1.0"),
        ("a-b-2.0rc1.tar.gz", "2.0rc1"),
        ("A.B-2.0.zip", "2.0"),
        ("other-2.0.zip", ""),
    ],
)
def test_the_version_is_read_from_the_name_of_a_file(file: str, version: str) -> None:
    assert python.version_of(file, "a-b") == version


# -- Python ----------------------------------------------------------------------------------------


def test_files_of_python_are_offered_beside_the_listing_with_their_digests() -> None:
    listing = told_by_python(
        wheel(**{"requires-python": ">=3", "yanked": "why", "size": 7, "core-metadata": {"sha256": TWO}})
    )
    file = listing.files["a_b-1.0-py3-none-any.whl"]
    assert (file.url, file.version) == ("https://mirror.example.com/files/x.whl", "1.0")
    assert listing.files["a_b-1.0-py3-none-any.whl.metadata"].digest == Digest("sha256", TWO)
    told = python.tell(listing, DEMO, python.JSON_TYPE)
    assert told is not None
    (entry,) = json.loads(told[1])["files"]
    assert entry["url"] == "a_b-1.0-py3-none-any.whl" and entry["hashes"] == {"sha256": ONE}
    assert (entry["requires-python"], entry["yanked"], entry["size"]) == (">=3", "why", 7)
    assert entry["core-metadata"] == {"sha256": TWO} and "dist-info-metadata" not in entry
    told = python.tell(listing, DEMO, "text/html")
    assert told is not None and told[0].startswith("text/html")
    page = python.read_answer(told[1], "text/html", PAGE, DEMO)
    assert page.files["a_b-1.0-py3-none-any.whl"].hashes == {"sha256": ONE}
    assert page.files["a_b-1.0-py3-none-any.whl.metadata"].hashes == {"sha256": TWO}


def test_metadata_without_a_digest_is_not_offered() -> None:
    assert list(told_by_python(wheel(**{"core-metadata": True})).files) == ["a_b-1.0-py3-none-any.whl"]


def test_html_is_told_so_that_nothing_of_the_registry_becomes_markup() -> None:
    listing = told_by_python(wheel(**{"yanked": '"><script>', "requires-python": '">'}))
    told = python.tell(listing, DEMO, "text/html")
    assert told is not None and b"<script>" not in told[1] and b'"">' not in told[1]


@pytest.mark.parametrize("name", ["../../etc/passwd", "a b.whl", "", ".whl", "x" * 300, "a_b-1.0.whl.metadata"])
def test_files_with_odd_names_are_left_out(name: str) -> None:
    assert told_by_python({**wheel(), "filename": name}).files == {}


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"{", python.JSON_TYPE),
        (b"[]", python.JSON_TYPE),
        (b'{"files": [{}]}', python.JSON_TYPE),
        (b'{"files": [{"filename": 1, "url": ""}]}', python.JSON_TYPE),
        (b"[" * 100_000, python.JSON_TYPE),
        (b"<html>", "application/octet-stream"),
    ],
)
def test_what_is_no_listing_of_python_is_refused(data: bytes, kind: str) -> None:
    with pytest.raises(ListingInvalid):
        python.read_answer(data, kind, PAGE, DEMO)


# -- npm -------------------------------------------------------------------------------------------


def told_by_npm(tarball: str, version: str = "1.0.0", **dist: Any) -> Listing:
    told = {
        "name": "@a/b",
        "dist-tags": {"latest": version},
        "versions": {version: {"dist": {"tarball": tarball, **dist}}},
    }
    page, address = "https://mirror.example.com/npm/@a%2Fb", "https://mirror.example.com/npm/"
    return npm.read_answer(json.dumps(told).encode(), page, Wanted("@a/b"), address)


def test_archives_are_offered_below_the_registry_wherever_they_are() -> None:
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(b"x").digest()).decode()
    listing = told_by_npm(
        "https://files.example.net/blobs/b-1.0.0.tgz?token=1", integrity=f"md5-xx {integrity}", shasum="A" * 40
    )
    file = listing.files["b-1.0.0.tgz"]
    assert file.url == "https://files.example.net/blobs/b-1.0.0.tgz?token=1" and file.version == "1.0.0"
    assert file.digest == Digest("sha512", hashlib.sha512(b"x").hexdigest()) and file.hashes["sha1"] == "a" * 40
    told = json.loads(listing.body)
    assert told["versions"]["1.0.0"]["dist"]["tarball"] == "https://mirror.example.com/npm/@a/b/-/b-1.0.0.tgz"
    assert list(told_by_npm("https://mirror.example.com/download/@a/b/1.0.0/abcdef").files) == ["b-1.0.0.tgz"]
    one = npm.tell(listing, Wanted("@a/b", version="latest"), "")
    assert one is not None and json.loads(one[1])["dist"]["integrity"] == integrity
    assert npm.tell(listing, Wanted("@a/b", version="2.0.0"), "") is None


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b'{"name": "c", "versions": {}}', b'{"name": "@a/b", "versions": {"1": 2}}']
)
def test_what_is_no_package_of_npm_is_refused(data: bytes) -> None:
    with pytest.raises(ListingInvalid):
        npm.read_answer(data, PAGE, Wanted("@a/b"), PAGE)


def test_versions_with_odd_names_are_left_out_and_two_never_share_a_file() -> None:
    dist = {"dist": {"tarball": "https://x.example.net/a-1.0.0.tgz"}}
    told = {"name": "@a/b", "versions": dict.fromkeys(("1.0.0", "1.0.0-x" * 100, "\ud800", "../1", "1.0"), dist)}
    listing = npm.read_answer(json.dumps(told).encode(), PAGE, Wanted("@a/b"), PAGE)
    assert {name: file.version for name, file in listing.files.items()} == {"a-1.0.0.tgz": "1.0.0", "b-1.0.tgz": "1.0"}
    assert json.loads(listing.body)["versions"].keys() == {"1.0.0", "1.0"}


# -- anything at all -------------------------------------------------------------------------------

texts = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ["a_b-1.0-py3-none-any.whl", "https://x.example.net/b-1.0.0.tgz", "1.0.0", "@a/b", ONE, "\ud800", "//["]
    ),
)
KEYS = (
    "files filename url hashes sha256 yanked core-metadata size requires-python name versions 1.0.0 dist tarball integrity "
    "shasum dist-tags latest meta"
)
keys = st.sampled_from(KEYS.split())
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=6)),
    max_leaves=20,
)


@settings(deadline=None)
@given(values, values)
def test_whatever_a_registry_says_is_read_or_refused_and_then_told(value: object, inner: object) -> None:
    data = json.dumps(value).encode()
    shaped = [
        {"files": [value, {"filename": "a_b-1.0-py3-none-any.whl", "url": "x", "hashes": inner, "yanked": value}]},
        {"files": [{"filename": value, "url": inner, "core-metadata": value, "requires-python": inner}]},
    ]
    for each in (data, *(json.dumps(one).encode() for one in shaped)):
        with contextlib.suppress(ListingInvalid):
            listing = python.read_answer(each, python.JSON_TYPE, PAGE, DEMO)
            assert all(name.isascii() and len(file.version) <= 250 for name, file in listing.files.items())
            for accept in ("", python.JSON_TYPE):
                assert python.tell(read_listing(write_listing(listing)), DEMO, accept) is not None
    wanted = Wanted("@a/b")
    packuments = [
        {"name": "@a/b", "versions": {"1.0.0": value, "2.0.0": {"dist": inner}}, "dist-tags": inner},
        {"name": "@a/b", "versions": {"1.0.0": {"dist": {"tarball": value, "integrity": inner, "shasum": value}}}},
        {"name": "@a/b", "versions": inner},
    ]
    for each in (data, *(json.dumps(one).encode() for one in packuments)):
        with contextlib.suppress(ListingInvalid):
            listing = npm.read_answer(each, PAGE, wanted, PAGE)
            for one in (wanted, wanted._replace(version="latest"), wanted._replace(version="1.0.0")):
                npm.tell(read_listing(write_listing(listing)), one, "")


@settings(deadline=None)
@given(st.text(alphabet=st.sampled_from("<>a= \"'#/&;\n\0hrefdatyan-"), max_size=200))
def test_any_page_is_read_as_a_listing(text: str) -> None:
    page = f"<a href={text}>x</a><base href='{text}'>{text}"
    with contextlib.suppress(ListingInvalid):
        listing = python.read_answer(page.encode(), "text/html", PAGE, DEMO)
        assert python.tell(listing, DEMO, "") is not None


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_path_is_a_package_or_nothing(path: str) -> None:
    for module in (python, npm, debian):
        wanted = module.read_path("/" + path)
        assert wanted is None or wanted.package.isascii()


# -- what was said first ---------------------------------------------------------------------------


def test_the_digest_that_was_told_first_holds_in_what_clients_are_told() -> None:
    first = told_by_python(wheel())
    later = told_by_python(wheel(hashes={"sha256": TWO})).after(first)
    assert later.hashes_of("a_b-1.0-py3-none-any.whl") == {"sha256": ONE}
    assert later.after(first).after(later).hashes_of("a_b-1.0-py3-none-any.whl") == {"sha256": ONE}
    told = python.tell(later, DEMO, python.JSON_TYPE)
    assert told is not None and json.loads(told[1])["files"][0]["hashes"] == {"sha256": ONE}
    changed = told_by_npm(
        "https://x.example.net/b-1.0.0.tgz", integrity="sha256-" + base64.b64encode(bytes(32)).decode()
    )
    before = told_by_npm(
        "https://x.example.net/b-1.0.0.tgz", integrity="sha256-" + base64.b64encode(bytes([1] * 32)).decode()
    )
    told = npm.tell(changed.after(before), Wanted("@a/b"), "")
    assert told is not None and base64.b64encode(bytes([1] * 32)) in told[1]


KINDS = ("sha512", "sha256", "sha1")
SOME = [dict(pairs) for size in range(4) for pairs in itertools.combinations([(kind, "1") for kind in KINDS], size)]
OTHERS = [{**some, kind: "2"} for some in SOME for kind in KINDS]


def hashes(short: dict[str, str]) -> dict[str, str]:
    """Of a sort of bytes, by its digit."""
    return {kind: digit * hashlib.new(kind).digest_size * 2 for kind, digit in short.items()}


@pytest.mark.parametrize("first", SOME)
@pytest.mark.parametrize("later", [*SOME, *OTHERS])
def test_whatever_a_registry_tells_later_the_bytes_are_checked_by_what_it_told_first(
    first: dict[str, str], later: dict[str, str]
) -> None:
    for name, tell in (("a_b-1.0-py3-none-any.whl", python_with), ("b-1.0.0.tgz", npm_with)):
        told = tell(hashes(first))
        for again in (tell(hashes(later)), tell(hashes(first)), tell({}), tell(hashes(later))):
            told = read_listing(write_listing(again.after(told)))
            holds = hashes(first or later)
            assert told.hashes_of(name) == holds
            assert seen_by_clients(told) == holds


def python_with(told: dict[str, str]) -> Listing:
    return told_by_python(wheel(hashes=told))


def npm_with(told: dict[str, str]) -> Listing:
    parts = [f"{kind}-{base64.b64encode(bytes.fromhex(told[kind])).decode()}" for kind in told if kind != "sha1"]
    shown = {"shasum": told["sha1"]} if "sha1" in told else {}
    return told_by_npm("https://x.example.net/b-1.0.0.tgz", integrity=" ".join(parts), **shown)


def seen_by_clients(listing: Listing) -> dict[str, str]:
    """All digests of its one file."""
    if listing.package == "a-b":
        (told,) = [python.tell(listing, DEMO, python.JSON_TYPE)]
        assert told is not None
        return dict(json.loads(told[1])["files"][0]["hashes"])
    told = npm.tell(listing, Wanted("@a/b", version="1.0.0"), "")
    assert told is not None
    dist = json.loads(told[1])["dist"]
    found = {"sha1": dist["shasum"]} if "shasum" in dist else {}
    for one in dist.get("integrity", "").split():
        kind, _, value = one.partition("-")
        assert kind not in found
        found[kind] = base64.b64decode(value).hex()
    return found


@pytest.mark.parametrize("first", [{}, {"sha1": "1"}, {"sha256": "1"}])
def test_a_digest_that_was_found_of_the_bytes_holds_beside_the_first_and_nothing_else_does(
    first: dict[str, str],
) -> None:
    found = Digest("sha256", "1" * 64)
    for name, tell in (("a_b-1.0-py3-none-any.whl", python_with), ("b-1.0.0.tgz", npm_with)):
        told = tell(hashes(first)).pin(name, found)
        for later in ({"sha512": "2"}, {"sha512": "2", "sha256": "2", "sha1": "2"}, {"sha1": "1"}, {}):
            told = tell(hashes(later)).after(told)
            assert told.hashes_of(name) == {**hashes(first), "sha256": found.value} == seen_by_clients(told)


def test_of_two_digests_of_one_kind_clients_are_told_the_one_that_is_checked() -> None:
    one, two = (f"sha512-{base64.b64encode(bytes([number] * 64)).decode()}" for number in (1, 2))
    listing = told_by_npm("https://x.example.net/b-1.0.0.tgz", integrity=f"{one} {two}")
    assert seen_by_clients(listing) == listing.hashes_of("b-1.0.0.tgz") == {"sha512": "01" * 64}


def test_a_file_that_is_not_listed_for_a_while_comes_back_with_its_first_digest() -> None:
    gone = told_by_python().after(told_by_python(wheel()))
    back = told_by_python(wheel(hashes={"sha512": "2" * 128})).after(read_listing(write_listing(gone)))
    assert back.hashes_of("a_b-1.0-py3-none-any.whl") == {"sha256": ONE} == seen_by_clients(back)
    assert python.tell(gone, DEMO, "") is not None


def test_metadata_is_told_with_the_digest_by_which_it_is_checked() -> None:
    name = "a_b-1.0-py3-none-any.whl.metadata"
    first = told_by_python(wheel(**{"core-metadata": {"sha256": ONE}}))
    later = told_by_python(wheel(**{"core-metadata": {"sha256": TWO}})).after(first)
    assert later.hashes_of(name) == {"sha256": ONE}
    told = python.tell(later, DEMO, python.JSON_TYPE)
    assert told is not None and json.loads(told[1])["files"][0]["core-metadata"] == {"sha256": ONE}


def test_a_registry_that_lists_other_files_each_time_is_not_followed_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listings, "MOST_FILES", 5)
    told = told_by_python(wheel())
    with pytest.raises(ListingInvalid):
        for number in range(7):
            told = told_by_python({**wheel(), "filename": f"a_b-1.{number}-py3-none-any.whl"}).after(told)
    assert len(told.pinned) == 5


@pytest.mark.parametrize("text", ['"a tag"', 'W/"1"', "Sat, 29 Oct 1994 19:43:31 GMT"])
def test_a_tag_or_a_time_is_kept_as_it_came(text: str) -> None:
    assert listings.read_validator(text, 64) == text


@pytest.mark.parametrize("text", ["", '"é"', '"a" ', ' "a"', '"a\tb"', '"a\r\nx: y"', '"\0"', '"\x7f"', "x" * 65])
def test_a_tag_or_a_time_that_cannot_stand_in_a_header_is_not_kept(text: str) -> None:
    assert listings.read_validator(text, 64) == ""


def test_a_pinned_digest_and_all_else_of_a_listing_are_kept() -> None:
    listing = told_by_python(wheel(hashes={})).pin("a_b-1.0-py3-none-any.whl", Digest("sha256", ONE))
    assert read_listing(write_listing(listing)) == listing
    assert told_by_python(wheel(hashes={})).after(listing).hashes_of("a_b-1.0-py3-none-any.whl") == {"sha256": ONE}
    for data in (b"", b"{}\n", b"[]\nx", write_listing(listing)[:20]):
        with pytest.raises(ListingInvalid):
            read_listing(data)


# -- addresses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "http://files.example.com/x",
        "https://user:secret@files.example.com/x",
        "https://127.0.0.1/x",
        "https://[::1]/x",
        "https://localhost/x",
        "file:///etc/passwd",
        "ftp://files.example.com/x",
        "https://files.example.com:99999/x",
    ],
)
def test_an_address_that_a_registry_tells_is_a_name_by_tls_without_a_credential(text: str) -> None:
    with pytest.raises(RegistryFailed):
        read_page(text, Page(Scheme.HTTPS, "mirror.example.com", 443, "/simple/"))


def test_an_address_is_sent_without_anything_that_ends_a_line() -> None:
    page = read_page("/a b\r\nX: y\ud800?q=\u00e4\ud800 \n", Page(Scheme.HTTP, "mirror.example.com", 8080, "/simple/"))
    assert page.target.isascii() and not set(page.target) & set(" \r\n")
    assert page.text.startswith("http://mirror.example.com:8080/a")
