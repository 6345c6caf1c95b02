"""The pump client, the SDK and binlogctl.

`client` is the pump client, `sync` its blocking form, `sdk` the library for programs that embed the writer, and `ctl`
the command line tool binlogctl.
"""

from binlog.runtime.version import release

__version__ = release()
