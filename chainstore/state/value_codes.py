"""What the first item of a stored value says: one number for each kind of plain value.

A plain value travels as a node (`model/wire.py`).  None, bool, int, str and bytes stand bare; everything else is
`[code, ...]` with a code of this table.  The numbers are on disk and never reused.  `v` is any value, `text` a str.

    ==== =================== ================================================================================
    code value               what follows the code
    ==== =================== ================================================================================
      1  float               8 bytes, IEEE 754 binary64, little-endian: NaN payloads and -0.0 survive
      2  tuple               v, ...
      4  str                 bytes: UTF-8 with halves of surrogate pairs let through; only where there are some
      5  list                v, ...
      6  dict                key, v, key, v, ... in order; keys are values too, so 1, True, 1.0 and "1" differ
      7  OrderedDict         its attributes (a dict, or None), then as dict
      8  Counter             as dict
      9  defaultdict         factory (None, or the name of a builtin type, see `FACTORIES`), then as dict
     10  set                 v, ... in the order of their encodings
     11  frozenset           as set
     12  deque               its maxlen (int or None), v, ...
     13  list of floats      one bytes: 8 for each float, as in 1
     14  tuple of floats     as 13
     15  complex             16 bytes: real and imaginary part, each as in 1
     16  bytearray           bytes
     17  range               start, stop, step
     18  slice               v start, v stop, v step
     19  Ellipsis            nothing
     20  datetime            year, month, day, hour, minute, second, microsecond, fold, zone (None, 24 or 25)
     21  date                year, month, day
     22  time                hour, minute, second, microsecond, fold, zone
     23  timedelta           days, seconds, microseconds
     24  timezone            days, seconds, microseconds of the offset, name (text or None)
     25  ZoneInfo            text: its key in the time zone database
     26  Decimal             text
     27  Fraction            numerator, denominator
     28  UUID                16 bytes
     29  a pathlib path      name of its class, text
     30  random.Random       version of its state (3), v gauss_next, 625 ints
     40  a registered type   name, version, v what its `encode` returned
     50  NumPy scalar        dtype, its bytes (str_ and bytes_: "U" or "S" and the value)
     51  NumPy dtype         dtype: see `numpy_values.dtype_node`
     52  SeedSequence        entropy (an int, or a list of ints), pool size, children spawned, spawn key: int, ...
     53  NumPy bit generator name, SeedSequence or None, then its state: see `numpy_values.LAYOUTS`
     54  NumPy Generator     its bit generator
     55  NumPy RandomState   its bit generator, has_gauss (0 or 1), gauss (8 bytes)
     70  torch.Size          int, ...
     71  torch.dtype         name without "torch."
     72  torch.device        type, index (int or None)
     73  torch.layout        as 71
     74  torch.memory_format as 71
     75  torch.qscheme       as 71
    ==== =================== ================================================================================

Code 3 is `Attr`, which occurs in paths only.
"""

from typing import Final

from chainstore.model import keys

FLOAT: Final = keys.FLOAT
TUPLE: Final = keys.TUPLE
TEXT: Final = keys.TEXT
LIST: Final = 5
DICT: Final = 6
ORDERED_DICT: Final = 7
COUNTER: Final = 8
DEFAULT_DICT: Final = 9
SET: Final = 10
FROZENSET: Final = 11
DEQUE: Final = 12
FLOAT_LIST: Final = 13
FLOAT_TUPLE: Final = 14
COMPLEX: Final = 15
BYTEARRAY: Final = 16
RANGE: Final = 17
SLICE: Final = 18
ELLIPSIS: Final = 19
DATETIME: Final = 20
DATE: Final = 21
TIME: Final = 22
TIMEDELTA: Final = 23
TIMEZONE: Final = 24
ZONE_INFO: Final = 25
DECIMAL: Final = 26
FRACTION: Final = 27
UUID: Final = 28
PATH: Final = 29
RANDOM: Final = 30
REGISTERED: Final = 40
NUMPY_SCALAR: Final = 50
NUMPY_DTYPE: Final = 51
SEED_SEQUENCE: Final = 52
BIT_GENERATOR: Final = 53
GENERATOR: Final = 54
RANDOM_STATE: Final = 55
TORCH_SIZE: Final = 70
TORCH_DTYPE: Final = 71
TORCH_DEVICE: Final = 72
TORCH_LAYOUT: Final = 73
TORCH_MEMORY_FORMAT: Final = 74
TORCH_QSCHEME: Final = 75

NUMPY_CODES: Final = range(50, 70)  # decoded by numpy_values
TORCH_CODES: Final = range(70, 90)  # decoded by torch_values

FACTORIES: Final[dict[str, type]] = {kind.__name__: kind for kind in (int, float, list, dict, set, str, bool)}


class Refused(Exception):
    """A value cannot be stored; the message says why, whoever walks the state knows where."""
