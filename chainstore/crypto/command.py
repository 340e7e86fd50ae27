"""Key commands: a key that another program prints, be it a password manager, Vault, a KMS or a TPM.

A key command is run without a shell.  It reads one line of JSON on stdin and ends within the time limit:

    {"chainstore": 1, "action": "wrap", "repository": "<32 hex>"}                        a slot is being made
    {"chainstore": 1, "action": "unwrap", "repository": "<32 hex>", "stored": "<hex>"}   a slot is being opened

and prints the key on stdout: 64 hexadecimal digits, or 32 raw bytes, or {"key": "<64 hex>", "stored": "<hex>"}.
`stored` is for a KMS: answered to "wrap", it lies in the slot in the clear (at most 4096 bytes) and comes back with
"unwrap".  A command that always prints one secret may ignore its input: `--key-command "pass show training/chain"`.
"""

import json
import os
import selectors
import shlex
import subprocess
import time
from binascii import unhexlify
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

from chainstore.crypto.aead import KEY_BYTES
from chainstore.crypto.keyfile import KEY_FORM, parse_key
from chainstore.crypto.provider import MAX_STORED_BYTES, RandomBytes
from chainstore.errors import InvalidInput, KeyRequired, WrongKey

_MAX_ANSWER_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, repr=False)
class KeyCommand:
    """A key that a command prints: a password manager, Vault, a KMS, a TPM (protocol: see the module).

    Its arguments may be secret, so only the program's name is ever shown.  Its stderr stays the user's.

    Args:
        command: split like a shell would, run without one.
        timeout_seconds: how long to wait, a person's touch or PIN included.

    Raises:
        InvalidInput: the command is empty or its quotes do not match.
    """

    command: str
    timeout_seconds: float = 60.0
    _words: tuple[str, ...] = field(init=False, compare=False)

    kind: ClassVar[str] = "command"

    def __post_init__(self) -> None:
        try:
            words = tuple(shlex.split(self.command))
        except ValueError:
            raise InvalidInput("the key command's quotes do not match") from None
        if not words or not words[0]:
            raise InvalidInput("the key command is empty")
        object.__setattr__(self, "_words", words)

    def __repr__(self) -> str:
        return f"KeyCommand({self._name!r}, ...)"

    @property
    def id(self) -> str:
        return f"key command {self._name}"

    @property
    def _name(self) -> str:
        return os.path.basename(self._words[0]) or self._words[0]

    def wrap(self, repo_id: bytes, random: RandomBytes) -> tuple[bytes, bytes]:
        return self._ask({"chainstore": 1, "action": "wrap", "repository": repo_id.hex()})

    def unwrap(self, repo_id: bytes, stored: bytes) -> bytes:
        request = {"chainstore": 1, "action": "unwrap", "repository": repo_id.hex(), "stored": stored.hex()}
        return self._ask(request)[0]

    def _ask(self, request: dict[str, object]) -> tuple[bytes, bytes]:
        answer = self._run(json.dumps(request).encode() + b"\n")
        parsed = _parse_answer(answer)
        if parsed is None:
            raise self._no_key()
        return parsed

    def _run(self, request: bytes) -> bytes:
        deadline = time.monotonic() + self.timeout_seconds
        try:
            # no new session or process group: the command may ask for a PIN on the terminal
            process = subprocess.Popen(self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        except (OSError, ValueError) as error:
            raise self._failed(f"could not be started: {getattr(error, 'strerror', None) or 'bad name'}") from None
        with process:
            try:
                answer = _converse(process, request, deadline)
                status = process.wait(max(0.0, deadline - time.monotonic()))
            except OverflowError:
                raise self._no_key() from None
            except (TimeoutError, subprocess.TimeoutExpired):
                raise self._failed(f"gave no answer within {self.timeout_seconds:g} s") from None
            finally:
                process.kill()  # whatever happened, it has nothing more to do for us; a no-op once it has ended
        if status:
            raise self._failed(f"exited with {status}" if status > 0 else f"was killed by signal {-status}")
        return answer

    def _no_key(self) -> WrongKey:
        return WrongKey(f"{self.id} printed no key", hint=f"it must print {KEY_FORM}, or JSON with a key in it")

    def _failed(self, how: str) -> KeyRequired:
        return KeyRequired(f"{self.id} {how}", hint="run the command by hand to see what it says")


def _converse(process: "subprocess.Popen[bytes]", request: bytes, deadline: float) -> bytes:
    """Send `request`, close, and return what comes back.

    Raises:
        TimeoutError: the command had not closed its output at `deadline` (monotonic seconds).
        OverflowError: it says more than any answer can be long.
    """
    assert process.stdin is not None and process.stdout is not None
    with suppress(BrokenPipeError):  # a command may ignore its input; a request fits a pipe, so this never waits
        process.stdin.write(request)
    with suppress(BrokenPipeError):
        process.stdin.close()
    answer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while len(answer) <= _MAX_ANSWER_BYTES:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            part = process.stdout.read(_MAX_ANSWER_BYTES)
            if not part:
                return answer
            answer += part
    raise OverflowError


def _parse_answer(answer: bytes) -> tuple[bytes, bytes] | None:
    """Return (key, stored) of a key command's answer, None if it is none."""
    key = parse_key(answer)
    if key is not None:
        return key, b""
    try:
        fields = json.loads(answer)
        if not isinstance(fields, dict) or not fields.keys() <= {"key", "stored"}:
            return None
        key, stored = unhexlify(fields["key"]), unhexlify(fields.get("stored", ""))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return (key, stored) if len(key) == KEY_BYTES and len(stored) <= MAX_STORED_BYTES else None
