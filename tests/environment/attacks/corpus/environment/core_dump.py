# Dies with a core file of the warm interpreter.
# outcome: error
import os
import resource
import signal

try:
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print("BREACH: core files")
except ValueError as error:
    print(error)
os.abort()
