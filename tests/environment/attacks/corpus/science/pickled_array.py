# An array that is a pickle with a call in it.
# outcome: ok error
import os

import numpy as np


class Loaded:
    def __reduce__(self):
        return os.system, ("touch @SCRATCH@/@MARK@",)


np.save("/tmp/a.npy", np.array([Loaded()], dtype=object), allow_pickle=True)
np.load("/tmp/a.npy", allow_pickle=True)
RESULT = np.array([Loaded()], dtype=object)
