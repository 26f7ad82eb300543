# An array over memory that is not its own.
# outcome: error ok out_of_memory
import numpy as np

wild = np.lib.stride_tricks.as_strided(np.zeros(1, "u1"), shape=(2**50,), strides=(4096,))
wild[:: 2**20] = 65
