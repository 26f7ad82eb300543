# Looks for folders of the host: homes, the project, temporary files of others.
# outcome: ok
import os

for folder in (
    "/home",
    "/root",
    "/var",
    "/etc",
    "/sys",
    "/boot",
    "/run",
    "/mnt",
    "/work",
    "@SCRATCH@",
    "@PROJECT@",
):
    try:
        print("BREACH: listed", folder, os.listdir(folder))
    except OSError as error:
        print(folder, error.strerror)
if "@MARK@" in str(os.listdir("/tmp")):
    print("BREACH: the host's /tmp")
