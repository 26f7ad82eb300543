# Fails deep inside the runner, in the hope of seeing where it is installed.
# outcome: error
import json


class Odd(dict):
    def __iter__(self):
        raise RuntimeError("odd")

    items = keys = values = __repr__ = __iter__


json.dumps(Odd(a=1))
RESULT = Odd(a=1)
