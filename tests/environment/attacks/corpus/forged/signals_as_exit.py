# Dies by the signals that the one who watches uses itself.
# outcome: error ok
# copies: 6
import os
import random
import signal

number = random.choice(
    [signal.SIGXCPU, signal.SIGXFSZ, signal.SIGSYS, signal.SIGKILL, signal.SIGTERM, signal.SIGPIPE]
)
signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
if os.fork() == 0:
    os.kill(1, number)
    os._exit(0)
os.wait()
os.kill(os.getpid(), number)
