"""Sources that run in the sandbox beside the code that is tested. Nothing here is imported: the
texts are sent.
"""

from __future__ import annotations

import marshal
import sys
from functools import cache
from pathlib import Path

__all__ = ["source_of", "statement_of"]


@cache
def source_of(name: str) -> str:
    """The source of the module of that name in this package."""
    return Path(__file__).with_name(f"{name}.py").read_text()


@cache
def statement_of(name: str) -> str:
    """A statement that does what that module does.

    It is compiled here for interpreters like this one: to compile it in each process would double
    what a short program costs.
    """
    text, kind = source_of(name), sys.implementation.cache_tag
    code = marshal.dumps(compile(text, f"<{name}>", "exec", dont_inherit=True, optimize=2))
    like = f"__import__('sys').implementation.cache_tag == {kind!r}"
    return f"exec(__import__('marshal').loads({code!r}) if {like} else {text!r})"
