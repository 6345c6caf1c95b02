"""Passwords of upstream's binlogctl are read, and upstream's programs read ours."""

from __future__ import annotations

import base64

import pytest
import structlog
from binlog.errors import ConfigError
from binlog.runtime.encrypt import KEY_VARIABLE, CipherError, decrypt, encrypt, warn_of_default_key
from hypothesis import given
from hypothesis import strategies as st

KEYS = {"": "", "16": "000102030405060708090a0b0c0d0e0f", "24": "000102030405060708090a0b0c0d0e0f1011121314151617"}


def environ(key: str) -> dict[str, str]:
    return {KEY_VARIABLE: key} if key else {}


@pytest.mark.parametrize(
    ("key", "text", "plain"),
    [
        ("", "LnGqL+lXxdbxgEVd4nCEc0Bz41MARPyXz+4u", "pässw0rd!"),
        ("16", "fdlpE6KI9QxxaCln0cWAB0Cq589ftDxiU4SR", "pässw0rd!"),
        ("24", "04k5gZ1SLsN+Wvhxa6D2g0Ak", "a"),
    ],
)
def test_decrypt_reads_text_encrypted_by_original_binlogctl(key: str, text: str, plain: str) -> None:
    assert decrypt(text, environ(KEYS[key])) == plain
    assert decrypt(f" {text[:9]}\n{text[9:]}\n", environ(KEYS[key])) == plain


@given(st.text(), st.sampled_from(sorted(KEYS.values())))
def test_encrypted_text_decrypts_and_differs_each_time(plain: str, key: str) -> None:
    first, second = encrypt(plain, environ(key)), encrypt(plain, environ(key))
    assert first != second
    assert decrypt(first, environ(key)) == decrypt(second, environ(key)) == plain
    data = base64.b64decode(first)
    assert data[16:17] == b"@"
    assert len(data) == 17 + len(plain.encode())


@given(st.binary(max_size=40))
def test_decrypt_of_any_bytes_returns_text_or_raises_cipher_error(data: bytes) -> None:
    try:
        decrypt(base64.b64encode(data).decode(), {})
    except CipherError as error:
        assert str(error)
    else:
        assert data[16:17] == b"@"


@pytest.mark.parametrize("text", ["%%%", "abc", "fdlpE6KI9QxxaCln0cWA", base64.b64encode(b"x" * 30).decode(), "ä"])
def test_decrypt_refuses_text_that_is_not_encrypted(text: str) -> None:
    with pytest.raises(ConfigError, match="make one with binlogctl encrypt"):
        decrypt(text, {})


def test_decrypt_with_other_key_is_refused_if_text_is_invalid() -> None:
    text = encrypt("correct horse battery staple", environ(KEYS["16"]))
    with pytest.raises(CipherError, match=f"another key: is {KEY_VARIABLE}"):
        decrypt(text, environ(KEYS["24"]))


@pytest.mark.parametrize(("key", "why"), [("zz", "not hexadecimal"), ("0011", r"has 2 bytes; AES needs 16, 24, 32")])
def test_invalid_key_is_refused_and_not_shown(key: str, why: str) -> None:
    for call, text in ((encrypt, "secret"), (decrypt, "fdlpE6KI9QxxaCln0cWAB0Cq589ftDxiU4SR")):
        with pytest.raises(CipherError, match=why) as caught:
            call(text, environ(key))
        assert key not in str(caught.value)


def test_default_key_logs_warning_that_it_is_public() -> None:
    with structlog.testing.capture_logs() as lines:
        warn_of_default_key(environ(KEYS["16"]))
        assert lines == []
        warn_of_default_key({KEY_VARIABLE: ""})
    assert "is public" in lines[0]["event"]
