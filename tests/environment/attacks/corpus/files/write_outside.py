# Writes wherever a file may be written: the host's folders, the interpreter's own library, the root.
# outcome: ok
import os
import sys

FOLDERS = [
    "/",
    "/usr",
    "/usr/lib",
    "/usr/bin",
    "/etc",
    "/dev",
    "/bin",
    "/var",
    "/var/tmp",
    "/home",
    "/root",
    "/proc",
    "/sys",
]
FOLDERS += [
    "@SCRATCH@",
    "@HOME@",
    "@PROJECT@",
    os.path.dirname(os.__file__),
    sys.prefix,
    sys.base_prefix,
]
FOLDERS += [
    folder for folder in sys.path if folder.startswith("/") and not folder.startswith("/tmp")
]
for folder in FOLDERS:
    try:
        with open(f"{folder}/@MARK@", "w") as file:
            file.write("x")
        print("BREACH: wrote to", folder)
    except OSError as error:
        print(folder, error.strerror)
