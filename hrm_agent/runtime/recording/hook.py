"""Recording of unedited programs: `HRM_AGENT_STORE=runs/x.db python theirs.py`.

At startup Python reads the installed `hrm_agent_record.pth`, which calls `install` if the variable
is set. For installations without that file, `hrm-agent record -- COMMAND` does the same by a
`sitecustomize` of its own. At startup nothing else is imported. When the program imports LangGraph,
a finder wraps the two entry points of graphs, and removes itself. The first invocation opens the
store, and the end of the process closes it.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import os
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["ALLOW_VARIABLE", "DRAWS_VARIABLE", "VARIABLE", "install"]

VARIABLE = "HRM_AGENT_STORE"
"""Environment variable: store into which every program that is started with it is recorded."""
ALLOW_VARIABLE = "HRM_AGENT_ALLOW"
"""Environment variable: names of types (`package.module:Type`) that states may hold, separated by
commas.
"""
DRAWS_VARIABLE = "HRM_AGENT_DRAWS"
"""Environment variable: 1 also records the values that nodes take from the clock, `uuid4` and
`random`.
"""
_MODULE = "langgraph.pregel.main"
_STRICT = "LANGGRAPH_STRICT_MSGPACK"
_WAYS_IN = ("stream", "astream")


def install(strict: str | None) -> None:
    """Record graphs from the import of LangGraph on.

    `strict`: value of `LANGGRAPH_STRICT_MSGPACK` before the import of this package, which sets it.
    If it was missing (None), it is removed again, so that a watched program keeps its own
    checkpointers unchanged.
    """
    if strict is None:
        os.environ.pop(_STRICT, None)
    where = os.environ[VARIABLE]
    os.environ[VARIABLE] = where if "://" in where else os.path.abspath(where)  # noqa: PTH100  # pathlib takes time
    if _MODULE in sys.modules:
        _intercept(sys.modules[_MODULE])
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finder that waits for the import of LangGraph."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            loader.exec_module = _then_intercept(loader.exec_module)
        return spec


def _then_intercept(execute: Any) -> Any:
    def exec_module(module: ModuleType) -> None:
        execute(module)
        _intercept(module)

    return exec_module


def _intercept(module: ModuleType) -> None:
    """Wait for the first invocation, since more of this project cannot be imported during the
    import of LangGraph.
    """
    pregel: Any = module.Pregel
    entries = {name: getattr(pregel, name) for name in _WAYS_IN}
    recorded: dict[str, Any] = {}
    lock = threading.Lock()

    def first(name: str) -> Any:
        @functools.wraps(entries[name])
        def begin(self: Any, *given: Any, **options: Any) -> Any:
            recordings: Any = sys.modules.get("hrm_agent.trajectory")
            # hrm-agent already records this run
            if recordings is not None and recordings.open_recording() is not None:
                return entries[name](self, *given, **options)
            with lock:
                if not recorded:
                    around = {way: vars(pregel)[way] for way in _WAYS_IN}
                    for way, entry in entries.items():
                        setattr(pregel, way, entry)
                    _open()
                    recorded.update({way: getattr(pregel, way) for way in _WAYS_IN})
                    # wrappers of another library, which call `begin`
                    for way, wrapper in around.items():
                        if wrapper is not firsts[way]:
                            setattr(pregel, way, wrapper)
            return recorded[name](self, *given, **options)

        return begin

    firsts = {name: first(name) for name in _WAYS_IN}
    for name, wrapped in firsts.items():
        setattr(pregel, name, wrapped)


def _open() -> None:
    """Open the store. If that fails, report it once; the program runs without a record."""
    from hrm_agent.basics.async_bridge import may_block

    with may_block():
        from hrm_agent.errors import HrmError
        from hrm_agent.runtime.recording.record import record_process

        try:
            allow = tuple(filter(None, os.environ.get(ALLOW_VARIABLE, "").split(",")))
            record_process(os.environ[VARIABLE], allow, draws=os.environ.get(DRAWS_VARIABLE) == "1")
        except (HrmError, OSError) as error:
            sys.stderr.write(f"hrm-agent: nothing is recorded: {error}\n")
