"""What the package shows to those who embed it: documented names, errors to catch, the same calls in both ways."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from binlog.errors import BinlogError

from pumpclient import sdk
from pumpclient.options import ConnectOptions
from pumpclient.sdk.service import ServiceOptions

PUBLIC = {name: getattr(sdk, name) for name in sdk.__all__}


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """A class's own public methods and properties, without what it inherits from outside the package."""
    for name, member in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            yield name, member.fget
        elif isinstance(member, classmethod | staticmethod):
            yield name, member.__func__
        elif inspect.isfunction(member):
            yield name, member


def test_every_public_name_has_a_docstring() -> None:
    missing = [name for name, thing in PUBLIC.items() if callable(thing) and not thing.__doc__]
    for name, thing in PUBLIC.items():
        if inspect.isclass(thing) and thing.__module__.startswith("pumpclient"):
            missing += [f"{name}.{member}" for member, function in members(thing) if not function.__doc__]
    assert missing == []


def test_every_public_error_class_is_exported_by_package() -> None:
    """All errors of the SDK and of the pump client; errors of a package's inside have no leaf of their own."""

    def leaves(kind: type[BaseException]) -> Iterator[type[BaseException]]:
        yield kind
        for below in kind.__subclasses__():
            yield from leaves(below)

    for kind in (*leaves(sdk.SdkError), *leaves(sdk.PumpClientError)):
        if kind.__module__ in ("pumpclient.errors", "pumpclient.sdk.errors"):
            assert PUBLIC.get(kind.__name__) is kind
    assert issubclass(sdk.SdkError, BinlogError)
    assert issubclass(sdk.PumpClientError, sdk.BinlogError)


@pytest.mark.parametrize(
    ("tasks", "threads"),
    [(sdk.Service, sdk.SyncService), (sdk.Transaction, sdk.SyncTransaction)],
    ids=["service", "transaction"],
)
def test_async_and_sync_classes_have_same_methods_and_parameters(tasks: type, threads: type) -> None:
    def calls(kind: type) -> dict[str, list[tuple[str, Any, Any]]]:
        found = {}
        for name, function in members(kind):
            parameters = list(inspect.signature(function).parameters.values())[1:]
            found[name] = [(p.name, p.kind, p.default) for p in parameters]
        return found

    ours, theirs = calls(tasks), calls(threads)
    arguments = {name for name, *_ in ours.pop("connect", [])} - {"pd_urls", "options"}
    if theirs.pop("connect", None):
        assert arguments == ServiceOptions.__annotations__.keys() - ConnectOptions.__annotations__.keys()
    ours.pop("open", None)  # of a Service made from a ServiceContext; a SyncService is always connected
    for name in ("insert", "insert_many", "update", "delete"):  # taken over from the transaction as they are
        if name in ours and name not in theirs:
            assert f"self.{name} = inner.{name}" in inspect.getsource(threads)
            theirs[name] = ours[name]
    for attribute in ("start_ts", "commit_ts", "stage"):  # plain attributes of a Transaction
        if attribute in theirs and f"self.{attribute}" in inspect.getsource(tasks.__init__):
            ours[attribute] = theirs[attribute]
    only_threads = {"write"}  # a whole transaction in one call, for scripts
    assert set(theirs) - only_threads == set(ours)
    assert {name: ours[name] for name in ours} == {name: theirs[name] for name in ours}
