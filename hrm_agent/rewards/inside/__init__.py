"""Sources that run in the sandbox beside the code under test. They are sent as text, not
imported.
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
    """Statement that has the effect of a module in this package.

    It is compiled here for interpreters like this one, since compiling in each process would double
    the cost of a short program.
    """
    text, kind = source_of(name), sys.implementation.cache_tag
    code = marshal.dumps(compile(text, f"<{name}>", "exec", dont_inherit=True, optimize=2))
    like = f"__import__('sys').implementation.cache_tag == {kind!r}"
    return f"exec(__import__('marshal').loads({code!r}) if {like} else {text!r})"
