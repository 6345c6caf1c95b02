"""Reads a value by a path of names."""

from __future__ import annotations


def at_path(value: object, path: str) -> object:
    """`path`: names of attributes and places in sequences, with points between them."""
    for name in path.split("."):
        value = value[int(name)] if name.isdigit() else getattr(value, name)  # type: ignore[index]
    return value
