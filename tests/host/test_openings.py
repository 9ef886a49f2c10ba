"""Tables of the kernel are read as they are, and odd text in them harms nobody."""

from coldframe.host import openings

TCP = (
    "  sl  local_address rem_address   st tx_queue rx_queue\n"
    "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n"
    "   1: 0100007F:1F91 0100007F:1F90 01 00000000:00000000\n"
    "   2: what is this\n"
)
TCP6 = "head\n   0: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A\n"
UNIX = (
    "Num       RefCount Protocol Flags    Type St Inode Path\n"
    "0: 00000002 00000000 00010000 0001 01 100 @abstract\n"
    "0: 00000002 00000000 00010000 0001 01 101 /tmp/a name with blanks\n"
    "0: 00000003 00000000 00000000 0001 03 102 /tmp/connected\n"
    "0: 00000003 00000000 00000000 0001 03 103\n"
    "0: x\n"
)
DEV = "Inter-|   Receive\n face |bytes\n    lo:       0\n  eth0:  5\n"


def test_what_listens_is_listed_and_connections_are_not() -> None:
    found, left_out = openings.interfaces({"dev": DEV, "tcp": TCP, "tcp6": TCP6, "unix": UNIX}, guest_link="link")
    assert [(one.kind, one.name) for one in found] == [
        ("network", "eth0"),
        ("network", "lo"),
        ("guest_link", "link"),
        ("tcp", "127.0.0.1:8080"),
        ("tcp", "[::1]:80"),
        ("unix", "/tmp/a name with blanks"),
        ("unix", "@abstract"),
    ]
    assert left_out == 0


def test_a_flood_of_sockets_is_cut_and_counted() -> None:
    rows = "".join(f"   {n}: 0100007F:{n:04X} 00000000:0000 0A\n" for n in range(1, 700))
    found, left_out = openings.interfaces({"tcp": "head\n" + rows}, guest_link="link")
    assert len([one for one in found if one.kind == "tcp"]) == openings.LISTED_SOCKETS
    assert left_out == 699 - openings.LISTED_SOCKETS


def test_a_table_that_the_counts_call_empty_is_not_read_and_one_that_they_do_not_know_is() -> None:
    asked = []

    def read(name: str) -> str:
        asked.append(name)
        if name == "sockstat":
            return "sockets: used 3\nTCP: inuse 0 orphan 0\nUDP: inuse 2 mem 0\nRAW: inuse 0\n"
        if name == "sockstat6":
            raise OSError
        return ""

    openings.network_tables(read)
    assert {"udp", "tcp6", "udp6", "raw6", "dev", "unix", "packet"} <= set(asked)
    assert not {"tcp", "raw"} & set(asked)


def test_every_mount_has_a_class_and_a_strange_one_is_other() -> None:
    rows = [
        "1 0 0:50 /newroot / ro,nosuid,nodev - tmpfs tmpfs rw",
        "2 1 254:0 /usr /usr ro,nosuid,nodev - ext4 /dev/vda rw",
        "3 1 254:0 /w /home/user rw,nosuid,nodev - ext4 /dev/vda rw",
        "4 1 254:0 /srv /srv/strange\\040folder rw - ext4 /dev/vda rw",
        "5 1 0:6 /null /dev/null rw,nosuid - devtmpfs devtmpfs rw",
        "6 1 0:6 /null /proc/keys ro - devtmpfs devtmpfs rw",
        "7 1 0:52 /denied /bin/arch ro,noexec - tmpfs denied ro,size=4k",
        "8 1 0:52 /denied /opt/coldframe/sleep ro,noexec - tmpfs denied ro,size=4k",
        "9 1 0:52 /denied /opt/coldframe/bin/deno ro,noexec - tmpfs denied ro,size=4k",
        "cut off",
    ]
    found = {one.target: (one.source, one.writable) for one in openings.mounts("\n".join(rows))}
    assert found == {
        "/": ("memory", False),
        "/usr": ("system", False),
        "/home/user": ("workspace", True),
        "/srv/strange folder": ("other", True),
        "/dev/null": ("device", True),
        "/proc/keys": ("mask", False),
        "/bin/arch": ("mask", False),
        "/opt/coldframe/sleep": ("mask", False),
        "/opt/coldframe/bin/deno": ("mask", False),
    }


def test_a_listing_of_devices_that_is_none_is_empty() -> None:
    rows = [["/dev/null", "character", 1, 3], ["/dev/x", "pipe", 1, 1], "text", ["/dev/y", "block", "a", 2], None]
    assert [one.path for one in openings.devices(rows)] == ["/dev/null"]
    assert list(openings.devices(None)) == []


def test_sockets_of_the_way_out_are_told_by_their_inodes_and_are_not_the_boxs() -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    row = "   {n}: 0100007F:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 {inode} 1 0 100\n"
    table = head + row.format(n=0, port=1023, inode=77) + row.format(n=1, port=8000, inode=78)
    found, left_out = openings.interfaces({"tcp": table}, guest_link="socket", ours={77})
    told = {(one.kind, one.name): one.held_by for one in found}
    assert told["tcp", "127.0.0.1:1023"] == "product"
    assert told["tcp", "127.0.0.1:8000"] == "box"
    assert left_out == 0
    assert openings.listening({"tcp": table}) == {77, 78}
