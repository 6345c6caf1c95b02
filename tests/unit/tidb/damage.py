"""Feeding a decoder badly: cut at every byte, and with bytes changed. It may only succeed or raise DecodeError."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import pytest
from binlog.errors import DecodeError


def survives(decode: Callable[[bytes], object], data: bytes, *, rounds: int = 200) -> None:
    """Neither a cut nor damage gets anything but DecodeError out of `decode`."""
    for cut in range(len(data)):
        with contextlib.suppress(DecodeError):
            decode(data[:cut])
    dice = random.Random(len(data))
    for _ in range(rounds if data else 0):
        damaged = bytearray(data)
        for _ in range(dice.randint(1, 4)):
            damaged[dice.randrange(len(damaged))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
        with contextlib.suppress(DecodeError):
            decode(bytes(damaged))


def refuses_every_cut(decode: Callable[[bytes], object], data: bytes) -> None:
    """A self-delimiting value has no shorter form: every cut is an error that names the thing and a byte in it."""
    for cut in range(len(data)):
        with pytest.raises(DecodeError) as caught:
            decode(data[:cut])
        assert caught.value.what
        assert 0 <= caught.value.offset <= len(data)
