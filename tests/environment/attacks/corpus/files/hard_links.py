# Makes second names for files it may read, to change their mode or to keep them.
# outcome: ok
import os

for path in ("/usr/bin/env", os.__file__, "/dev/null", "@SECRET_FILE@"):
    try:
        os.link(path, "/tmp/hard")
        print("BREACH: linked", path)
    except OSError as error:
        print(path, error.strerror)
