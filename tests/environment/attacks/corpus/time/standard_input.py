# Waits for input that never comes.
# outcome: error
# wall: 1
# shows: EOF
input()
