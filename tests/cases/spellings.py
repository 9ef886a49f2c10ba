"""One program that is denied by name, in every spelling: what the text of a command shows, and what it does not.

`arch` stands for the program: every distribution has it, it needs no argument, does no harm and prints a mark.
"""

import base64

PROGRAM = "arch"
"""A file of the system, outside the workspace."""

READABLE = (
    "arch",
    "true && arch",
    "true; arch",
    "false || arch",
    "true | arch",
    "true & arch",
    "true\narch",
    "(arch)",
    "{ arch; }",
    "echo $(arch)",
    "echo `arch`",
    "cat <(arch)",
    'bash -c "arch"',
    "sh -c arch",
    "eval arch",
    "env arch",
    "env A=1 arch",
    "A=1 arch",
    "command arch",
    "exec arch",
    "nohup arch",
    "timeout 5 arch",
    "nice arch",
    "stdbuf -o0 arch",
    "setsid arch",
    "echo | xargs arch",
    "find . -maxdepth 0 -exec arch \\;",
    "/usr/bin/arch",
    "../../usr/bin/arch",
    'ar""ch',
    "ar\\ch",
    '"arch"',
    "f=arch; $f",
    "${F:-arch}",
    "$'\\x61rch'",
    "bash <<E\narch\nE",
    "bash <<< arch",
    "f() { arch; }; f",
    "trap arch EXIT",
    "if arch; then :; fi",
    "while arch; do break; done",
    "case x in x) arch;; esac",
    "! arch",
    "time arch",
    "coproc arch",
)
"""What the text says, so that it is refused before anything starts."""

_SCRIPT = "printf '%s%s\\n' /usr/bin/ar ch > script.sh; "
_UMOUNT = "import ctypes, os; ctypes.CDLL(None).umount2(b'/usr/bin/arch', 2); os.execv('/usr/bin/ar' + 'ch', ['x'])"
_MEMORY = (
    "import os; file = os.memfd_create('x'); os.write(file, open('/usr/bin/ar' + 'ch', 'rb').read());"
    " os.execv(f'/proc/self/fd/{file}', ['arch'])"
)
UNREADABLE: dict[str, str] = {
    "copy": "cp /usr/bin/arch copied; ./copied",
    "copy by content": "cat /usr/bin/arch > written; chmod +x written; ./written",
    "copy by text": "base64 /usr/bin/arch | base64 -d > decoded; chmod +x decoded; ./decoded",
    "copy in memory": f'python3 -c "{_MEMORY}"',
    "symbolic link": "ln -s /usr/bin/arch linked; ./linked",
    "link of a folder": "ln -s /usr/bin programs; ./programs/a[r]ch",
    "pattern": "/usr/bin/a?ch",
    "pattern in a folder": "cd /usr/bin; ./[a]rch",
    "word that is made": "$(printf 'ar%s' ch)",
    "word that is read": "read -r word < <(echo hcra | rev); $word",
    "word that is cut": 'word=search; "${word:2}"',
    "another root": "/proc/self/root/usr/bin/a*ch",
    "remembered name": "hash -p /usr/bin/arch other; other",
    "found file": "find /usr/bin -name 'a?ch' -exec {} \\;",
    "found file by xargs": "ls /usr/bin/a?ch | xargs -n1 env",
    "loader": "for loader in /lib*/ld-linux*.so* /lib/ld-*.so*; do $loader /usr/bin/arch && break; done",
    "python": "python3 -c \"import subprocess; subprocess.run(['ar' + 'ch'])\"",
    "python without the cover": f'python3 -c "{_UMOUNT}"',
    "perl": 'perl -e \'exec "ar" . "ch"\'',
    "awk": 'awk \'BEGIN { system("ar" "ch") }\'',
    "node": "node -e \"console.log(String(require('child_process').execFileSync('ar' + 'ch')))\"",
    "git alias": "git -c alias.x='!$(printf ar)ch' x",
    "make": "printf 'x:\\n\\t@$$(printf ar)ch\\n' > rules.mk; make -s -f rules.mk x",
    "decoded pipe": f"echo {base64.b64encode(b'arch').decode()} | base64 -d | bash",
    "script": f"{_SCRIPT}sh script.sh",
    "source": f"{_SCRIPT}source ./script.sh",
    "standard input": f"{_SCRIPT}bash < script.sh",
    "BASH_ENV": f"{_SCRIPT}BASH_ENV=./script.sh bash -c true",
    "PS4": "PS4='$($(printf ar)ch) ' bash -xc true",
    "rights": "chmod 755 /usr/bin/arch; cp /usr/bin/arch loose; chmod 755 loose; ./loose",
    "another program put there": "mv /usr/bin/arch here; rm -f /usr/bin/arch; PATH=/usr/bin a'r'ch",
}
"""What only the run time shows. Each prints the mark where the program is not covered, if the language it needs is there."""

_NEEDS = {"copy in memory": "python3", "word that is read": "rev"}
_LANGUAGES = {"python": "python3", "perl": "perl", "awk": "awk", "node": "node", "make": "make", "git": "git"}


def language_of(spelling: str) -> str:
    """The program without which it cannot even be tried."""
    if spelling in _NEEDS:
        return _NEEDS[spelling]
    return _LANGUAGES.get(spelling.split()[0], "bash")
