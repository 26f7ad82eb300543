"""`python -m tests.support.begin MODULE WORDS...` does the same as `python -m MODULE WORDS...`, but
collects no garbage: garbage collection takes a third of the time in which torch and LangGraph are
imported and the process ends.
"""

from __future__ import annotations

import runpy
import sys

from hrm_agent.basics.frozen_heap import begin_program

if __name__ == "__main__":
    begin_program()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
