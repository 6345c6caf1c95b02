"""The pump client, the SDK for embedding services, and binlogctl.

`client` is the pump client, `sync` its blocking form for threads, `sdk` what a service embeds, `ctl` binlogctl.
"""

from binlog.runtime.version import release

__version__ = release()
