# An exception whose text ends the process with success.
# outcome: ok error
# never: forged
import os


class Leaving(Exception):
    def __str__(self):
        os._exit(0)


raise Leaving
