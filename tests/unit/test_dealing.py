"""The order in which several processes share the tests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.dealing import dealt, longest_first

Item = tuple[int, int, bool]  # module, number, whether it starts a server
items_of_modules = st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=30).map(
    lambda sizes: [(module, n, dear) for module, (count, dear) in enumerate(sizes) for n in range(count)]
)


def deal(items: list[Item], count: int) -> list[Item]:
    return dealt(items, count, module=lambda item: item[0], dear=lambda item: item[2])


@given(items_of_modules, st.integers(1, 5))
def test_dealing_loses_no_test_and_keeps_order_within_modules(items: list[Item], count: int) -> None:
    found = deal(items, count)
    assert sorted(found) == sorted(items)
    for module in {item[0] for item in items}:
        assert [item for item in found if item[0] == module] == [item for item in items if item[0] == module]


def test_dealing_gives_each_worker_server_tests_first_and_quick_ones_last() -> None:
    items = [(module, n, module < 5) for module in range(45) for n in range(4)]
    found = deal(items, 3)
    stretches = [found[:60], found[60:120], found[120:]]
    begun = [[module for module, n, dear in stretch if dear and n == 0] for stretch in stretches]
    assert begun == [[0, 3], [1, 4], [2]]
    for stretch in stretches:
        dear = [item[2] for item in stretch]
        assert dear == sorted(dear, reverse=True)


def test_dealing_of_too_few_quick_tests_keeps_order() -> None:
    items = [(0, n, True) for n in range(9)] + [(1, 0, False)]
    assert deal(items, 2) == items


def test_longest_first_orders_modules_by_timeout_and_count() -> None:
    quick, long, many = [("quick", 9)], [("long", 0), ("long", 900)], [("many", 9), ("many", 9)]
    items = [*quick, *long[:1], *many, *long[1:]]
    found = longest_first(items, module=lambda item: item[0], timeout_s=lambda item: item[1])
    assert found == [*long, *many, *quick]
