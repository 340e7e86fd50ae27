"""The documents: their Python runs, their links lead somewhere, and the format they describe is the one in use.

The Python and shell blocks of a document run in order, in one namespace and one directory that is empty at first.
What a `console` block shows after a command must be printed by it, in that order; numbers, ids and times may differ,
and lines may be left out.  A block that cannot run has `<!-- not run: why -->` on the line above it.
"""

import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from chainstore import errors, ids
from chainstore.crypto import aead
from chainstore.errors import ChainError
from chainstore.ids import Hasher, Kind, ObjectId
from chainstore.model import frame, spec, tree
from chainstore.model.change import Checkpoint, PackGrown, SetRef, decode_changes, encode_changes
from chainstore.model.commit import Note
from chainstore.model.frame import Line, frame_record, parse_line, split_record
from chainstore.model.manifest import Manifest
from chainstore.model.wire import decode
from chainstore.observe import silent
from chainstore.odb import rows
from chainstore.odb.layout import Format, Layout
from chainstore.odb.local import LocalDatabase
from chainstore.odb.opening import create_local
from chainstore.odb.record import SUITE_NONE, Sealer
from chainstore.odb.surroundings import Surroundings
from chainstore.ops.commit import write, write_commit, write_trees
from chainstore.state import flatten, nodes, value_codes
from chainstore.storage import pack

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FORMAT = ROOT / "docs" / "format.md"
ERRORS = ROOT / "docs" / "reference" / "errors.md"

FENCE = re.compile(r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<language>[^\s`]*)\n(?P<body>.*?)^```$", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.M)
MACHINE_PATH = re.compile(r"(?<![\w.~/:-])/(?:home|root|work|tmp|var|mnt|Users|opt|srv|dev|proc|venv)/")
DUMP_LINE = re.compile(r"([0-9a-f]{4})  ((?:[0-9a-f]{2} ?)+?)  +.*")
EXAMPLE_TIME = 1_700_000_000_000_000

everywhere = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: the comment on the line above it, its language, its text, the line it begins in."""

    mark: str
    language: str
    body: str
    line: int


def blocks(document: Path) -> list[Block]:
    text = document.read_text()
    return [
        Block(found["mark"] or "", found["language"], found["body"], text.count("\n", 0, found.start("body")) + 1)
        for found in FENCE.finditer(text)
    ]


def prose(document: Path) -> str:
    """Return a document without its fenced blocks and inline code."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", document.read_text()))


def anchors(document: Path) -> set[str]:
    """Return what the headings of a document are linked by, as GitHub makes it."""
    headings = HEADING.findall(FENCE.sub("", document.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def section(document: Path, number: int) -> str:
    """Return a numbered section."""
    found = re.search(rf"^## {number}\. .*?(?=^## |\Z)", document.read_text(), re.M | re.S)
    assert found, f"no section {number} in {document.name}"
    return found[0]


def cells(text: str) -> list[list[str]]:
    """Return the rows of all tables in a text, heads apart."""
    table = [line.strip().strip("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in table if not set(line) <= set("-| ")]


# ---- all documents -------------------------------------------------------------------------------------------


class Terminal:
    """A bash as a reader has it: `chain` and `python` are those of this process, what is exported stays."""

    def __init__(self) -> None:
        self.environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "100",
        }

    def run(self, script: str) -> str:
        """Run a script here and return what it printed; its first command that fails fails the test."""
        with tempfile.TemporaryFile("w+") as left:
            done = subprocess.run(
                ["bash", "-eo", "pipefail", "-c", f"{script}\nenv -0 >&{left.fileno()}"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[left.fileno()],
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"exit code {done.returncode} of:\n{script}\n{done.stdout}"
            left.seek(0)
            self.environment = dict(pair.split("=", 1) for pair in left.read().split("\0") if pair)
        return done.stdout


def transcript(body: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a console block, each with the lines that it is shown to print."""
    found: list[tuple[str, list[str]]] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found[-1][0].endswith("\\"):
            found[-1] = (f"{found[-1][0]}\n{line}", [])
        else:
            found[-1][1].append(line)
    return found


def loosely(line: str) -> str:
    """Return a line of output without what is another one each time: ids, numbers with their units, white space."""
    line = re.sub(r"\b(?=[0-9a-f]*[0-9])[0-9a-f]{7,64}\b", "ID", line)
    line = re.sub(r"\d+(?:[.,]\d+)*(?:e[-+]\d+)?(?: (?:B|kB|MB|GB|ms|s|min|h)\b)?", "N", line)
    return " ".join(line.split())


def shows(shown: str, line: str) -> bool:
    """Tell whether a shown line stands for a printed one; "..." within it stands for anything."""
    return bool(re.fullmatch(".*".join(map(re.escape, loosely(shown).split("..."))), loosely(line)))


def run_console(terminal: Terminal, block: Block) -> None:
    """Run the commands of a console block and compare what they print with what the block shows."""
    commands = transcript(block.body)
    printed = terminal.run("\n".join(f"{command}\necho -e '\\x1e'" for command, _ in commands)).split("\x1e\n")
    for (command, shown), output in zip(commands, printed, strict=False):
        rest = iter(output.splitlines())
        for line in shown:
            told = f"`{command}` (line {block.line}) does not print {line!r} there, but:\n{output}"
            assert line == "..." or any(shows(line, one) for one in rest), told


@pytest.mark.filterwarnings("ignore")
@everywhere
def test_the_blocks_of_the_documents_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    terminal = Terminal()
    for block in blocks(document):
        if block.mark.startswith("not run: "):
            continue
        if block.language == "python":
            source = "\n" * (block.line - 1) + block.body  # so that a traceback shows the line of the document
            exec(compile(source, document, "exec", dont_inherit=True), namespace)
        elif block.language == "sh":
            terminal.run(block.body)
        elif block.language == "console":
            run_console(terminal, block)


def test_a_transcript_is_compared_up_to_ids_numbers_and_lines_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    say = "$ printf '0123456789ab  12.5 MB\\nsecond\\nthird one\\n'\n"
    run_console(Terminal(), Block("", "console", say + "ba9876543210  3 kB\nthird ...\n$ x=2\n$ echo $x\n7\n", 1))
    for wrong in ("third one\nsecond\n", "third\n", "fourth\n"):
        with pytest.raises(AssertionError, match="does not print"):
            run_console(Terminal(), Block("", "console", say + wrong, 1))


def test_only_languages_that_run_or_are_known_not_to_are_used_in_the_documents():
    used = {block.language for document in DOCUMENTS for block in blocks(document)}
    assert used <= {"python", "sh", "console", "", "text", "json", "yaml", "toml", "py", "{toctree}"}


@everywhere
def test_links_between_documents_lead_somewhere(document: Path):
    for target in LINK.findall(prose(document)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        place = (document.parent / name) if name else document
        assert place.exists(), f"{document.name} links to {target}"
        assert not anchor or anchor in anchors(place), f"{document.name} links to {target}: no such heading"


@everywhere
def test_no_document_names_a_path_of_some_machine(document: Path):
    assert not MACHINE_PATH.findall(document.read_text())


def test_every_decision_is_in_the_index_and_has_its_parts():
    folder = ROOT / "docs" / "decisions"
    decisions = sorted(path for path in folder.glob("*.md") if path.name != "README.md")
    assert decisions
    assert set(LINK.findall((folder / "README.md").read_text())) == {path.name for path in decisions}
    for number, path in enumerate(decisions, 1):
        assert path.name.startswith(f"{number:04d}-"), path.name
        parts = [heading for heading in HEADING.findall(path.read_text())]
        assert parts[1:] == ["Context", "Decision", "Alternatives", "Consequences"], path.name
        assert parts[0].startswith(f"{number}. "), path.name


def error_classes() -> Iterator[type[ChainError]]:
    for name in ("chainstore.crypto.aead", "chainstore.odb.conflicts"):  # they define errors of their own
        importlib.import_module(name)
    known = [ChainError]
    while known:
        kind = known.pop()
        known += [below for below in kind.__subclasses__() if below.__module__.startswith("chainstore.")]
        yield kind


def test_the_reference_lists_every_error_with_its_code_and_exit_code():
    listed = {(row[0].strip("`"), row[1].strip("`"), row[2]) for row in cells(ERRORS.read_text()) if row[0] != "code"}
    expected = {(kind.code, kind.__name__, str(kind.exit_code)) for kind in error_classes()}
    assert listed == expected


def test_the_reference_says_of_every_error_when_it_comes_and_what_to_do():
    for row in cells(ERRORS.read_text()):
        assert len(row) == 5 and all(row), row


# ---- the format ----------------------------------------------------------------------------------------------


def marked(name: str) -> str:
    (body,) = [block.body for block in blocks(FORMAT) if block.mark == name]
    return body


def dumped(name: str) -> bytes:
    """Return the bytes of a hex dump in docs/format.md."""
    lines = [DUMP_LINE.fullmatch(line) for line in marked(f"dump: {name}").splitlines()]
    assert [int(line[1], 16) for line in lines if line] == [16 * place for place in range(len(lines))]
    return b"".join(bytes.fromhex(line[2]) for line in lines if line)


@dataclass(frozen=True, slots=True)
class Example:
    """The bytes of the worked example as the package makes them."""

    record: bytes
    log: bytes
    page: bytes


def commit_example(db: LocalDatabase) -> ObjectId:
    """Commit the example's state and return the id of its leaf page."""
    state = {"model": {"weight": np.array([[1, 2], [3, -4]], np.float32)}, "step": 7}
    batch = db.batch("auto")
    manifest, stats = write(batch, flatten(state), threads=1, max_memory_bytes=1 << 24, observer=silent)
    root, _ = write_trees(batch, manifest, Manifest())
    commit = write_commit(batch, root, (), Note("first", "ada", 7), EXAMPLE_TIME, stats)
    db.publish(batch, [SetRef("heads/main", None, commit, "commit: first")])
    db.retire_batch(batch)
    page = tree.Root.from_bytes(bytes(db.read(root))).state
    assert page is not None
    return page


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    numbers = iter(range(1, 256))
    format = Format(bytes(range(16)), SUITE_NONE)
    layout = Layout(tmp_path_factory.mktemp("example") / "repository")
    layout.create()

    def random(nbytes: int) -> bytes:
        return bytes([next(numbers)]) * nbytes

    around = Surroundings(lambda: EXAMPLE_TIME, random, "host", "process")
    sealer = Sealer(format.repo_id, None, random)
    db = create_local(layout, format, sealer, 0, around, head="heads/main", config={"codec": "auto"})
    try:
        page = bytes(db.read(commit_example(db)))
    finally:
        db.close()
    (file,) = layout.packs.glob("*/*")
    data = file.read_bytes()
    header, _ = split_record(memoryview(data), file.name)
    return Example(data[: header.record_bytes], (layout.log / "00000001").read_bytes(), page)


@pytest.mark.parametrize("name", ["record", "log", "page"])
def test_the_package_makes_the_dumped_bytes_again(example: Example, name: str):
    assert getattr(example, name) == dumped(name)


@pytest.mark.parametrize("name", ["record", "log", "page"])
def test_the_fields_beside_a_dump_are_its_bytes_from_the_first_to_the_last(name: str):
    data, at = dumped(name), 0
    for line in marked(f"fields: {name}").splitlines():
        offset, digits, meaning = re.split(r"  +", line, maxsplit=2)
        assert int(offset, 16) == at and meaning, line
        assert bytes.fromhex(digits) == data[at : at + len(digits) // 2], line
        at += len(digits) // 2
    assert at == len(data)


def test_the_dumped_record_is_the_chunk_that_the_document_says_it_is():
    data = dumped("record")
    header, payload = split_record(memoryview(data), "the example")
    assert header.kind == Kind.CHUNK and header.repo_id == bytes(range(16)) and header.record_bytes == len(data)
    assert bytes(payload) == np.array([1, 2, 3, -4], "<f4").tobytes()
    assert Hasher().id(Kind.CHUNK, payload) == header.id
    assert b"".join(frame_record(header, payload)) == data


def test_the_dumped_log_is_a_checkpoint_and_a_commit():
    data = memoryview(dumped("log"))
    first = parse_line(data, "the example")
    second = parse_line(data[first.line_bytes :], "the example")
    assert first.line_bytes + second.line_bytes == len(data)
    assert second.previous == first.hash and (first.seq, second.seq) == (1, 2)
    time_us, (point,) = decode_changes(first.body)
    assert isinstance(point, Checkpoint) and point.refs == (("HEAD", "heads/main"),) and time_us == EXAMPLE_TIME
    _, changes = decode_changes(second.body)
    assert [type(change) for change in changes] == [PackGrown, SetRef]
    again = Line(0, 2, first.hash, encode_changes(EXAMPLE_TIME, changes))
    assert first.to_bytes() + again.to_bytes() == bytes(data)


def test_the_dumped_page_is_read_and_written_by_the_package():
    data, hasher, kept = dumped("page"), Hasher(), []
    decode(data, strict=True)
    id = hasher.id(Kind.TREE, data)
    assert str(id) in FORMAT.read_text()
    entries = list(tree.read_tree(id, lambda _: data))
    assert [entry.path for entry in entries] == [(), ("model",), ("model", "weight"), ("step",)]

    def keep(page: bytes) -> ObjectId:
        kept.append(page)
        return hasher.id(Kind.TREE, page)

    assert tree.write_tree(entries, keep) == id and kept == [data]


def codes_of(module: object) -> set[int]:
    return {value for name, value in vars(module).items() if name.isupper() and type(value) is int}


def codes_listed(number: int) -> set[int]:
    """Return the numbers in the first column of a section's tables."""
    first = [row[0] for row in cells(section(FORMAT, number))]
    return {int(part) for text in first for part in text.split(", ") if part.isdecimal()}


def test_the_format_document_lists_every_code_of_an_entry_node():
    assert codes_listed(12) == codes_of(nodes) | {100}


def test_the_format_document_lists_every_code_of_a_plain_value():
    assert codes_listed(13) == codes_of(value_codes)


def test_the_format_document_lists_every_dtype_with_its_size():
    table = [row for row in cells(section(FORMAT, 11)) if row[0].isdecimal()]
    listed = {name: int(row[0]) for row in table for name in row[1].split()}
    assert listed == {name: dtype.itemsize for name, dtype in spec.DTYPES.items()}


def test_the_sizes_in_the_format_document_are_those_of_the_package():
    assert ids.Hasher()._key.hex() in section(FORMAT, 2)
    assert (frame.FIXED_BYTES, frame.LINE_HEADER_BYTES, frame.ALIGNMENT) == (86, 60, 64)
    assert (aead.OVERHEAD, aead.ROW_OVERHEAD, rows.PLACE_ROW.size) == (28, 72, 37)
    assert (rows.INLINE_BYTES, rows.INLINE_COMMIT_BYTES) == (512, 4080)
    assert (frame.MAX_BASES, frame.MAX_DEPTH, frame.MAX_PAYLOAD, frame.MAX_LINE) == (4, 64, 1 << 30, 1 << 28)
    assert (tree.PAGE_ENTRIES, tree.MAX_PAGE_BYTES, tree.MAX_EXTENTS, tree.MAX_LEVELS) == (64, 65536, 256, 16)
    assert pack.PACK_BYTES == 256 << 20
    assert errors.Damaged.exit_code == 4
