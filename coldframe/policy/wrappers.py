"""Programs that start another program named in their arguments, as tables: which options take a value, what follows.

Options are the documented ones of GNU coreutils 9, findutils 4.10, util-linux 2.41, sudo 1.9 and dash/bash 5.2.
A wrapper that is missing here is a program like any other; what it starts is then for the box to judge.
"""

from typing import NamedTuple


class Wrapper(NamedTuple):
    """How to find the program word behind a wrapper."""

    short: str = ""
    """Short options that take a value."""
    long: tuple[str, ...] = ()
    """Long options that take a value as the next word."""
    operands: int = 0
    """Words of its own before the program."""
    assignments: bool = False
    """`NAME=value` words may precede the program."""
    text: tuple[str, ...] = ()
    """Options whose value is shell text."""
    ends: str = ""
    """Short options with which it starts nothing (`command -v`)."""


WRAPPERS: dict[str, Wrapper] = {
    "busybox": Wrapper(),
    "builtin": Wrapper(),
    "catchsegv": Wrapper(),
    "chroot": Wrapper(long=("userspec", "groups"), operands=1),
    "chrt": Wrapper(short="TPD", operands=1),
    "command": Wrapper(ends="vV"),
    "doas": Wrapper(short="uC"),
    "eatmydata": Wrapper(),
    "env": Wrapper(short="uCa", long=("unset", "chdir", "argv0"), assignments=True, text=("-S", "--split-string")),
    "exec": Wrapper(short="a"),
    "fakeroot": Wrapper(short="liosb"),
    "flock": Wrapper(short="wEc", long=("timeout", "wait", "conflict-exit-code"), operands=1, text=("-c", "--command")),
    "gosu": Wrapper(operands=1),
    "ionice": Wrapper(short="cnpPu", long=("class", "classdata", "pid", "pgid", "uid")),
    "linux32": Wrapper(),
    "linux64": Wrapper(),
    "ltrace": Wrapper(short="aAeDlnopsuwxF"),
    "nice": Wrapper(short="n", long=("adjustment",)),
    "nohup": Wrapper(),
    "nsenter": Wrapper(short="tSG", long=("target", "setuid", "setgid")),
    "numactl": Wrapper(short="iNmCpP"),
    "pkexec": Wrapper(long=("user",)),
    "prlimit": Wrapper(short="po"),
    "runuser": Wrapper(short="ugGsw", long=("user", "group", "shell"), text=("-c", "--command")),
    "script": Wrapper(short="cEIOBTmo", text=("-c", "--command"), operands=99),
    "setarch": Wrapper(operands=1),
    "setpriv": Wrapper(long=("ruid", "euid", "reuid", "rgid", "egid", "regid", "groups", "inh-caps", "bounding-set")),
    "setsid": Wrapper(),
    "stdbuf": Wrapper(short="ioe", long=("input", "output", "error")),
    "strace": Wrapper(short="abeEIoOpPsSuUX"),
    "su": Wrapper(short="cgGsw", long=("group", "supp-group", "shell"), text=("-c", "--command"), operands=99),
    "su-exec": Wrapper(operands=1),
    "sudo": Wrapper(
        short="ugpCrtThDRUac",
        long=("user", "group", "prompt", "close-from", "role", "type", "chdir", "chroot", "host", "command-timeout"),
        assignments=True,
    ),
    "taskset": Wrapper(operands=1),
    "time": Wrapper(short="fo", long=("format", "output")),
    "timeout": Wrapper(short="ks", long=("kill-after", "signal"), operands=1),
    "toybox": Wrapper(),
    "unbuffer": Wrapper(),
    "unshare": Wrapper(short="SGRw", long=("setuid", "setgid", "root", "wd")),
    "xvfb-run": Wrapper(short="efnpsw"),
}

WATCH = Wrapper(short="nq", long=("interval", "equexit"))

XARGS = Wrapper(
    short="ILnPsdEa",
    long=("max-args", "max-procs", "max-chars", "max-lines", "delimiter", "arg-file", "process-slot-var"),
)

SHELLS = frozenset({"ash", "bash", "dash", "ksh", "mksh", "rbash", "sh", "zsh"})

INTERPRETERS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "bun": ("ep", ("--eval", "--print"), ""),
    "lua": ("e", (), "l"),
    "luajit": ("e", (), "l"),
    "node": ("ep", ("--eval", "--print"), "r"),
    "nodejs": ("ep", ("--eval", "--print"), "r"),
    "perl": ("eE", (), "I"),
    "php": ("rBRE", ("--run",), "cd"),
    "pypy": ("c", (), "WX"),
    "python": ("c", (), "WX"),
    "Rscript": ("e", (), ""),
    "ruby": ("e", (), "rI"),
    "tclsh": ("", (), ""),
}
"""Name without version: short options with program text, long ones, other short options that take a value."""

ASSIGNING = frozenset({"declare", "export", "local", "readonly", "typeset"})
READING = frozenset({"getopts", "mapfile", "read", "readarray", "printf", "wait"})
"""Builtins that give variables a value which is not in the text."""

BUILTINS = frozenset(
    [
        ":",
        "[",
        "alias",
        "bg",
        "break",
        "builtin",
        "caller",
        "cd",
        "command",
        "compgen",
        "complete",
        "compopt",
        "continue",
        "declare",
        "dirs",
        "disown",
        "echo",
        "enable",
        "eval",
        "exec",
        "exit",
        "export",
        "false",
        "fc",
        "fg",
        "getopts",
        "hash",
        "help",
        "history",
        "jobs",
        "kill",
        "let",
        "local",
        "logout",
        "mapfile",
        "popd",
        "printf",
        "pushd",
        "pwd",
        "read",
        "readarray",
        "readonly",
        "return",
        "set",
        "shift",
        "shopt",
        "suspend",
        "test",
        "times",
        "trap",
        "true",
        "type",
        "typeset",
        "ulimit",
        "umask",
        "unalias",
        "unset",
        "wait",
    ]
)
"""Builtins of bash. They start no program of their own, so a list of allowed programs need not name them."""
