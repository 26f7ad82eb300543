# Reaches the host through symbolic links of its own making, and links that later calls may follow.
# outcome: ok
import os

os.symlink("@SECRET_FILE@", "/tmp/link")
os.symlink("/", "/tmp/root")
os.symlink("../../../../../../@SECRET_FILE@", "/tmp/up")
os.symlink("/proc/1/root", "/tmp/first")
for path in ("/tmp/link", "/tmp/root@SECRET_FILE@", "/tmp/up", "/tmp/first@SECRET_FILE@"):
    try:
        print("BREACH:", open(path).read())
    except OSError as error:
        print(path, error.strerror)
os.unlink("/tmp/link")
os.symlink("@SCRATCH@", "/tmp/note")
try:
    open("/tmp/note/@MARK@", "w")
    print("BREACH: wrote through a link")
except OSError as error:
    print(error.strerror)
