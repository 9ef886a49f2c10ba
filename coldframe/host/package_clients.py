"""How the package clients in a box are told of the registries: as little as can be, and so that what a project or its
author sets goes first.

A registry that a client uses by itself needs no setting. The files say what would be asked of a registry besides packages,
and only be refused: whether there is a newer client, advisories, funding.
"""

from coldframe.host.outfit import TRUST, Outfit
from coldframe.host.registries import RegistrySettings

PIP_FILE = "/etc/pip.conf"
"""Where all files of users and the one of a variable are stronger: named by that variable, it would hide the users'."""
NPM_FILE = "/opt/coldframe/npmrc"
APT_FILE = "/opt/coldframe/apt.conf"
_APT = (
    f'Acquire::https::CAInfo "{TRUST}";',
    'Acquire::EnableSrvRecords "false";',
    'Acquire::PDiffs "false";',
    'Acquire::Languages "none";',
    'Acquire::Retries "2";',
)
"""The sources are those of the system. What is left out costs questions and no package."""


def dress(outfit: Outfit, settings: RegistrySettings, *, install_scripts: bool = True) -> Outfit:
    """The same with all of that. Without *install_scripts* clients are set to install only what needs none."""
    files = client_files(settings, install_scripts=install_scripts)
    return outfit._replace(
        files={**outfit.files, NPM_FILE: files[NPM_FILE], APT_FILE: files[APT_FILE]},
        covers={**outfit.covers, PIP_FILE: files[PIP_FILE]},
        environment={**outfit.environment, **client_environment(settings)},
    )


def client_files(settings: RegistrySettings, *, install_scripts: bool = True) -> dict[str, str]:
    """Files of the box by their paths; no credential is in them. pip is let install beside Debian's packages: what it writes is
    the workspace's or a system of its own, which nobody else manages. An older one reads over that line."""
    pip = ["[global]", "disable-pip-version-check = 1", "break-system-packages = 1"]
    if settings.python:
        first, *others = settings.python
        pip.append(f"index-url = {first.address}")
        pip += ["extra-index-url =", *(f"    {one.address}" for one in others)] if others else []
    npm = ["audit=false", "fund=false", "update-notifier=false"]
    if not install_scripts:
        pip.append("only-binary = :all:")
        npm.append("ignore-scripts=true")
    if settings.npm is not None:
        npm.append(f"registry={settings.npm.address}")
    npm += [f"{scope}:registry={registry.address}" for scope, registry in settings.npm_scopes]
    return {PIP_FILE: "\n".join([*pip, ""]), NPM_FILE: "\n".join([*npm, ""]), APT_FILE: "\n".join([*_APT, ""])}


def client_environment(settings: RegistrySettings) -> dict[str, str]:
    """Variables of every command. pip finds its file, npm takes its for what is weakest; Deno knows its variable alone."""
    environment = {"NPM_CONFIG_GLOBALCONFIG": NPM_FILE, "APT_CONFIG": APT_FILE, "DENO_NO_UPDATE_CHECK": "1"}
    if settings.npm is not None and not settings.is_npm_usual:  # for npm it is stronger than a project's own file
        environment["NPM_CONFIG_REGISTRY"] = settings.npm.address
    return environment
