"""Registries and credentials are those of the host's own clients, wherever they stand, and none of a box's choice."""

import base64
import sys
from pathlib import Path

import pytest

from coldframe.host.outfit import Outfit
from coldframe.host.package_clients import client_environment, client_files, dress
from coldframe.host.registries import RegistrySettings, read_registry_settings
from coldframe.policy.network_rules import PackageKind, Registry, Scheme


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host without any settings, whose pip and npm use one registry each by themselves."""
    texts = {
        "usr/lib/python3/dist-packages/pip/_internal/models/index.py": (
            'PyPI = PackageIndex("https://index.example.com/", file_storage_domain="files.example.com")\n'
            'TestPyPI = PackageIndex(\n    "https://test.example.com/"\n)\n'
        ),
        "npm/node_modules/@npmcli/config/lib/definitions/definitions.js": (
            "  registry: new Definition('registry', {\n    default: 'https://npm.example.com/',\n    type: url,\n"
        ),
        "npm/bin/npm": "#!/bin/sh\n",
        "home/user/.keep": "",
    }
    for path, text in texts.items():
        write(tmp_path, path, text)
    (tmp_path / "npm/bin/npm").chmod(0o755)
    return tmp_path


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def read(root: Path, **environment: str) -> RegistrySettings:
    given = {"PATH": f"{root}/npm/bin", **environment}
    return read_registry_settings(given, f"{root}/home/user", root=str(root))


def credential(settings: RegistrySettings, registry: Registry) -> str | None:
    return {one.registry: one.authorization for one in settings.credentials}.get(registry)


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


def test_without_settings_clients_use_their_own_registries(root: Path) -> None:
    settings = read(root)
    assert settings.npm == Registry("npm.example.com", kind=PackageKind.NPM) and settings.is_npm_usual
    assert settings.python[0].path == "/simple/" and settings.python[0].kind is PackageKind.PYTHON
    assert settings.credentials == () and set(settings.all) == {*settings.python, settings.npm}


@pytest.mark.parametrize(
    "path", ["etc/pip.conf", "etc/xdg/pip/pip.conf", "home/user/.pip/pip.conf", "home/user/.config/pip/pip.conf"]
)
def test_the_index_stands_in_any_of_the_files_of_pip(root: Path, path: str) -> None:
    text = "[global]\nindex-url = https://me:p%40ss@mirror.example.com:8081/api/pypi/simple\n"
    write(root, path, text + "extra-index-url =\n    https://more.example.com/simple/\n    file:///opt/simple\n")
    first, more = read(root, XDG_CONFIG_DIRS="/etc/xdg").python
    assert first == Registry("mirror.example.com", 8081, "/api/pypi/simple", Scheme.HTTPS, PackageKind.PYTHON)
    assert more.name == "more.example.com"
    settings = read(root, XDG_CONFIG_DIRS="/etc/xdg")
    assert credential(settings, first) == basic("me:p@ss") and "p@ss" not in repr(settings)
    assert settings.left_out == ("file:///opt/simple: it is not on the network",)


PLACES = ["etc/xdg/pip", "etc/more/pip", "etc", "home/user/.pip", "home/user/.config/pip", "venv"]


@pytest.mark.parametrize("count", range(1, len(PLACES) + 1))
@pytest.mark.parametrize("told", ["told/pip.conf", "absent/pip.conf", ""])
def test_the_files_of_pip_go_before_each_other_as_pip_has_it(
    root: Path, count: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", "/venv")
    for number, place in enumerate(PLACES[:count]):
        write(root, f"{place}/pip.conf", f"[global]\nindex-url = https://at{number}.example.com/simple\n")
    write(root, "told/pip.conf", "[install]\nextra-index-url = https://told.example.com/simple\n")
    found = [
        one.name
        for one in read(
            root, XDG_CONFIG_DIRS="/etc/xdg:/etc/more", PIP_CONFIG_FILE=f"{root}/{told}" if told else ""
        ).python
    ]
    last = count - 1
    if told == "told/pip.conf" and last in (3, 4):
        last = 2  # then those of the user are not read
    assert found == [f"at{last}.example.com", *(["told.example.com"] if told == "told/pip.conf" else [])]


def test_the_file_that_a_variable_names_goes_before_all_others_of_pip_but_not_before_another_section(
    root: Path,
) -> None:
    write(root, "etc/pip.conf", "[global]\nindex-url = https://file.example.com/simple\n")
    write(root, "told.conf", "[global]\nindex-url = https://told.example.com/simple\n")
    told = {"PIP_CONFIG_FILE": f"{root}/told.conf"}
    assert [one.name for one in read(root, **told).python] == ["told.example.com"]
    write(root, "etc/pip.conf", "[install]\nindex-url = https://install.example.com/simple\n")
    assert [one.name for one in read(root, **told).python] == ["install.example.com"]
    assert [one.name for one in read(root, **told, PIP_INDEX_URL="https://a.example.com").python] == ["a.example.com"]
    write(root, "told.conf", "[global]\nindex-url =\n[install]\nindex-url =\n")
    assert [one.name for one in read(root, **told).python] == ["index.example.com"]  # an empty one counts as none


def test_the_environment_of_the_daemon_goes_before_its_files(root: Path) -> None:
    write(root, "etc/pip.conf", "[global]\nindex-url = https://file.example.com/simple\n")
    write(root, "home/user/.npmrc", "registry=https://file.example.com/npm/\n")
    settings = read(
        root, PIP_INDEX_URL="http://pip.example.com:3141/root/", NPM_CONFIG_REGISTRY="https://deno.example.com"
    )
    assert [one.address for one in settings.all] == ["http://pip.example.com:3141/root/", "https://deno.example.com/"]
    assert not settings.is_npm_usual
    assert read(root, PIP_CONFIG_FILE="/dev/null").python[0].name != "file.example.com"
    assert read(root, PIP_NO_INDEX="1").python == ()


def test_a_credential_of_pip_may_stand_in_netrc(root: Path) -> None:
    write(root, "home/user/.netrc", "machine mirror.example.com login me password secret\n")
    settings = read(root, PIP_INDEX_URL="https://mirror.example.com/simple/")
    assert credential(settings, settings.python[0]) == basic("me:secret")


def test_npm_has_scopes_and_credentials_for_parts_of_an_address(root: Path) -> None:
    lines = [
        "; a comment",
        "registry=https://mirror.example.com/api/npm/",
        "@corp:registry=https://corp.example.com/npm",
        "@other:registry = https://other.example.com/",
        "//mirror.example.com/api/:_authToken=${NPM_TOKEN}",
        "//corp.example.com/npm/:username=me",
        f"//corp.example.com/npm/:_password={base64.b64encode(b'secret').decode()}",
        "//other.example.com/else/:_authToken=not-for-this",
        "always-auth=true",
    ]
    write(root, "home/user/.npmrc", "\n".join(lines))
    settings = read(root, NPM_TOKEN="of-the-host")
    scopes = dict(settings.npm_scopes)
    assert settings.npm is not None and scopes.keys() == {"@corp", "@other"}
    assert credential(settings, settings.npm) == "Bearer of-the-host"
    assert credential(settings, scopes["@corp"]) == basic("me:secret")
    assert credential(settings, scopes["@other"]) is None


@pytest.mark.parametrize("prefix", ["npm_config_", "NPM_CONFIG_"])
def test_all_settings_of_npm_may_stand_in_variables_with_the_letters_of_their_names(root: Path, prefix: str) -> None:
    settings = read(
        root,
        **{
            f"{prefix}registry": "https://mirror.example.com/npm/",
            f"{prefix}@corp:registry": "https://corp.example.com/npm/",
            f"{prefix}//mirror.example.com/npm/:_authToken": "${NPM_TOKEN}",
            f"{prefix}//corp.example.com/npm/:username": "me",
            f"{prefix}//corp.example.com/npm/:_password": base64.b64encode(b"secret").decode(),
            "NPM_TOKEN": "of-the-host",
        },
    )
    assert settings.npm is not None
    assert credential(settings, settings.npm) == "Bearer of-the-host"
    assert credential(settings, dict(settings.npm_scopes)["@corp"]) == basic("me:secret")


def test_the_files_of_npm_may_stand_elsewhere_as_a_variable_says(root: Path) -> None:
    write(root, "mine", "//${HOST}/:_authToken=token\n")
    write(root, "all", "registry=https://all.example.com\n")
    settings = read(
        root, NPM_CONFIG_USERCONFIG=f"{root}/mine", npm_config_globalconfig=f"{root}/all", HOST="all.example.com"
    )
    assert settings.npm is not None and credential(settings, settings.npm) == "Bearer token"


@pytest.mark.parametrize(
    "address",
    [
        "https://10.0.0.5/simple",
        "http://localhost:3141/simple",
        "https://[fd00::1]/simple",
        "https://mirror.example.com/simple?token=1",
        "https://mirror.example.com/a/../b",
        "nonsense",
        "https://mirror.example.com:port/",
    ],
)
def test_what_no_box_can_be_given_is_left_out_and_told(root: Path, address: str) -> None:
    settings = read(root, PIP_INDEX_URL=address)
    assert settings.python == () and len(settings.left_out) == 1


def test_files_that_cannot_be_read_are_passed_over(root: Path) -> None:
    write(root, "etc/pip.conf", "no section\n")
    write(root, "home/user/.npmrc", "\0\n=\nregistry\n")
    (root / "home/user/.netrc").mkdir()
    settings = read(root)
    assert settings.npm is not None and settings.left_out[0].endswith("pip.conf cannot be read")


def test_the_clients_of_a_box_are_told_of_registries_without_credentials(root: Path) -> None:
    lines = "registry=https://me:secret@mirror.example.com/npm\n@corp:registry=https://corp.example.com/npm\n"
    write(root, "home/user/.npmrc", lines)
    settings = read(
        root, PIP_INDEX_URL="https://me:secret@a.example.com/s", PIP_EXTRA_INDEX_URL="https://b.example.com/s"
    )
    text = "".join(client_files(settings).values())
    assert "secret" not in text + repr(client_environment(settings))
    for line in (
        "index-url = https://a.example.com/s/",
        "    https://b.example.com/s/",
        "registry=https://mirror.example.com/npm/",
        "@corp:registry=https://corp.example.com/npm/",
    ):
        assert line in text.splitlines()
    outfit = dress(Outfit({"/a": "b"}, {"/etc/resolv.conf": "c"}, {}, ""), settings)
    assert set(outfit.files) == {"/a", "/opt/coldframe/npmrc", "/opt/coldframe/apt.conf"} and set(outfit.covers) == {
        "/etc/resolv.conf",
        "/etc/pip.conf",
    }
    assert "index-url = https://a.example.com/s/" in outfit.covers["/etc/pip.conf"].splitlines()
    assert not [
        name for name in outfit.environment if name.startswith("PIP_")
    ]  # which would go before the user's files
    assert client_environment(settings)["NPM_CONFIG_REGISTRY"] == "https://mirror.example.com/npm/"
    (root / "home/user/.npmrc").unlink()
    assert "NPM_CONFIG_REGISTRY" not in client_environment(read(root))


def test_the_archives_of_apt_are_registries_in_either_form(root: Path) -> None:
    write(
        root,
        "etc/apt/sources.list",
        "# deb http://no.example.com/debian x main\ndeb http://a.example.com/debian trixie main\n",
    )
    write(
        root,
        "etc/apt/sources.list.d/b.list",
        "deb [arch=amd64 signed-by=/k] https://u:p@b.example.com/x/ stable main\n",
    )
    write(root, "etc/apt/sources.list.d/c.sources", "Types: deb\nURIs: https://c.example.com http://10.0.0.1/debian\n")
    write(root, "etc/apt/sources.list.d/d.sources.off", "URIs: https://d.example.com\n")
    settings = read(root)
    assert [one.address for one in settings.debian] == [
        "http://a.example.com/debian/",
        "https://b.example.com/x/",
        "https://c.example.com/",
    ]
    assert {one.kind for one in settings.debian} == {PackageKind.DEBIAN} and set(settings.debian) <= set(settings.all)
    assert settings.left_out == ("http://10.0.0.1/debian: boxes reach names alone",)
    assert "secret" not in repr(settings) and len(settings.credentials) == 1
