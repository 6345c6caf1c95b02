"""The walk over a batch (rule 14). See drainer.step for the values it deals in."""

from __future__ import annotations

from drainer.step import Ddl, Fence, Located, Merged, Rows, Step, TableChange

__all__ = ["Ddl", "Fence", "Located", "Merged", "Rows", "Step", "TableChange"]
