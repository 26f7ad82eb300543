# Takes the rights to its streams away, where it owns them, so that the next call of its slot cannot open them.
# outcome: ok
import os

for descriptor in (0, 1, 2, 3):
    for change in (
        lambda place: os.fchmod(place, 0o4100),
        lambda place: os.fchown(place, -1, os.getgid()),
    ):
        try:
            change(descriptor)
        except OSError:
            pass
# %%
# outcome: ok
# shows: value=\['0o777', '0o777', '0o777'\]
import os

[oct(os.fstat(descriptor).st_mode & 0o7777) for descriptor in (1, 2, 3)]
