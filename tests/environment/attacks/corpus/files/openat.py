# Climbs out of its root by descriptors of folders, dots, and a nested root.
# outcome: ok
import os

root = os.open("/", os.O_PATH | os.O_DIRECTORY)
tmp = os.open("/tmp", os.O_PATH | os.O_DIRECTORY)
for start in (root, tmp):
    for path in ("../../../../.." + "@SECRET_FILE@", "..//..//proc/1/root@SECRET_FILE@"):
        try:
            print("BREACH:", os.read(os.open(path, os.O_RDONLY, dir_fd=start), 99))
        except OSError as error:
            print(error.strerror)
os.mkdir("/tmp/jail")
try:
    os.chroot("/tmp/jail")
    os.fchdir(root)
    for _ in range(64):
        os.chdir("..")
    os.chroot(".")
    print("BREACH: a root of its own", os.listdir("/"))
except OSError as error:
    print(error.strerror)
