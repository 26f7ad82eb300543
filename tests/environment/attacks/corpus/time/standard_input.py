# Waits for input that never comes.
# outcome: error
# shows: EOF
input()
