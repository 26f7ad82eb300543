# Leaves notes where no list of files shows them: attributes, times and modes of the folder itself.
# outcome: ok
import os

try:
    os.setxattr("/tmp", "user.note", b"from the earlier call")
except OSError as error:
    print(error.strerror)
for change in (lambda: os.utime("/tmp", (123456, 123456)), lambda: os.chmod("/tmp", 0o1711)):
    try:
        change()
    except OSError as error:
        print(error.strerror)
# %%
# outcome: ok
# copies: 3
import os

try:
    print("BREACH:", os.getxattr("/tmp", "user.note"))
except OSError:
    pass
if os.stat("/tmp").st_mtime == 123456 or os.stat("/tmp").st_mode & 0o7777 == 0o1711:
    print("BREACH: times or mode of the earlier call")
