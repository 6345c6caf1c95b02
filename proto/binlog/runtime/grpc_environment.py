"""What gRPC's core reads from the environment when it is first imported: programs import this before anything else.

Its own log repeats what our errors say, in a form of its own and with advice for programmers. GRPC_VERBOSITY in the
environment still wins.
"""

from __future__ import annotations

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Starting the JVM forks while calls are under way; no child of ours goes on using a channel of its parent.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
