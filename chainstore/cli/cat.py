"""`chain cat`"""

import base64
import json
import pprint
import sys

import click

from chainstore.cli import app as cli
from chainstore.cli.app import App, check_exclusive
from chainstore.cli.records import plain_json
from chainstore.cli.show import find
from chainstore.cli.wording import printable
from chainstore.errors import InvalidInput, PathNotFound
from chainstore.lazy import Snapshot


@cli.command(
    "cat",
    examples=[
        "chain cat HEAD config/lr",
        "chain cat best model/weight --raw > weight.bin",
        "chain cat HEAD train.yaml",
    ],
)
@click.argument("revision")
@click.argument("path")
@click.option("--raw", is_flag=True, help="Print the bytes of a tensor (C order, little-endian), text, or bytes.")
@click.option("--file", "as_file", is_flag=True, help="PATH is a file that was committed beside the state.")
@click.pass_obj
def command(app: App, revision: str, path: str, raw: bool, as_file: bool) -> None:
    """Print what lies at PATH in the snapshot of REVISION, and nothing else.

    Text is printed as it is, another value as JSON (or as Python writes it, where JSON cannot), a tensor with all its
    numbers, a file byte by byte. Where the state and the files both have PATH, the state's is meant.
    """
    check_exclusive(raw=raw, json=app.out.json)
    with app.open(readonly=True) as repo:
        snapshot = repo.snapshot(revision)
        fields: dict[str, object] = {"commit": {"id": str(snapshot.commit.id)}, "path": path}
        if as_file or _is_file(snapshot, path):
            _print_bytes(app, {**fields, "kind": "file"}, snapshot.read_file(path))
            return
        found = find(snapshot, path)
        if isinstance(found, Snapshot):
            raise InvalidInput(f"{path!r} is no single value", hint=f"`chain ls {revision} '{path}/**'` lists it")
        if app.door("arrays").is_array(found):
            _print_array(app, fields, found, path, raw)
        else:
            _print_value(app, {**fields, "kind": "value"}, found, path, raw)


def _is_file(snapshot: Snapshot, path: str) -> bool:
    """Whether only a file has this path."""
    if path not in snapshot.files:
        return False
    try:
        find(snapshot, path)
    except (PathNotFound, InvalidInput):
        return True
    return False


def _print_bytes(app: App, fields: dict[str, object], data: bytes) -> None:
    if app.out.json:
        app.out.result("chain.cat/1", {**fields, "base64": base64.b64encode(data).decode()}, "")
    else:
        app.out.raw(data)


def _print_array(app: App, fields: dict[str, object], array: object, path: str, raw: bool) -> None:
    arrays = app.door("arrays")
    if raw:
        app.out.raw(arrays.raw_bytes(array, path))
        return
    told = {**fields, "kind": "array", **arrays.elements(array, path)} if app.out.json else {}
    app.out.result("chain.cat/1", told, [] if app.out.json else arrays.text(array, path))


def _print_value(app: App, fields: dict[str, object], value: object, path: str, raw: bool) -> None:
    if isinstance(value, bytes | bytearray):
        _print_bytes(app, fields, bytes(value))
    elif raw and not isinstance(value, str):
        raise InvalidInput(
            f"{path!r} is {type(value).__name__}, which has no bytes of its own", hint="leave --raw out, or say --json"
        )
    elif raw:
        app.out.raw(str(value).encode("utf-8", "surrogatepass"))
    else:
        app.out.result("chain.cat/1", {**fields, "value": plain_json(value)}, _text(value))


def _text(value: object) -> str:
    if isinstance(value, str):  # what a terminal would act upon is for pipes only
        return printable(value) if sys.stdout.isatty() else value
    told = plain_json(value)
    whole = "repr" not in json.dumps(told)
    return json.dumps(told, ensure_ascii=False) if whole else pprint.pformat(value, width=100, sort_dicts=False)
