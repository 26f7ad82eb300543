# A value whose text is no text, or a text that lies about itself.
# outcome: ok error
class Text(str):
    def encode(self, *_):
        return b"\xff" * 10**6

    def __len__(self):
        return -1

    __getitem__ = __iter__ = __str__ = None


class Odd:
    def __repr__(self):
        return Text("x")


Odd()
