"""The codec seam: what turns the bytes of a chunk into fewer bytes and back, and the numbers by which records name it.

A record carries four tag bytes, the codecs in the order they were applied, padded with zeros; all zeros means the
payload is the chunk itself.  Tags are on disk and never reused.

    >>> CODEC_MODULES[PLANES]
    'chainstore.codecs.plane_codec'
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, runtime_checkable

from chainstore.codecs.thrift import Thrift
from chainstore.errors import ConfigError

TAG_BYTES: Final = 4
RAW_TAGS: Final = bytes(TAG_BYTES)

PLANES: Final = 1  # byte planes, each raw, constant, sparse or entropy coded
GENERAL: Final = 2  # one zstd frame
XOR: Final = 3  # planes of the bits that differ from one base
DIFFERENCE: Final = 4  # planes of the integer difference to one base
ADAM: Final = 5  # planes of the difference to what an optimizer would have made of its bases

NOT_SHORTER: Final = -1

# Where the codec of a tag lives.  A module is loaded at the first use of its tag, so that what only reads commits
# and trees never loads numpy; it offers `make(effort) -> Codec`, or one for each of its tags in `FACTORIES`.
CODEC_MODULES: Final[dict[int, str]] = {
    PLANES: "chainstore.codecs.plane_codec",
    GENERAL: "chainstore.codecs.zstd",
    XOR: "chainstore.codecs.residuals",
    DIFFERENCE: "chainstore.codecs.residuals",
    ADAM: "chainstore.codecs.adam_codec",
}
BUILT_IN_DELTAS: Final = frozenset((XOR, DIFFERENCE, ADAM))  # each is a whole chain by itself


class ItemSpec(Protocol):
    """What a codec wants to know of an array's items; `model.spec.Spec` fits."""

    @property
    def itemsize(self) -> int: ...

    @property
    def kind(self) -> str:
        """One of "float", "complex", "int", "uint", "bool", "bits"."""
        ...


@dataclass(frozen=True, slots=True)
class Hint:
    """What the caller knows of a chunk beyond its dtype; it may improve a choice and never decides correctness.

    Attributes:
        role: "weight", "exp_avg", ... or "" where unknown.
        step: optimizer steps since the bases, None where unknown.
        parameters: of `Against`, for codecs that take some; such a codec gives up where they make no sense.
    """

    role: str = ""
    step: int | None = None
    parameters: bytes = b""


NO_HINT: Final = Hint()


class Against(NamedTuple):
    """One way to code a chunk: against other chunks.

    Attributes:
        tag: of a codec with bases.
        bases: plain bytes of the other chunks, in the order in which the record names them; where one is not as long
            as the chunk, this way is passed over.
        parameters: what this codec wants to know beyond them.
    """

    tag: int
    bases: tuple[memoryview, ...]
    parameters: bytes = b""


class Encoded(NamedTuple):
    """What became of a chunk.

    Attributes:
        tags: the four tag bytes of its record.
        payload: the chunk itself, or scratch memory that is valid until the encoder's next call.
        against: which of the ways that were offered it is, with the bases that decoding needs; None: it needs none.
    """

    tags: bytes
    payload: memoryview
    against: Against | None


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to try.

    Attributes:
        raw_bits: a byte plane with more bits of entropy per byte than this is stored as it is.
        sparse_share: where one value has this share of a plane, the places of the others are coded apart.  A Huffman
            coder spends a whole bit at least on every byte: at 0.75 that loses 0.2 bits of it, at 0.5 none.
        level: zstd level where matches are looked for.
        thorough: where a sample leaves open which coding is smaller, try them all.
        thrift: knows what is worth its time; None where everything is.
    """

    raw_bits: float
    sparse_share: float
    level: int
    thorough: bool = False
    thrift: Thrift | None = None


# 7.9: a gain of 1.2 % of a plane or less is not worth its 200 us per 256 KiB (benchmarks/micro/codecs.py).
EFFORTS: Final = {
    "fast": Effort(raw_bits=7.2, sparse_share=0.9, level=1),
    "auto": Effort(raw_bits=7.9, sparse_share=0.75, level=3),
    "small": Effort(raw_bits=7.99, sparse_share=0.5, level=6, thorough=True),
}


def effort_named(choice: str) -> Effort:
    """Return the effort of a `codec=` setting other than "none"; ConfigError if there is none of that name."""
    if choice not in EFFORTS:
        raise ConfigError(f"codec must be one of none, {', '.join(EFFORTS)}; not {choice!r}")
    return EFFORTS[choice]


def residual_tag(spec: ItemSpec | None) -> int:
    """Return which of XOR and DIFFERENCE makes chunks of such items smaller.

    Differences are 2 to 15 % smaller where items are numbers, float8 included, exclusive ors 10 to 20 % where they are
    flags (`benchmarks/micro/codecs.py --deltas`).
    """
    return XOR if spec is not None and spec.kind in ("bool", "bits") else DIFFERENCE


class Codec(Protocol):
    """A reversible transformation of the bytes of one chunk.

    An instance belongs to one thread and may keep scratch buffers between calls.  What `decode` needs to know beyond
    the length of the plain bytes and the bases stands at the head of the payload, never in `spec`.  In a chain every
    codec but the last returns exactly as many bytes as it got.  Bases are as long as the plain bytes.
    """

    @property
    def tag(self) -> int:
        """1 to 255, on disk, never reused."""
        ...

    @property
    def bases(self) -> int:
        """The most base chunks it can use; 0: it looks at the data alone."""
        ...

    def encode(
        self, data: memoryview, spec: ItemSpec | None, bases: Sequence[memoryview], hint: Hint, out: memoryview
    ) -> int:
        """Write the payload into `out` and return its length, or NOT_SHORTER if it would be no shorter than `data`.

        Args:
            data: bytes in C order, perhaps read-only, at any alignment; kept no longer than the call.
            spec: the items of `data`; None for bytes of unknown meaning.
            bases: plain bytes of at most `self.bases` other chunks, in the order the record will name them.
            out: at least len(data) writable bytes that overlap neither `data` nor a base.
        """
        ...

    def decode(self, payload: memoryview, spec: ItemSpec | None, bases: Sequence[memoryview], out: memoryview) -> None:
        """Fill `out`, whose length is that of the plain bytes, from what `encode` wrote.

        The payload may be hostile: memory stays within a small multiple of len(out), nothing outside `out` is written.
        What `out` holds after an error is undefined.

        Raises:
            Malformed: `payload`, or the number or length of the bases, cannot have come from `encode`.
        """
        ...


@runtime_checkable
class Foresighted(Protocol):
    """A codec that knows cheaply when it need not be tried."""

    def at_least(self, data: memoryview, spec: ItemSpec | None) -> int:
        """Return a length that `encode` will hardly stay below; 0 where that cannot be told."""
        ...


@runtime_checkable
class Moving(Protocol):
    """A codec that can turn its one base into what builds on it where that lies."""

    @property
    def moves(self) -> bool:
        """Whether `decode` takes `out` as the base too."""
        ...


class Factory(Protocol):
    """Makes a codec for one thread."""

    def __call__(self, effort: Effort) -> Codec: ...
