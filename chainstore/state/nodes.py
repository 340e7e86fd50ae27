"""What the first item of an entry's node says: one number for each kind of entry.  On disk, append-only, never reused.

An entry's node is `[code, ...]`.  It holds structure only (names, shapes, strides, flags); values are bytes of the
entry or of its children.  Children of a container carry its keys, inner parts of a composite an `Attr`.

    ==== =============================================================== ============== ==============================
    code node                                                            bytes          children
      1  [VALUE]                                                         a plain value  (encoded: `values`)
      2  [DICT]                                                                         its items, in order
      3  [LIST]                                                                         0, 1, 2...
      4  [TUPLE]                                                                        0, 1, 2...
      5  [ORDERED_DICT]                                                                 @attributes, then its items
      6  [DEFAULT_DICT, factory | nil]                                                  its items
      7  [DEQUE, longest | nil]                                                         0, 1, 2...
      8  [REGISTERED, name, version]                                                    @state: what `encode` returned
      9  [ALIAS, same, target, shown]    the array at path `target` again: the same object, or another on its memory
     16  [TENSOR, shown, strides | nil, shape | nil]                     as in memory
     17  [TENSOR_STORAGE]                                                as in memory   (is `@storage` of a view)
     18  [TENSOR_VIEW, shown, dtype, shape, strides, offset, target]                    `target`: path of the storage
     19  [SPARSE_COO, shown, dtype, shape, coalesced]                                   @indices @values
     20  [SPARSE_COMPRESSED, shown, dtype, shape, layout]                               @compressed @plain @values
     21  [QUANTIZED, shown, dtype, shape, scheme, axis]                                 @data @scale @zero_point
     22  [NESTED, shown]                                                                @tensors
     23  [JAGGED, shown, ragged dimension]                                              @values @offsets @lengths...
     24  [SUBCLASS, shown, version, name, shape, strides]                               @context @inner
     25  [GENERATOR, device type]                                                       @state
     32  [ARRAY, shown, dtype | nil, strides | nil, shape | nil]         as in memory
     33  [ARRAY_STORAGE]                                                 as in memory   (is `@storage` of a view)
     34  [ARRAY_VIEW, shown, dtype, shape, strides, offset, target]                     `target`: path of the storage
    ==== =============================================================== ============== ==============================

Trailing nil and zero fields of TENSOR and ARRAY are left out.  `shown` is a sum of flags (see the adapters): whether
a tensor is a Parameter, whether an array is read-only.  Strides and offsets count bytes; strides stand where the
bytes are not in C order.  `shape` stands where dimensions of size 1 are shown many times (expanded arrays).
"""

from typing import Final

VALUE: Final = 1
DICT: Final = 2
LIST: Final = 3
TUPLE: Final = 4
ORDERED_DICT: Final = 5
DEFAULT_DICT: Final = 6
DEQUE: Final = 7
REGISTERED: Final = 8
ALIAS: Final = 9

TENSOR: Final = 16
TENSOR_STORAGE: Final = 17
TENSOR_VIEW: Final = 18
SPARSE_COO: Final = 19
SPARSE_COMPRESSED: Final = 20
QUANTIZED: Final = 21
NESTED: Final = 22
JAGGED: Final = 23
SUBCLASS: Final = 24
GENERATOR: Final = 25

ARRAY: Final = 32
ARRAY_STORAGE: Final = 33
ARRAY_VIEW: Final = 34

TORCH_CODES: Final = range(16, 32)  # rebuilt by torch_adapter
NUMPY_CODES: Final = range(32, 48)  # rebuilt by numpy_adapter

SEQUENCES: Final = frozenset({LIST, TUPLE, DEQUE})
MAPPINGS: Final = frozenset({DICT, ORDERED_DICT, DEFAULT_DICT})
CONTAINERS: Final = SEQUENCES | MAPPINGS
STORED: Final = frozenset({TENSOR, TENSOR_STORAGE, ARRAY, ARRAY_STORAGE})  # arrays with bytes of their own
STORAGE_OF: Final = {TENSOR: TENSOR_STORAGE, ARRAY: ARRAY_STORAGE}
VIEW_OF: Final = {TENSOR: TENSOR_VIEW, ARRAY: ARRAY_VIEW}
VIEWS: Final = frozenset(VIEW_OF.values())
