"""Modules that run in the sandbox beside the code under test. Their source is sent as text, since
the sandbox cannot import them.
"""

from __future__ import annotations

import marshal
import sys
from functools import cache
from pathlib import Path

__all__ = ["source_of", "statement_of"]


@cache
def source_of(name: str) -> str:
    """Source of a module in this package."""
    return Path(__file__).with_name(f"{name}.py").read_text()


@cache
def statement_of(name: str) -> str:
    """Statement that executes a module of this package.

    The statement contains the module compiled for interpreters of this version, since compiling it
    in each process would double the cost of a short program. For other interpreters it contains the
    source.
    """
    text = source_of(name)
    kind = sys.implementation.cache_tag
    code = marshal.dumps(compile(text, f"<{name}>", "exec", dont_inherit=True, optimize=2))
    like = f"__import__('sys').implementation.cache_tag == {kind!r}"
    return f"exec(__import__('marshal').loads({code!r}) if {like} else {text!r})"
