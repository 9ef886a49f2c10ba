"""The target of diagnoses: the last words of programs that failed, and cells that may install something."""

import random
import re
from typing import Any, get_args

from coldframe.contract.diagnosis import READ_BYTES, Failed, diagnose
from coldframe.contract.profile import PROFILES, find_install
from tests.contract.test_diagnosis import CASES
from tests.fuzz.target import Fault, spoil, within_processor_time

WORDS = (
    ": command not found\n", "sh: 1: ", ": not found\n", "ModuleNotFoundError: No module named '", "Cannot find module '",
    "MODULE_NOT_FOUND", "lib", ".so.", ": cannot open shared object file", "fatal error: ", ".h: No such file or directory\n",
    "#include \"", "Executable doesn't exist at /ms-playwright/", "Could not find Chrome (ver. ", "(from versions: ",
    "satisfies the requirement ", "Cannot install ", " because these package versions have conflicting dependencies",
    "No matching version found for ", "Could not resolve dependency:\n peer ", "ERESOLVE", "@", "--index-url=http://evil.test ", "-r/etc/passwd",
    "git+ssh://x", "$(id)", "; rm -rf /", "../", "'", "!pip install ", "%", "\n",
)  # fmt: skip
_FIXED = frozenset(
    {"-m", "--global", "--prefix", "/home/user/.local", "--legacy-peer-deps", "-c", "sh", "npm", "npx", "install"}
)
_APT = "apt-get update && apt-get install --yes "
_WORD = re.compile(r"(@[a-z0-9][\w.-]*/)?[A-Za-z0-9][\w.+<>=!~^*,-]*(@[\w.^~*-]+)?")


class Diagnoses:
    """Any text gives a diagnosis or none, soon; what it suggests has no option, address or path from the text."""

    name = "diagnoses"

    def make(self, random: random.Random) -> list[str]:
        case = random.choice(CASES)
        return [spoil(random, str(case[0]), WORDS), random.choice(PROFILES)]

    def check(self, value: Any) -> None:
        text = str(value[0]).encode("utf-8", "replace")[-READ_BYTES:].decode("utf-8", "replace")
        try:
            with within_processor_time():
                found = diagnose(Failed(1, "make test", value[1], "", text))
                find_install(text)
        except BaseException as error:
            raise Fault(f"{type(error).__name__}: {error}") from error
        if found is None:
            return
        found.model_dump_json()
        if found.ecosystem not in get_args(type(found).model_fields["ecosystem"].annotation):
            raise Fault(f"no such ecosystem: {found.ecosystem}")
        command = found.suggested_action.args.get("command", [])
        for word in [command] if isinstance(command, str) else command:
            named = word.rpartition(" ")[2] if word.startswith(_APT) else word
            if named not in _FIXED and not _WORD.fullmatch(named):
                raise Fault(f"suggests `{word}`")
