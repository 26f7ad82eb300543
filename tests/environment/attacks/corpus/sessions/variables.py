# Reads the variables of another episode.
# outcome: ok
# session: victim
secret = "of the other episode 4711"
# %%
# outcome: ok error
# session: thief
import gc
import sys

found = [
    thing
    for thing in gc.get_objects()
    if "of the other" + " episode 4711" in str(thing)[:10_000] and thing is not globals()
]
print(len(found))
print("BREACH: found", len(found)) if any(
    "secret" in str(thing) for thing in found if isinstance(thing, dict) and thing.get("secret")
) else None
sys.modules["__main__"].secret
# %%
# outcome: ok
# session: victim
# shows: value='of the other episode 4711'
secret
