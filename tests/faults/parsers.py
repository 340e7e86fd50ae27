"""Everything here that reads bytes of others, with valid samples from a real repository and nasty ones made by hand.

What is checksummed is signed again after it was changed: a checksum keeps chance out, and nobody else.
"""

from collections.abc import Callable
from pathlib import Path

from tests.faults import file_parsers, frame_parsers, node_parsers
from tests.faults.parser import Parser
from tests.faults.samples import Samples

PARSERS: dict[str, Callable[[Samples, Path], Parser]] = {
    made.__name__: made
    for made in (
        *(frame_parsers.record, frame_parsers.pack, frame_parsers.line),
        *(node_parsers.changes, node_parsers.node, node_parsers.page, node_parsers.commit, node_parsers.value),
        *(node_parsers.snapshot, node_parsers.replay, file_parsers.keyring, file_parsers.small_files),
        *(file_parsers.codec, file_parsers.path, file_parsers.revision),
    )
}
