"""Kinds: what a path on disk looks like, told from its first bytes, and what takes it.

Reads a few kilobytes, runs nothing, and needs neither torch nor numpy:

    recognize(Path("model.pt")).kind        "torch"
    recognize(Path("page.html")).what       "an HTML page"
"""

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KINDS = ("torch", "safetensors", "dcp", "hf", "numpy")
_HEAD_BYTES = 1024
_TORCH_PICKLES = (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", b"\x80\x02\x8a\x0al\xfc")  # torch.save before 1.6
_MAGIC = (
    (b"\x1f\x8b", "a gzip archive", "unpack it with gunzip first"),
    (b"BZh", "a bzip2 archive", "unpack it first"),
    (b"\xfd7zXZ\x00", "an xz archive", "unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", "unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it first"),
    (b"Rar!", "a RAR archive", "unpack it first"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "`git lfs pull` fetches the file"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", ""),
    (b"GGUF", "a GGUF model", ""),
    (b"PAR1", "a Parquet table", ""),
    (b"ARROW1", "an Arrow table", ""),
    (b"%PDF", "a PDF document", ""),
    (b"\x7fELF", "a program", ""),
    (b"\x89PNG", "an image", ""),
    (b"SQLite format 3", "an SQLite database", ""),
)
_WEIGHTS = ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin")
_HF_SIGNS = (*_WEIGHTS, *(f"{name}.index.json" for name in _WEIGHTS), "trainer_state.json")


@dataclass(frozen=True, slots=True)
class Look:
    """What a path looks like.

    Attributes:
        kind: one of KINDS, or "" where no reader takes it.
        what: the same in words, with an article.
        hint: what helps where no reader takes it; "" for nothing better than `--as-file`.
    """

    kind: str
    what: str
    hint: str = ""


def recognize(path: Path) -> Look:
    """Return what a file or folder looks like.

    Raises:
        OSError: it cannot be read.
    """
    return _folder(path) if path.is_dir() else _file(path)


def _folder(path: Path) -> Look:
    if (path / ".metadata").is_file():
        return Look("dcp", "a checkpoint of torch.distributed.checkpoint")
    if any((path / name).is_file() for name in _HF_SIGNS):
        return Look("hf", "a Hugging Face checkpoint")
    below = sorted(child.name for child in path.iterdir() if child.is_dir() and _folder_is_one(child))
    if below:
        return Look(
            "", f"a folder of {len(below)} checkpoints ({', '.join(below[:3])}...)", f"name them: {path.name}/*"
        )
    return Look("", "a folder without a checkpoint in it")


def _folder_is_one(path: Path) -> bool:
    return any((path / name).is_file() for name in (".metadata", *_HF_SIGNS))


def _file(path: Path) -> Look:
    with path.open("rb") as stream:
        head = stream.read(_HEAD_BYTES)
    if not head:
        return Look("", "an empty file")
    if head.startswith(b"PK\x03\x04"):
        return _zip(path)
    if head.startswith(b"\x93NUMPY"):
        return Look("numpy", "an array of NumPy")
    if head.startswith(_TORCH_PICKLES):
        return Look("torch", "a file of torch.save, in its old format")
    length = int.from_bytes(head[:8], "little")
    if head[8:9] == b"{" and 2 <= length < path.stat().st_size:
        return Look("safetensors", "a safetensors file")
    for magic, what, hint in _MAGIC:
        if head.startswith(magic):
            return Look("", what, hint)
    return _other(head)


def _zip(path: Path) -> Look:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return Look("", "a zip archive that is cut off or damaged", "copy it again from where it came from")
    if any(name.endswith("/constants.pkl") for name in names) and any("/code/" in name for name in names):
        return Look("", "a TorchScript program, which is code", "save its state_dict() with torch.save")
    if any(name.endswith("/data.pkl") for name in names):
        return Look("torch", "a file of torch.save")
    if names and all(name.endswith(".npy") for name in names):
        return Look("numpy", "arrays of NumPy (.npz)")
    if any(name.endswith(("config.json", "metadata.json")) for name in names) and any(
        name.endswith(".h5") for name in names
    ):
        return Look("", "a Keras model")
    return Look("", "a zip archive", "unpack it first")


def _other(head: bytes) -> Look:
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if head[257:262] == b"ustar":
        return Look("", "a tar archive", "unpack it with tar -xf first")
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<!--")):
        return Look("", "an HTML page, perhaps an error page saved by a download", "download the file again")
    if text[:1] in (b"{", b"["):
        return Look("", "JSON text")
    if head[:1] == b"\x08" and head[2:3] in (b"\x12", b"\x1a", b"\x3a", b"\x42"):
        return Look("", "an ONNX model")
    if head[:1] == b"\x80" and head[1:2] <= b"\x05":
        return Look("", "a pickle, which only running it can read", "save the state with torch.save instead")
    return Look("", "text" if _is_text(head) else "binary data of an unknown kind")


def _is_text(head: bytes) -> bool:
    try:
        return "\0" not in head[:-4].decode()
    except UnicodeDecodeError:
        return False


def walk(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield name below `folder` and place of every file in it, sorted; hidden folders and links to folders are not
    followed."""
    for child in sorted(folder.iterdir(), key=lambda path: path.name):
        if child.is_dir():
            if not child.is_symlink() and not child.name.startswith("."):
                yield from ((f"{child.name}/{name}", place) for name, place in walk(child))
        elif child.is_file():
            yield child.name, child
