# Leaves folders that each hold folders, all without modes, with links to folders of the host among them.
# outcome: ok error
import os

for one in range(15):
    for two in range(15):
        os.makedirs(f"/tmp/{one}/{two}/x")
        os.symlink("/usr", f"/tmp/{one}/{two}/usr")
        os.symlink("@SCRATCH@", f"/tmp/{one}/{two}/x/scratch")
        os.chmod(f"/tmp/{one}/{two}/x", 0)
        os.chmod(f"/tmp/{one}/{two}", 0)
