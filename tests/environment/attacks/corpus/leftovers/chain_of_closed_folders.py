# The same, with every folder closed behind it.
# outcome: ok error
# heavy: yes
import os

os.chdir("/tmp")
for _ in range(3500):
    os.mkdir("d")
    folder = os.open(".", os.O_PATH)
    os.chdir("d")
    os.chmod("../d", 0o300)
    os.close(folder)
