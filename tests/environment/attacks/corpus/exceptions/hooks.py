# Takes over everything that the interpreter calls when something fails.
# outcome: error
import os
import sys
import threading
import traceback

sys.excepthook = sys.unraisablehook = threading.excepthook = lambda *_: os._exit(0)
traceback.TracebackException = traceback.print_exc = traceback.format_exc = None
sys.settrace(lambda *_: None)
1 / 0
