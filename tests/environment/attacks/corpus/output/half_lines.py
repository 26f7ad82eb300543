# Cuts in the middle of a character, at every offset.
# outcome: ok
# output: 101
for shift in range(4):
    print("a" * shift + "\U0001f600" * 200)
