"""Health check for containers: tests whether a URL answers with 200.

    python -m binlog.runtime.probe http://127.0.0.1:9250/ready

Exit code 0 if it does. Otherwise 1, with the answer or the reason on standard error. Only the standard library is
imported, because the check runs every few seconds.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request

TIMEOUT_S = 4.0


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        sys.stderr.write("usage: python -m binlog.runtime.probe URL\n")
        return 2
    try:
        with urllib.request.urlopen(argv[0], timeout=TIMEOUT_S):
            return 0
    except urllib.error.HTTPError as error:
        sys.stderr.write(error.read(4096).decode(errors="replace"))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{argv[0]}: {error}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
