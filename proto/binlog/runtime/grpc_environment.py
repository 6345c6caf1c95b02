"""Sets environment variables of gRPC's core. Programs import this before gRPC.

gRPC's own log repeats our errors in another format, with advice for programmers, so it is switched off. A value of
GRPC_VERBOSITY in the environment has priority.
"""

from __future__ import annotations

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Starting the JVM forks this process while calls are under way. None of our child processes uses its parent's channels.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
