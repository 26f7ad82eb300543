# Leaves folders within folders, deeper than any path is long.
# outcome: ok error
# heavy: yes
import os

os.chdir("/tmp")
for _ in range(3000):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
open("file", "w").write("x")
