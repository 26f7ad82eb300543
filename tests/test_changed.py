"""Tests that a diff touches are found by the paths of its files."""

from __future__ import annotations

import pytest

from tests.support.changed import ALWAYS, PROJECT, paths_to_test


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("training/select/roc.py", "tests/training/select/test_roc.py"),
        ("training/select/__init__.py", "tests/training/select"),
        ("hrm_agent/store/database/leases.py", "tests/store/database/test_leases.py"),
        ("hrm_agent/errors.py", None),
        ("tests/support/training/builders.py", "tests/training"),
        ("tests/training/conftest.py", "tests/training"),
        ("tests/test_docs.py", "tests/test_docs.py"),
        ("docs/index.md", "tests/test_docs.py"),
        ("benchmarks/demo.py", "tests/test_benchmarks.py"),
        ("LICENSE", None),
    ],
)
def test_a_file_is_tested_by_its_mirror_or_by_its_folder(file: str, expected: str | None) -> None:
    found = paths_to_test([file])
    if expected is None:
        assert found == []
    else:
        assert (PROJECT / expected).exists()
        assert set(found) == {expected, *ALWAYS}


def test_a_file_inside_a_folder_that_is_run_is_not_named_again() -> None:
    found = paths_to_test(["training/select/__init__.py", "training/select/roc.py"])
    assert found == sorted({"tests/training/select", *ALWAYS})
