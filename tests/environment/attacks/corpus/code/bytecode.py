# Bytecode that reads beyond its constants.
# outcome: ok error
def f():
    return 1


f.__code__ = f.__code__.replace(co_code=bytes([100, 255] * 50 + [83, 0]), co_stacksize=1)
print(f())
