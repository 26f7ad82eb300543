from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Generator

import pytest

from hrm_agent.basics.frozen_heap import frozen_heap


class Node:
    """One half of a cycle."""

    other: Node


@pytest.fixture(autouse=True)
def unfrozen() -> Generator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_what_was_alive_before_is_left_out_until_the_last_block_ends() -> None:
    with frozen_heap():
        frozen = gc.get_freeze_count()
        assert frozen > 1000
        with frozen_heap():
            assert gc.get_freeze_count() <= frozen  # the second block freezes nothing more
        assert gc.get_freeze_count() > 1000
    assert gc.get_freeze_count() == 0


def test_garbage_made_inside_is_collected() -> None:
    with frozen_heap():
        before = len([found for found in gc.get_objects() if isinstance(found, Node)])
        first, second = Node(), Node()
        first.other, second.other = second, first
        del first, second
        gc.collect()
        assert len([found for found in gc.get_objects() if isinstance(found, Node)]) == before


def test_a_heap_that_somebody_else_has_frozen_is_left_to_them() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with frozen_heap():
        pass
    assert gc.get_freeze_count() >= frozen - 1000


def test_collections_are_rarer_inside_and_as_rare_as_before_after_it() -> None:
    before = gc.get_threshold()
    with frozen_heap():
        inside = gc.get_threshold()
        with frozen_heap():
            assert gc.get_threshold() == inside
        assert inside[0] > before[0] and inside[1:] == before[1:]
    assert gc.get_threshold() == before


def test_a_program_collects_rarely_and_ends_without_a_look_at_what_is_alive() -> None:
    program = """
import atexit, gc
atexit.register(lambda: print(gc.get_freeze_count() > 1000))
from hrm_agent.basics.frozen_heap import begin_program
begin_program()
print(gc.get_threshold()[0] > 10_000)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\nTrue\n"
