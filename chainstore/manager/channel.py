"""The channel between a trainer and its writer process: messages and descriptors, whole or not at all.

Packets keep a message in one piece: a trainer that is killed while it sends leaves nothing half said, and what it
had sent stays there for the writer to read.  What does not fit a packet travels in memory of its own, so that a
send waits for nobody.  The end of the stream is the death of the other side, whatever it died of.

Source: unix(7), SOCK_SEQPACKET and SCM_RIGHTS.
"""

import os
import select
import socket
from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Self

from chainstore.manager.messages import Message, decode_message, encode_message

_PACKET_BYTES: Final = 32 << 10  # a socket of Linux holds 208 KiB by default: some messages may wait in it
_MAX_FDS: Final = 8
_INLINE, _IN_MEMORY = b"\0", b"\1"


class Gone(Exception):
    """The other side has ended, or will hear nothing more; never leaves this package."""


class Channel:
    """One end.  One thread receives; several may send."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        end.setblocking(False)
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    @classmethod
    def pair(cls) -> tuple[Self, socket.socket]:
        """Return one end, and the socket that the other is made of in another process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), theirs

    def fileno(self) -> int:
        """Return the descriptor, for waiting until there is something to receive; -1 once it is closed."""
        return self._socket.fileno()

    def ready(self, timeout_seconds: float = 0.0) -> bool:
        """Whether there is a message to receive, or the end, within a time.

        Cost: 0.5 us without waiting.
        """
        return bool(self._poll.poll(timeout_seconds * 1000))

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send a message and duplicates of descriptors; it arrives even if this process is killed the moment after.

        Raises:
            Gone: nobody is there to hear it.
        """
        data = encode_message(message)
        if len(data) < _PACKET_BYTES:
            self._send(_INLINE + data, fds)
            return
        spilled = in_memory(data)
        try:
            self._send(_IN_MEMORY, [*fds, spilled])
        finally:
            os.close(spilled)

    def receive(self) -> tuple[Message, list[int]]:
        """Return a message and the descriptors that came with it, which are the caller's to close.

        Raises:
            Gone: the other side ended, and everything it sent was received.  BlockingIOError: there is nothing yet.
            Malformed: the message is none.
        """
        data, fds = self._packet()
        if not data:
            raise Gone("the other side has ended")
        try:
            if data[:1] == _IN_MEMORY:
                spilled = fds.pop()
                try:
                    return decode_message(contents(spilled)), fds
                finally:
                    os.close(spilled)
            return decode_message(data[1:]), fds
        except BaseException:
            close_all(fds)
            raise

    def hear_no_more(self) -> None:
        """Refuse what the other side sends from here on; what it had sent can still be received."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """End it: the other side reads the end of the stream; again is fine."""
        self._socket.close()

    def _packet(self) -> tuple[bytes, list[int]]:
        """Return what one packet holds; nothing at the end of the stream."""
        room, fds = socket.CMSG_SPACE(_MAX_FDS * array("i").itemsize), array("i")
        for _ in range(2):
            try:  # socket.recv_fds forgets its flags
                data, beside, _, _ = self._socket.recvmsg(_PACKET_BYTES + 1, room, socket.MSG_CMSG_CLOEXEC)
                break
            except ConnectionError:
                pass  # the other side ended with words of ours unread: said once, ahead of packets that it had sent
        else:
            return b"", []
        for level, kind, content in beside:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(content)
        return data, list(fds)

    def _send(self, data: bytes, fds: Sequence[int]) -> None:
        while True:
            try:
                socket.send_fds(self._socket, [data], fds)
                return
            except BlockingIOError:  # dozens of messages wait there: the other side is slow, or stopped
                room = select.poll()
                room.register(self._socket, select.POLLOUT)
                room.poll()
            except OSError as error:
                raise Gone(f"the other side has ended ({error})") from error


def in_memory(data: bytes) -> int:
    """Return the descriptor of anonymous memory that holds `data`."""
    fd = os.memfd_create("chainstore-message", os.MFD_CLOEXEC)
    try:
        written = 0
        while written < len(data):
            written += os.write(fd, memoryview(data)[written:])
    except BaseException:
        os.close(fd)
        raise
    return fd


def contents(fd: int) -> bytes:
    """Return what is in the memory behind a descriptor."""
    length, parts, done = os.fstat(fd).st_size, [], 0
    while done < length:
        parts.append(os.pread(fd, length - done, done))
        done += len(parts[-1])
    return b"".join(parts)


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        with suppress(OSError):
            os.close(fd)
