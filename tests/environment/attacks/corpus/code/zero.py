# Code with a zero byte.
# outcome: error
print("a@NUL@b")
