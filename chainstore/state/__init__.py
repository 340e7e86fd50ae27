"""State: the shore where live training state lies.

`flatten` walks a state and yields `Leaf`s, each with a `Source` of bytes that is read by range; `Assembly` takes the
entries that were stored and gives `Destination`s to fill, then the state.  torch and numpy are imported only when
a state or a snapshot holds their arrays.

    >>> [leaf.path for leaf in flatten({"step": 7})]
    [(), ('step',)]
"""

from chainstore.state.assembly import Assembly
from chainstore.state.chunking import chunk_length, ranges
from chainstore.state.comparison import Comparison, compare, references, shown_spec
from chainstore.state.flatten import flatten
from chainstore.state.leaf import MISSING, Destination, Leaf, Source
from chainstore.state.retrace import Trace
from chainstore.state.values import register
from chainstore.state.walked import Content, content_of

__all__ = [
    "MISSING",
    "Assembly",
    "Comparison",
    "Content",
    "Destination",
    "Leaf",
    "Source",
    "Trace",
    "chunk_length",
    "compare",
    "content_of",
    "flatten",
    "ranges",
    "references",
    "register",
    "shown_spec",
]
