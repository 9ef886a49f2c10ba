"""A large package that was kept is checked on its way: where it was damaged, its last bytes are not handed over."""

import asyncio
from pathlib import Path

import pytest

from coldframe.host.egress.packages.cache import Digest
from coldframe.host.egress.packages.download import PART_BYTES, Kept, parts_of

WHOLE = bytes(range(256)) * (3 * PART_BYTES // 256)
DIGEST = Digest("sha256", "")


@pytest.mark.parametrize("is_damaged", [False, True])
def test_what_was_not_checked_first_ends_broken_if_it_does_not_add_up(tmp_path: Path, is_damaged: bool) -> None:
    found = DIGEST.hash()
    found.update(WHOLE)
    digest = DIGEST._replace(value=found.hexdigest())
    path, dropped, heard = tmp_path / "kept", [], bytearray()
    path.write_bytes(b"x" + WHOLE[1:] if is_damaged else WHOLE)

    async def steps() -> None:
        with path.open("rb") as file:
            kept = Kept(file.fileno(), len(WHOLE), is_checked=False)
            async for part in parts_of(kept, digest, lambda: dropped.append(path)):
                heard.extend(part)

    if is_damaged:
        with pytest.raises(ConnectionError, match="damaged"):
            asyncio.run(steps())
        assert dropped == [path] and len(heard) < len(WHOLE)
    else:
        asyncio.run(steps())
        assert dropped == [] and heard == WHOLE
