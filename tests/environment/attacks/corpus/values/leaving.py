# A value whose text ends the process: with success, then by a signal.
# outcome: ok error
import os


class Leaving:
    def __repr__(self):
        os._exit(0)


Leaving()
