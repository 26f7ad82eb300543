# Changes numpy for whoever runs next.
# outcome: ok error
import numpy as np

np.sum = np.zeros = np.ndarray = lambda *_: "forged"
np.random.seed(1)
# %%
# outcome: ok error
# copies: 3
# never: forged|BREACH
import numpy as np

print(np.sum([1, 2]), np.zeros(2))
# %%
# outcome: ok error
# copies: 3
# differs: yes
import numpy as np

print(np.random.rand(3), np.random.default_rng().random(3))
