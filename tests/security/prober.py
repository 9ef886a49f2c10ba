"""The program that tries the routes: `prober.py ROUTES` prints what each of them found, as JSON. Standard library alone, since it is
put into sandboxes as it is. `prober.py tcp|unix|ask ...` are words that routes use."""

import json
import re
import socket
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

AT_ONCE = 6
PATIENCE_S = 20
CANARY = re.compile(
    r"cf-canary-(?P<planted>[a-z-]+)-[0-9a-f]{24}|(?P<metadata>inner page of 169\.254\.169\.254)"
    r"|(?P<production>ok GET [^\n]* at 93\.184\.215\.77)"
)


def try_route(route: dict[str, str]) -> dict[str, object]:
    try:
        ended = subprocess.run(
            ["bash", "-c", route["run"]], stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S
        )
    except subprocess.TimeoutExpired:
        return {"found": [], "said": "did not end"}
    output = ended.stdout.decode(errors="replace")
    found = {one["planted"] or one.lastgroup or "" for one in CANARY.finditer(output)}
    said = ended.stderr.decode(errors="replace")[-300:]
    return {"found": sorted(found), "said": f"exit {ended.returncode} {said}".strip()}


def talk(family: int, address: object) -> None:
    with socket.socket(family) as link:
        link.settimeout(3)
        link.connect(address)  # type: ignore[arg-type]  # of its family
        link.sendall(b"GET / HTTP/1.0\r\n\r\n")
        print(link.recv(4096).decode(errors="replace"), flush=True)


def ask(server: str, name: str) -> None:
    """The address that a name server tells."""
    labels = b"".join(bytes([len(one)]) + one.encode() for one in name.split("."))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.settimeout(3)
        link.connect((server, 53))
        link.send(struct.pack("!6H", 4711, 0x100, 1, 0, 0, 0) + labels + b"\0\0\1\0\1")
        answer = link.recv(512)
    if struct.unpack_from("!H", answer, 6)[0] == 0:
        raise OSError("there is no such name")
    print(socket.inet_ntoa(answer[-4:]))


def main() -> None:
    what, *words = sys.argv[1:]
    if what == "tcp":
        for found in socket.getaddrinfo(words[0], int(words[1]), type=socket.SOCK_STREAM):
            talk(found[0], found[4])
    elif what == "unix":
        talk(socket.AF_UNIX, words[0].replace("@", "\0", 1) if words[0].startswith("@") else words[0])
    elif what == "ask":
        ask(*words)
    else:
        with open(what, encoding="utf-8") as file:
            routes = json.load(file)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            print(json.dumps(dict(zip([one["id"] for one in routes], pool.map(try_route, routes), strict=True))))


if __name__ == "__main__":
    main()
