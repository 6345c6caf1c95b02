"""The pump client, the SDK and binlogctl.

`client` is the pump client, `sdk` the library for programs that embed the writer, and `ctl` the command line tool
binlogctl.
"""

from binlog.runtime.version import release

__version__ = release()
