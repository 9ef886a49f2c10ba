"""What browsers in a box with a way out are told: managed policies, in the folder that each of them reads.

A browser is governed like every other program, whatever is set here: the broker sees its connections, the kernel refuses the
rest. But it has trust, look-ups and transports of its own. Untold it knows the box's authority not, sends Encrypted
Client Hello to everybody (which mode `sni` refuses, see `egress/hello.py`), tries QUIC and other resolvers first, and
speaks to its maker, of which each attempt would be a denied contact that the agent never asked for.

Whoever starts a browser of their own, or with other flags, loses the comfort and gets round no wall. Standard library only.
"""

import json
import os
import re
import textwrap
from functools import lru_cache

from coldframe.host.isolation.namespaces import CHROMIUM_POLICIES, FIREFOX_SETTINGS

CHROMIUM_FILE = f"{CHROMIUM_POLICIES}/coldframe.json"
FIREFOX_FILE, FIREFOX_PREFERENCES = (
    f"{FIREFOX_SETTINGS}/policies/policies.json",
    f"{FIREFOX_SETTINGS}/defaults/pref/coldframe.js",
)
DISTRIBUTED = "/usr/share/ca-certificates"
"""Where Debian and its kin keep what they put into the bundle themselves, one certificate a file."""
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")

_CHROMIUM = {
    "EncryptedClientHelloEnabled": False,
    "QuicAllowed": False,
    "DnsOverHttpsMode": "off",
    "NetworkPredictionOptions": 2,  # no look-up and no connection ahead of a click
    # Services of the browser's maker, none of which a page asks for.
    "AlternateErrorPagesEnabled": False,
    "BackgroundModeEnabled": False,
    "BrowserNetworkTimeQueriesEnabled": False,
    "BrowserSignin": 0,
    "ChromeVariations": 2,
    "ComponentUpdatesEnabled": False,
    "DefaultBrowserSettingEnabled": False,
    "DomainReliabilityAllowed": False,
    "EnableMediaRouter": False,
    "GenAILocalFoundationalModelSettings": 1,
    "MetricsReportingEnabled": False,
    "PasswordLeakDetectionEnabled": False,
    "PromotionsEnabled": False,
    "SafeBrowsingProtectionLevel": 0,
    "SearchSuggestEnabled": False,
    "SpellCheckServiceEnabled": False,
    "SpellcheckEnabled": False,  # it fetches dictionaries
    "SyncDisabled": True,
    "TranslateEnabled": False,
    "UrlKeyedAnonymizedDataCollectionEnabled": False,
}
_FIREFOX = {
    "DisableEncryptedClientHello": True,  # beside the preference below
    "DNSOverHTTPS": {"Enabled": False, "Locked": True},
    "NetworkPrediction": False,
    "Preferences": {"network.http.http3.enable": {"Value": False, "Status": "locked"}},
    "CaptivePortal": False,
    "DisableAppUpdate": True,
    "DisableFirefoxStudies": True,
    "DisableTelemetry": True,
    "ExtensionUpdate": False,
    "SearchSuggestEnabled": False,
}
_FIREFOX_PREFERENCES = 'pref("security.tls.ech.grease_probability", 0);\n'
"""What looks like Encrypted Client Hello and is none, sent to everybody; no policy may turn it off."""


def policy_files(roots: str, certificate: str) -> dict[str, str]:
    """By their paths in the box. Beside their own roots browsers trust *certificate*, and what this host added to *roots*."""
    trusted = [*_added(roots), *_certificates(certificate)]
    files = {f"{FIREFOX_SETTINGS}/{number}.pem": _as_pem(one) for number, one in enumerate(trusted)}
    firefox = {**_FIREFOX, "Certificates": {"Install": list(files)}}
    files[CHROMIUM_FILE] = json.dumps({**_CHROMIUM, "CACertificates": trusted})
    files[FIREFOX_FILE] = json.dumps({"policies": firefox})
    files[FIREFOX_PREFERENCES] = _FIREFOX_PREFERENCES
    return files


@lru_cache(maxsize=1)
def _added(roots: str) -> tuple[str, ...]:
    """Those that no package brought, a company's own for one. None where it cannot be told.

    All of *roots* would make a browser trust what its makers distrust or bound by now.
    """
    brought: set[str] = set()
    for folder, _, names in os.walk(DISTRIBUTED):
        for name in names:
            try:
                with open(os.path.join(folder, name), encoding="ascii", errors="replace") as file:
                    brought.update(_certificates(file.read()))
            except OSError:
                continue
    return tuple(one for one in _certificates(roots) if one not in brought) if brought else ()


def _certificates(pem: str) -> list[str]:
    """Each in base64, on one line."""
    return ["".join(body.split()) for body in _CERTIFICATE.findall(pem)]


def _as_pem(encoded: str) -> str:
    return "\n".join(["-----BEGIN CERTIFICATE-----", *textwrap.wrap(encoded, 64), "-----END CERTIFICATE-----", ""])
