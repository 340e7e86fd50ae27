"""Bytes of which few values are common, as digits of four bits each, two in a byte.

Digits 0 to 14 stand for common values; 15 says that the value comes elsewhere.  The first of two digits is in the low
four bits.

    >>> stream = np.frombuffer(b"aaba-" + b"ab" * 9, np.uint8)
    >>> packed, values, others = digits_of(stream, np.bincount(stream, minlength=256))
    >>> packed.size, values[:3].tobytes(), others.tobytes()
    (12, b'ab-', b'')
    >>> values_of(packed, values.tobytes(), 23)[0].tobytes()[:7]
    b'aaba-ab'
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from chainstore.codecs.planes import Array
from chainstore.codecs.positions import Mask, gather
from chainstore.errors import Malformed

DIGITS: Final = 16
_OTHER: Final = DIGITS - 1
_BOTH: Final = np.stack((np.arange(256) % DIGITS, np.arange(256) // DIGITS), 1)  # digits of a byte
Bytes = NDArray[np.uint8]


def digits_of(stream: Array, counts: NDArray[np.integer[Any]]) -> tuple[Bytes, Bytes, Bytes]:
    """Return the packed digits of some bytes, the value of each digit, and the bytes that have the last one.

    That digit's own value is none of the others, so that it marks where those bytes are.  An odd number of digits is
    filled up with the one of the most frequent value.

    Args:
        counts: how often each of the 256 values occurs, or does in a sample.
    """
    values: Bytes = np.argsort(-counts, kind="stable")[:DIGITS].astype(np.uint8)
    digit = np.full(256, _OTHER, np.uint8)
    digit[values] = np.arange(DIGITS, dtype=np.uint8)
    digits = np.zeros(stream.size + stream.size % 2, np.uint8)
    digit.take(stream, out=digits[: stream.size], mode="clip")
    elsewhere = digits[: stream.size] == _OTHER
    others = np.empty(int(np.count_nonzero(elsewhere)), np.uint8)
    gather(stream, elsewhere, others)
    packed: Bytes = digits[0::2] | digits[1::2] << np.uint8(4)
    return packed, values, others


def values_of(packed: Array, values: bytes, count: int) -> tuple[Bytes, Mask]:
    """Return the `count` bytes that packed digits stand for, and which of them come elsewhere.

    Raises:
        Malformed: the last digit's value is another digit's too.
    """
    if values[_OTHER] in values[:_OTHER]:
        raise Malformed("planes", "two digits have the value that stands for none", 0)
    both = np.frombuffer(values, np.uint8).take(_BOTH).view(np.uint16).reshape(-1)
    found = both.take(packed).view(np.uint8)[:count]
    return found, found == values[_OTHER]
