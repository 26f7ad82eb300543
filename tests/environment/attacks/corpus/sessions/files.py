# Reads and changes the files of another episode.
# outcome: ok
# session: victim
open("/tmp/note", "w").write("of the victim")
# %%
# outcome: ok
# session: thief
import os

for root, _, names in os.walk("/tmp"):
    for name in names:
        print("BREACH:", root, name)
open("/tmp/note", "w").write("BREACH: of the thief")
# %%
# outcome: ok
# copies: 2
import os

print("BREACH: a file of a session") if os.listdir("/tmp") else None
# %%
# outcome: ok
# session: victim
# shows: of the victim
print(open("/tmp/note").read())
