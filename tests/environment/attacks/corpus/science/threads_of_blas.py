# Multiplies matrices in more threads than it was given.
# outcome: ok error timeout out_of_memory
# wall: 1
import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "64"
import numpy as np

while True:
    np.random.rand(400, 400) @ np.random.rand(400, 400)
