# Blocks every signal and waits in the kernel.
# outcome: timeout
# wall: 0.5
import signal

signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True:
    signal.sigwait({signal.SIGUSR1})
