"""Clean: a note that says up to where there is nothing to collect, so that the next gc need not look.

It is a hint, written after everything else: whoever loses or forges it makes gc look, or not look, and nothing more.
"""

import json
from contextlib import suppress

from chainstore.errors import Malformed, StorageError
from chainstore.odb.layout import Layout
from chainstore.storage import fs
from chainstore.storage.log import Position

_LIMIT = 4096
NEVER_US = 1 << 62


def is_clean(layout: Layout, position: Position, now_us: int) -> bool:
    """Whether nothing was published since the last collection that left nothing over, and nothing expired."""
    try:
        note = json.loads(fs.read_all(layout.leases / "gc.clean", _LIMIT))
        return bool(note["seq"] == position.seq and note["hash"] == position.hash.hex() and now_us < note["until_us"])
    except (FileNotFoundError, Malformed, StorageError, ValueError, KeyError, TypeError):
        return False


def leave_clean(layout: Layout, position: Position, until_us: int) -> None:
    """Note that there is nothing to collect up to `position`, before `until_us` microseconds since 1970."""
    note = {"seq": position.seq, "hash": position.hash.hex(), "until_us": until_us}
    with suppress(StorageError):  # on a full disk, the next gc looks again
        fs.write_atomic(layout.leases / "gc.clean", json.dumps(note).encode())
