"""Which protocols use which option. An option that the chosen protocol does not use has no effect. Pure."""

from __future__ import annotations

from collections.abc import Collection

from drainer.protocol.options import option_table


def unread(package: str, given: Collection[str]) -> list[str]:
    """Return a warning for each given option that this package does not use."""
    return [
        f"{name.replace('_', '-')} has no effect: only {protocols_text(option.packages)} use it"
        for name, (_, option) in option_table().items()
        if name in given and option.packages and package not in option.packages
    ]


def protocols_text(packages: Collection[str]) -> str:
    """Return the names of the protocols of these packages."""
    shown = {"open": "open-protocol", "canal": "canal-json"}
    return ", ".join(shown.get(package, package) for package in packages)
