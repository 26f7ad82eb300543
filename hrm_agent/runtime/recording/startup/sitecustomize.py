"""Startup module of a Python that `hrm-agent record` has started. Afterwards it imports the
`sitecustomize` that it hides.
"""

import importlib
import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  # pathlib takes time

if os.environ.get("HRM_AGENT_STORE"):
    _strict = os.environ.get("LANGGRAPH_STRICT_MSGPACK")
    try:
        from hrm_agent.runtime.recording.hook import install
    except ImportError as error:  # another Python than that of the command
        sys.stderr.write(
            f"hrm-agent: nothing is recorded: {sys.executable} has no hrm-agent ({error}).\n"
        )
    else:
        install(_strict)

sys.path[:] = [folder for folder in sys.path if folder != _FOLDER]
_own = sys.modules.pop("sitecustomize", None)
try:
    importlib.import_module("sitecustomize")
except ImportError:
    if _own is not None:
        sys.modules["sitecustomize"] = _own
