# Exceptions whose class lies about its name, its module, its text and its traceback.
# outcome: error
class Meta(type):
    def __getattribute__(cls, name):
        raise RuntimeError(name)


class Odd(BaseException, metaclass=Meta):
    def __getattribute__(self, name):
        raise SystemExit(0)

    __repr__ = __str__ = None


raise Odd
