# Leaves folders within folders, deep enough for whoever walks them by calling itself.
# outcome: ok error
# heavy: yes
import os

os.chdir("/tmp")
for _ in range(1900):
    os.mkdir("d")
    os.chdir("d")
open("f", "w").write("x")
