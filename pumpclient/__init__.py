"""How a writer reaches a pump, and the SDK for services that embed it.

`client` is the pump client, `sync` its face for threads, `sdk` what a service embeds, `ctl` binlogctl.
"""

from binlog.runtime.version import release

__version__ = release()
