# Reads from address zero.
# outcome: error
import ctypes

ctypes.string_at(0)
