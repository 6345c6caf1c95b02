"""encrypt: prints a password in the encrypted form that configuration files accept."""

from __future__ import annotations

import getpass
import sys

from binlog.runtime.encrypt import encrypt as encrypted
from binlog.runtime.encrypt import warn_of_default_key

from pumpclient.ctl.errors import Misused
from pumpclient.ctl.options import Options
from pumpclient.ctl.output import Output

STDIN = "-"


def encrypt(options: Options, out: Output) -> None:
    """Encrypt -text. Raises Misused without a text, CipherError for an invalid key."""
    text = _read() if options.text == STDIN else options.text
    if not text:
        raise Misused("need to specify the text to be encrypt: -text, or -text - to read it from stdin")
    warn_of_default_key()
    out.done("encrypt text", encrypted=encrypted(text))


def _read() -> str:
    """Read one line from stdin: arguments of a command line are visible to every user of the machine."""
    if sys.stdin.isatty():
        return getpass.getpass("password: ")
    return sys.stdin.readline().rstrip("\r\n")
