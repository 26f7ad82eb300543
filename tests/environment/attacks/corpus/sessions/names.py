# Sessions whose names are paths, markup, or other sessions' names with a little more.
# outcome: ok
# session: ../../@MARK@
x = 1
# %%
# outcome: error
# session: ../../@MARK@/
x
# %%
# outcome: error
# session: ../../@MARK@%00
x
# %%
# outcome: ok
# session: ../../@MARK@
# shows: value=1
x
