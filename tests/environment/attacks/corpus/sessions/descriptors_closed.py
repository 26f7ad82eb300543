# Closes the channel that its next call would come by.
# outcome: ok error infrastructure
# session: a
import os

os.closerange(3, 4096)
# %%
# outcome: ok error infrastructure
# session: a
print("again")
# %%
# outcome: ok
# session: b
# shows: other
print("other")
