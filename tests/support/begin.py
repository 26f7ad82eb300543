"""`python -m tests.support.begin MODULE WORDS...` is `python -m MODULE WORDS...`, without the
collections of garbage that take a third of what torch and LangGraph need to be imported, and to
end.
"""

from __future__ import annotations

import runpy
import sys

from hrm_agent.basics.frozen_heap import begin_program

if __name__ == "__main__":
    begin_program()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
