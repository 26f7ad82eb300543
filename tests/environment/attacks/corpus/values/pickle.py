# A value that is a pickle with a call in it, in case somebody loads it.
# outcome: ok
import os
import pickle


class Loaded:
    def __reduce__(self):
        return os.system, ("touch @SCRATCH@/@MARK@ /tmp/@MARK@",)


pickle.dumps(Loaded())
