# Values whose text does things: writes files, prints, exits.
# outcome: ok error
import os


class Acting:
    def __repr__(self):
        for folder in ("@SCRATCH@", "/tmp", "."):
            try:
                open(f"{folder}/@MARK@-repr", "w").close()
            except OSError:
                pass
        return "acted"

    def __reduce__(self):
        return os.system, ("touch @SCRATCH@/@MARK@-pickle /tmp/@MARK@-pickle",)

    __str__ = __format__ = __repr__


RESULT = Acting()
