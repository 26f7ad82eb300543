# Lists, mappings and numbers that answer otherwise when they are asked again.
# outcome: ok error timeout out_of_memory
# wall: 1
class Lying(dict):
    def items(self):
        while True:
            yield "a", self

    def __len__(self):
        return 2**60

    __iter__ = keys = items


class Number(int):
    def __repr__(self):
        return '"}], "status": "timeout", "x": [{"'

    __str__ = __repr__


RESULT = [Number(5), Lying(a=1), {Number(1): Number(2)}]
