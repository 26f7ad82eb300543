# Leaves folders that nobody may enter, for the one who has to clean up.
# outcome: ok
import os

for number in range(20):
    os.makedirs(f"/tmp/{number}/a/b")
    open(f"/tmp/{number}/a/b/file", "w").write("x")
    os.chmod(f"/tmp/{number}/a/b", 0)
    os.chmod(f"/tmp/{number}/a", 0)
    os.chmod(f"/tmp/{number}", 0)
try:
    os.chmod("/tmp", 0)
except OSError as error:
    print(error.strerror)
# %%
# outcome: ok
# copies: 3
import os

os.chdir("/tmp")
open("mine", "w").write("x")
print("BREACH: left:", os.listdir("/tmp")) if len(os.listdir("/tmp")) > 1 else None
