"""Passwords in configurations, encrypted as the original's `binlogctl -cmd encrypt` does it (`K-13`).

The text is base64 of a random IV of 16 bytes, `@`, and the password in AES-CFB. It is not authenticated: anyone who can
write the file can replace the password. The default key is public; with it, encryption only prevents the password from
being read by chance.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping

from cryptography.hazmat.decrepit.ciphers.modes import CFB
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES

from binlog.errors import ConfigError
from binlog.runtime.log import get_logger

KEY_VARIABLE = "BINLOG_SECRET_KEY"
_DEFAULT_KEY = bytes.fromhex("a529b7665997f043a30ac8fadcb51d6aa032c226ab5b7750530b12b8c1a16a48")  # the original's
_KEY_BYTES = (16, 24, 32)
_IV_BYTES = 16
_SEPARATOR = b"@"

_log = get_logger("encrypt")


class CipherError(ConfigError):
    """A key or an encrypted text is invalid. The message contains neither."""


def encrypt(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the encrypted text as base64, new at each call. Raises CipherError if the environment's key is invalid."""
    iv = os.urandom(_IV_BYTES)
    encryptor = Cipher(AES(_key(environ)), CFB(iv)).encryptor()
    return base64.b64encode(iv + _SEPARATOR + encryptor.update(text.encode()) + encryptor.finalize()).decode()


def decrypt(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the text given to `encrypt`. Raises CipherError if `text` is invalid, or visibly made with another key."""
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise CipherError(f"not an encrypted text: {error}; make one with binlogctl encrypt -text …") from error
    iv, separator, body = data[:_IV_BYTES], data[_IV_BYTES : _IV_BYTES + 1], data[_IV_BYTES + 1 :]
    if len(iv) < _IV_BYTES or separator != _SEPARATOR:
        raise CipherError("ciphertext not valid; make one with binlogctl encrypt -text …")
    decryptor = Cipher(AES(_key(environ)), CFB(iv)).decryptor()
    try:
        return (decryptor.update(body) + decryptor.finalize()).decode()
    except UnicodeDecodeError as error:
        raise CipherError(f"it was encrypted with another key: is {KEY_VARIABLE} the one it was made with?") from error


def warn_of_default_key(environ: Mapping[str, str] = os.environ) -> None:
    """Log a warning if no key is set, because anyone can then decrypt the passwords."""
    if not environ.get(KEY_VARIABLE):
        _log.warning(
            f"passwords are encrypted with the default key, which is public; set {KEY_VARIABLE} to a key of your own, "
            "in hexadecimal"
        )


def _key(environ: Mapping[str, str]) -> bytes:
    text = environ.get(KEY_VARIABLE, "")
    if not text:
        return _DEFAULT_KEY
    try:
        key = bytes.fromhex(text)
    except ValueError as error:
        raise CipherError(f"environment variable {KEY_VARIABLE} is not hexadecimal") from error
    if len(key) not in _KEY_BYTES:
        sizes = ", ".join(map(str, _KEY_BYTES))
        raise CipherError(f"environment variable {KEY_VARIABLE} has {len(key)} bytes; AES needs {sizes}")
    return key
