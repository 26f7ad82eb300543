# Arrays beyond the memory it may have.
# outcome: out_of_memory error
# memory: 96
import numpy as np

arrays = [np.ones(2**22) for _ in range(40)]
print("BREACH: a GiB under 96 MiB")
