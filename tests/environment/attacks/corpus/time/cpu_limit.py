# Catches the signal of its CPU limit, and lifts the limit.
# outcome: timeout
# wall: 200
# cpu: 0.3
import resource
import signal

signal.signal(signal.SIGXCPU, signal.SIG_IGN)
try:
    resource.setrlimit(resource.RLIMIT_CPU, (1000, 1000))
    print("BREACH: more CPU time")
except ValueError:
    pass
while True:
    pass
