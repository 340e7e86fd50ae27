"""Messages between a trainer and its writer process arrive whole, with their descriptors, or not at all."""

import os
import socket
from pathlib import Path

import pytest

from chainstore.crypto.keys import KeyCommand, KeyFile, Passphrase
from chainstore.errors import InvalidInput, Malformed, Unsupported
from chainstore.manager.captured import CapturedLeaf
from chainstore.manager.channel import Channel, Gone, close_all, contents, in_memory
from chainstore.manager.messages import (
    Bye,
    Durable,
    Failed,
    Hello,
    Message,
    Request,
    Snapshot,
    Tidy,
    Told,
    decode_leaves,
    decode_message,
    encode_leaves,
    encode_message,
)
from chainstore.model.keys import Attr
from chainstore.model.spec import Spec
from chainstore.model.wire import encode
from chainstore.repository import FileContent, Handed

ROOT = Path(os.fsdecode(b"/runs/\xff gpt"))
REQUEST = Request(
    branch="a/b",
    message="with \u2713 and\nlines",
    step=1 << 40,
    epoch=-1,
    metrics={"loss": 1.5, "nan": float("inf")},
    meta={"argv": ["train.py", "-x"], "nested": {"a": None, "b": True}},
    tags=("one", "two"),
    files={"conf/a.yaml": "/etc/hostname", "run.sh": FileContent(b"\x00\xff", True), "empty": FileContent(b"")},
    expected_head="main~2",
    codec="fast",
    checksums=True,
)


def handed(key: object = None) -> Handed:
    return Handed(ROOT, key, 3, 1 << 28, Path("/index"), "heads/main", -1)  # type: ignore[arg-type]


MESSAGES: list[Message] = [
    Hello(handed(), 4711),
    Hello(handed(KeyFile(os.fsdecode(b"/keys/\xff"))), 1),
    Hello(handed(KeyCommand("pass show 'a b'", 7.5)), 1),
    Hello(Handed(ROOT, None, 0, 0, None, None, 12), 1),
    Snapshot(7, REQUEST),
    Snapshot(0, Request()),
    Tidy("keep-last 5"),
    Bye(),
    Durable(3, "ab" * 32, 0.25, 100, 50, 25),
    Durable(4, "cd" * 32, 0.5, 100, 50, 25, b"\x00\xff" * 6, {"big.log": "it is gone"}, 17),
    Failed(3, "store-full", "no space", "free some"),
    Told("tidy-failed", "why"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


def test_a_passphrase_arrives_and_shows_in_no_text() -> None:
    for text in ("correct horse", os.fsdecode(b"\xff\xfe")):
        message = decode_message(encode_message(Hello(handed(Passphrase(text)), 1)))
        assert isinstance(message, Hello)
        assert isinstance(message.handed.key, Passphrase)
        assert message.handed.key.text == text
        assert text not in repr(message)


def test_a_key_that_cannot_be_sent_is_refused_by_name() -> None:
    class Vault:
        id, kind = "the vault", "vault"

    with pytest.raises(Unsupported, match="Vault cannot be sent"):
        encode_message(Hello(handed(Vault()), 1))


def test_what_no_commit_can_say_is_refused_before_it_is_sent() -> None:
    with pytest.raises(InvalidInput, match="loss"):
        encode_message(Snapshot(1, Request(metrics={"loss": "low"})))
    with pytest.raises(InvalidInput, match="JSON"):
        encode_message(Snapshot(1, Request(meta={"a": {1, 2}})))


def test_numbers_of_metrics_become_floats() -> None:
    message = decode_message(encode_message(Snapshot(1, Request(metrics={"n": 3}))))
    assert isinstance(message, Snapshot)
    assert message.request.metrics == {"n": 3.0}


def test_relative_files_are_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    message = decode_message(encode_message(Snapshot(1, Request(files={"a": Path("sub/a.yaml")}))))
    assert isinstance(message, Snapshot)
    assert message.request.files == {"a": str(tmp_path / "sub/a.yaml")}


def test_errors_about_odd_file_names_can_be_sent() -> None:
    text = "cannot read " + os.fsdecode(b"\xff.bin")
    message = decode_message(encode_message(Failed(1, "storage", text)))
    assert message == Failed(1, "storage", "cannot read ?.bin")


@pytest.mark.parametrize("data", [b"", b"\x80", encode([99]), encode([0, 2, 1, []]), encode([1, "x", []])])
def test_other_bytes_are_no_message(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode_message(data)


def test_leaves_arrive_as_they_were_sent() -> None:
    leaves = (
        CapturedLeaf((), [1, "dict"], None, -1, 0),
        CapturedLeaf(
            ("a", 0, 1.5, (None, b"x"), Attr("data"), True), [2, [3, b"\0"]], Spec("bfloat16", (2, 3)), 64, 12
        ),
        CapturedLeaf(("zero",), None, Spec("float32", (0,)), 128, 0),
    )
    assert decode_leaves(encode_leaves(leaves)) == leaves
    with pytest.raises(Malformed):
        decode_leaves(encode([[1]]))


# ---- the channel


def ends() -> tuple[Channel, Channel]:
    ours, theirs = Channel.pair()
    return ours, Channel(theirs)


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_what_was_sent_arrives_from_an_end_that_is_closed_with_messages_unread() -> None:
    before = open_fds()
    ours, theirs = ends()
    theirs.send(Told("note", "nobody reads this"))
    fd = in_memory(b"the bytes")
    ours.send(Tidy("first"), [fd])
    os.close(fd)
    ours.send(Bye())
    ours.close()
    assert theirs.ready()
    message, fds = theirs.receive()
    assert message == Tidy("first")
    assert contents(fds[0]) == b"the bytes"
    close_all(fds)
    assert theirs.receive() == (Bye(), [])
    with pytest.raises(Gone):
        theirs.receive()
    theirs.close()
    assert open_fds() == before


def test_messages_and_descriptors_arrive_in_order_even_from_an_end_that_is_closed() -> None:
    before = open_fds()
    ours, theirs = ends()
    fd = in_memory(b"the bytes")
    ours.send(Tidy("first"), [fd])
    os.close(fd)
    ours.send(Bye())
    ours.close()
    message, fds = theirs.receive()
    assert message == Tidy("first")
    assert contents(fds[0]) == b"the bytes"
    assert not os.get_inheritable(fds[0])
    os.close(fds[0])
    assert theirs.receive() == (Bye(), [])
    with pytest.raises(Gone):
        theirs.receive()
    theirs.close()
    assert open_fds() == before


def test_a_message_of_any_length_is_sent_while_nobody_receives() -> None:
    before = open_fds()
    ours, theirs = ends()
    diff = "x" * 5_000_000
    for number in range(10):
        ours.send(Snapshot(number, Request(meta={"diff": diff})), [0])
    for number in range(10):
        message, fds = theirs.receive()
        assert isinstance(message, Snapshot)
        assert message.number == number
        assert message.request.meta == {"diff": diff}
        assert len(fds) == 1
        os.close(fds[0])
    assert not theirs.ready()
    with pytest.raises(BlockingIOError):
        theirs.receive()
    ours.close()
    theirs.close()
    assert open_fds() == before


def test_who_sends_to_the_dead_is_told() -> None:
    ours, theirs = ends()
    theirs.close()
    with pytest.raises(Gone):
        ours.send(Bye())
    assert ours.ready()
    with pytest.raises(Gone):
        ours.receive()
    ours.close()


def test_who_hears_no_more_still_gets_what_was_sent_before() -> None:
    ours, theirs = ends()
    ours.send(Tidy("before"))
    theirs.hear_no_more()
    with pytest.raises(Gone):
        ours.send(Tidy("after"))
    assert theirs.receive()[0] == Tidy("before")
    with pytest.raises(Gone):
        theirs.receive()
    ours.close()
    theirs.close()


def test_nothing_is_left_open_of_a_message_that_is_none() -> None:
    before = open_fds()
    raw, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs = Channel(end)
    fd = in_memory(b"x")
    socket.send_fds(raw, [b"\0nonsense"], [fd, fd])
    os.close(fd)
    with pytest.raises(Malformed):
        theirs.receive()
    theirs.close()
    raw.close()
    assert open_fds() == before
