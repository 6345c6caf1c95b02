"""Sets the environment variables of gRPC's core; programs import this before gRPC.

Its own log repeats what our errors say, in a form of its own and with advice for programmers. GRPC_VERBOSITY in the
environment still wins.
"""

from __future__ import annotations

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Starting the JVM forks while calls are under way; no child of ours goes on using a channel of its parent.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
