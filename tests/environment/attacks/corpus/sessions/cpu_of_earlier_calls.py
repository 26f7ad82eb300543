# Leaves a process behind that has used much CPU time: it counts for the call that it ran in, and for no other.
# outcome: ok
# session: a
# cpu: 0.5
import os
import time

reader, writer = os.pipe()
if os.fork() == 0:
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    os.write(writer, b"x")
    time.sleep(60)
    os._exit(0)
os.read(reader, 1)
# %%
# outcome: ok
# session: a
# cpu: 0.5
# shows: done
end = time.process_time() + 0.3
while time.process_time() < end:
    pass
print("done")
