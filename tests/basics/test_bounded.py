"""A dict of bounded size, held against a list of its entries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hrm_agent.basics.bounded import BoundedMap

MOST, WEIGHT = 3, 10
steps = st.lists(
    st.tuples(st.sampled_from(["put", "pop"]), st.integers(0, 4), st.integers(0, 12)), max_size=30
)


@given(steps)
def test_the_oldest_entries_go_first(steps: list[tuple[str, int, int]]) -> None:
    bounded, kept = BoundedMap[int, int](MOST, lambda value: value, WEIGHT), dict[int, int]()
    for what, key, value in steps:
        if what == "pop":
            assert bounded.pop(key, None) == kept.pop(key, None)
            continue
        kept[key] = value
        gone: list[int] = []
        while len(kept) > MOST or sum(kept.values()) > WEIGHT:
            gone.append(kept.pop(next(iter(kept))))
        assert bounded.put(key, value) == gone
        assert list(bounded.items()) == list(kept.items()) and list(bounded.values()) == list(
            kept.values()
        )


def test_an_entry_is_as_old_as_its_key() -> None:
    bounded = BoundedMap[str, int](2)
    bounded["a"], bounded["b"] = 1, 2
    bounded["a"] = 3
    assert bounded.setdefault("c", 4) == 4
    assert dict(bounded) == {"b": 2, "c": 4}
    bounded["b"] = bounded.pop("b")
    bounded["d"] = 5
    assert dict(bounded) == {"b": 2, "d": 5}
