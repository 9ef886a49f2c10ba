"""What browsers in a box are told: whom to trust beside their own roots, and to keep to ways that are looked at."""

import base64
import json
from pathlib import Path

import pytest

from coldframe.host import browser_policies
from coldframe.host.browser_policies import CHROMIUM_FILE, FIREFOX_FILE, FIREFOX_PREFERENCES, policy_files
from coldframe.host.isolation.namespaces import LINKS
from coldframe.host.outfit import make_outfit
from tests.host.egress.world import make_certificates

OURS, COMPANY, PUBLIC = ("the box's own authority", "a company's root", "a root that everybody trusts")


def _pem(text: str) -> str:
    body = base64.encodebytes(text.encode() * 10).decode()
    return f"-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n"


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode() * 10).decode()


def test_a_browser_trusts_the_boxs_authority_and_what_this_host_added_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mozilla").mkdir()
    (tmp_path / "mozilla" / "public.crt").write_text(_pem(PUBLIC))
    monkeypatch.setattr(browser_policies, "DISTRIBUTED", str(tmp_path))
    roots = f"# {COMPANY}\n{_pem(COMPANY)}{_pem(PUBLIC)}"
    files = policy_files(roots, _pem(OURS))
    assert json.loads(files[CHROMIUM_FILE])["CACertificates"] == [_encoded(COMPANY), _encoded(OURS)]
    installed = json.loads(files[FIREFOX_FILE])["policies"]["Certificates"]["Install"]
    assert [browser_policies._certificates(files[path]) for path in installed] == [
        [_encoded(COMPANY)],
        [_encoded(OURS)],
    ]


def test_where_it_cannot_be_told_what_this_host_added_only_the_boxs_authority_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browser_policies, "DISTRIBUTED", str(tmp_path / "missing"))
    roots = _pem("another company's root") + _pem(PUBLIC)
    files = policy_files(roots, _pem(OURS))
    assert json.loads(files[CHROMIUM_FILE])["CACertificates"] == [_encoded(OURS)]
    assert len(json.loads(files[FIREFOX_FILE])["policies"]["Certificates"]["Install"]) == 1


def test_what_the_broker_would_refuse_is_turned_off() -> None:
    files = policy_files("", _pem(OURS))
    chromium = json.loads(files[CHROMIUM_FILE])
    assert chromium["EncryptedClientHelloEnabled"] is chromium["QuicAllowed"] is False
    assert chromium["DnsOverHttpsMode"] == "off"
    firefox = json.loads(files[FIREFOX_FILE])["policies"]
    assert firefox["DisableEncryptedClientHello"] is True
    assert firefox["DNSOverHTTPS"] == {"Enabled": False, "Locked": True}
    assert "grease_probability" in files[FIREFOX_PREFERENCES]


def test_the_outfit_holds_them_where_the_links_of_browsers_lead(tmp_path: Path) -> None:
    certificate = Path(make_certificates(str(tmp_path)).authority).read_text()
    files = make_outfit("", certificate).files
    assert json.loads(files[CHROMIUM_FILE])["CACertificates"][-1] in certificate.replace("\n", "")
    for link, leads_to in LINKS.items():
        assert any(path.startswith(f"{leads_to}/") for path in files), link
    assert f"{LINKS['/etc/chromium/policies/managed']}/coldframe.json" in files
    assert f"{LINKS['/etc/firefox']}/policies/policies.json" in files
