"""Runs one snippet in the current process, like a cell of a notebook. The snippet can change
everything here.

Once the snippet runs, it controls the process: data on descriptors 1, 2 and 3 (stdout, stderr,
value) is only the snippet's claim. The start, end and duration of the call are observed by the slot
and the host.
"""

from __future__ import annotations

# pathlib would cost the zygote memory, the package is loaded under another name (see __init__), and this module has to
# run code.
# ruff: noqa: S102, S307, TID252
import ast
import errno
import io
import json
import linecache
import os
import sys
import traceback
from contextlib import suppress
from types import CodeType, ModuleType
from typing import Any

from .protocol import MEMORY_ERROR, SNIPPET

__all__ = [
    "VALUE_DESCRIPTOR",
    "may_draw",
    "may_draw_unseen",
    "new_module",
    "open_streams",
    "read_code",
    "rehearse",
    "reseed",
    "run",
]

VALUE_DESCRIPTOR = 3
_PLAIN = (bool, int, float, str, list, tuple, dict)
"""Types of values that are written as JSON in addition to their repr."""
_TRANSPARENT = {"numpy", "sympy"}
"""Packages whose random generators, like the standard library's, are only reached by names that
contain a word of `may_draw`.
"""
_REHEARSAL = "n = 1\nprint(n, 'x')"
"""Snippet for `rehearse`. It does only what every snippet does: if it wrote to more memory, every
call would pay for the copy.
"""
_NO_EXPRESSION = " \t\f#)]}\"'"
"""Characters at the start of a last line that is not tried as an expression by itself: most lines
that begin so are the end of a longer expression.
"""
_opaque: set[str] = set()
_opened: dict[str, io.TextIOWrapper] = {}


def read_code(descriptor: int) -> str:
    """Read the whole code. The host sees from the file offset that the code was read."""
    parts: list[bytes] = []
    while part := os.read(descriptor, 1 << 16):
        parts.append(part)
    return b"".join(parts).decode()


def open_streams() -> None:
    """Open text streams over descriptors 0 to 2, line buffered, so that output is not lost when the
    process is killed.

    They are opened once, in the slot. Before each later call of a session, streams that a snippet
    has replaced or closed are restored.
    """
    for name, descriptor in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        if _opened.get(name) is None or _opened[name].closed:
            _opened[name] = _stream(descriptor)
        setattr(sys, name, _opened[name])
        setattr(sys, f"__{name}__", _opened[name])


def _stream(descriptor: int) -> io.TextIOWrapper:
    if descriptor == 0:
        return open(0, encoding="utf-8", closefd=False)
    raw = io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False))
    return io.TextIOWrapper(raw, "utf-8", errors="backslashreplace", line_buffering=True)


def reseed(seed: int) -> None:
    """Seed random generators that were imported before the fork. Without new seeds every call would
    draw the same numbers.
    """
    if (random := sys.modules.get("random")) is not None:
        random.seed(seed)
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed(seed & 0xFFFFFFFF)


def may_draw(source: str) -> bool:
    """False if no word of a snippet leads to a generator that `reseed` seeds. Seeding is then
    skipped, since it costs a good part of a short snippet's time.

    A snippet that hides the word, as in `getattr(numpy, "ran" + "dom")`, draws the same numbers in
    each call.
    """
    return "rand" in source or "sample" in source or "uuid" in source or bool(_opaque)


def may_draw_unseen(packages: list[str]) -> None:
    """Note the packages that the zygote has imported. Those outside of `_TRANSPARENT` may draw
    random numbers without any word that `may_draw` knows.
    """
    _opaque.update(set(packages) - _TRANSPARENT)


def new_module() -> ModuleType:
    """Make the `__main__` module that snippets run in."""
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    return module


def rehearse() -> None:
    """Do what every snippet does, before a request arrives. So the child already has its own copy
    of the memory that a snippet writes to.

    Output and value are written to descriptors 1 to 3.
    """
    run(_REHEARSAL, ModuleType("__main__"), 1000)


def run(source: str, module: ModuleType, value_bytes: int) -> int:
    """Run `source` in `module`, write its value or a MemoryError, and return the exit code 0 or
    1.
    """
    try:
        value = _evaluate(source, module.__dict__)
        if value is not None:
            _write_value(value, value_bytes)
        code = 0
    except SystemExit as stop:
        code = 0 if stop.code in (None, 0) else _report(stop)
    except BaseException as error:
        code = _report(error)
    return _flush() or code


def _evaluate(source: str, names: dict[str, Any]) -> object:
    """Value of the last expression, or a new `RESULT` if that is None or missing."""
    lines = source.splitlines(keepends=True)
    linecache.cache[SNIPPET] = (len(source), None, lines, SNIPPET)
    body, last = _compile(source)
    earlier = names.get("RESULT")
    if body is not None:
        exec(body, names)
    value = eval(last, names) if last is not None else None
    result = names.get("RESULT")
    return result if value is None and result is not earlier else value


def _write_value(value: object, limit: int) -> None:
    """Write the length of the repr on a line, the repr, and the JSON if there is one within
    `limit`.
    """
    shown = _cut(_shown(value, limit).encode("utf-8", "backslashreplace"), limit)
    encoded = b""
    if type(value) in _PLAIN:
        with suppress(ValueError, TypeError, RecursionError):
            encoded = json.dumps(value, allow_nan=False).encode()
    os.write(
        VALUE_DESCRIPTOR, b"%d\n" % len(shown) + shown + (encoded if len(encoded) <= limit else b"")
    )


def _shown(value: object, limit: int) -> str:
    """Return the repr. A value that cannot be shown does not make a finished call fail."""
    digits = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(max(digits, limit))  # integers are shown as far as other values
    try:
        return repr(value)
    except MemoryError:
        raise
    except Exception as error:
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}: {error}>"
    finally:
        sys.set_int_max_str_digits(digits)


def _compile(source: str) -> tuple[CodeType | None, CodeType | None]:
    """Pair (code of all statements but a last expression, code of that expression)."""
    if (parts := _split_by_line(source)) is not None:
        return parts
    tree = ast.parse(source, SNIPPET)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    expression = ast.Expression(last.value) if isinstance(last, ast.Expr) else None
    body = compile(tree, SNIPPET, "exec", dont_inherit=True) if tree.body else None
    return body, (
        None if expression is None else compile(expression, SNIPPET, "eval", dont_inherit=True)
    )


def _split_by_line(source: str) -> tuple[CodeType | None, CodeType] | None:
    """Result of `_compile` if the last line is an expression by itself (None if it is not).

    A syntax tree costs more than all other steps for a short snippet, and writes to more memory. If
    the code before the line is complete, so is the line, since it is not indented.
    """
    text = source.rstrip(" \t\n")
    head, end, last = text.rpartition("\n")
    if not last or last[0] in _NO_EXPRESSION or "\r" in text or head.endswith("\\"):
        return None
    with suppress(Exception):  # any error is found again with the tree, and reported as usual
        lines = "\n" * (head.count("\n") + len(end))
        expression = compile(lines + last, SNIPPET, "eval", dont_inherit=True)
        return compile(head + end, SNIPPET, "exec", dont_inherit=True) if head else None, expression
    return None


def _report(error: BaseException) -> int:
    """Write the traceback to stderr, with the snippet's own frames only, which also hides the
    host's paths.
    """
    exhausted = isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno == errno.ENOMEM
    )
    try:
        report = traceback.TracebackException.from_exception(error)
        _keep_own_frames(report, depth=8)
        text = "".join(report.format())
    except BaseException:
        text = f"{type(error).__name__}\n"
    _flush()  # the traceback comes after what the snippet printed
    with suppress(OSError):  # the snippet has closed the descriptor
        if exhausted:
            os.write(VALUE_DESCRIPTOR, MEMORY_ERROR)
    os.write(2, text.encode("utf-8", "backslashreplace"))
    return 1


def _keep_own_frames(report: traceback.TracebackException, depth: int) -> None:
    report.stack = traceback.StackSummary.from_list(
        [frame for frame in report.stack if frame.filename == SNIPPET]
    )
    for earlier in (report.__cause__, report.__context__):
        if earlier is not None and depth:
            _keep_own_frames(earlier, depth - 1)


def _flush() -> int:
    """Flush the streams; 1 if that fails, else 0."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        return 1
    return 0


def _cut(data: bytes, limit: int) -> bytes:
    """Data of about `limit` bytes, without its middle if it is longer."""
    if len(data) <= limit:
        return data
    half = limit // 2
    return (
        data[:half]
        + f"[... {len(data) - 2 * half} of {len(data)} bytes cut ...]".encode()
        + data[-half:]
    )
