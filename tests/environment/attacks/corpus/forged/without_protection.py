# Ends as the first process of its namespace by a signal of its own choice: the kernel's protection is raced away.
# outcome: error ok
# never: SIGSYS.*other architecture|more memory than
# copies: 12
import base64
import os
import random

program = base64.b64decode("@UNPROTECTED@") if "@" not in "@UNPROTECTED@" else b""
if program:
    with open("/tmp/program", "wb") as file:
        file.write(program)
    os.chmod("/tmp/program", 0o755)
    os.execv("/tmp/program", ["program", str(random.choice([9, 24, 25, 31, 32, 33, 40, 63, 64]))])
