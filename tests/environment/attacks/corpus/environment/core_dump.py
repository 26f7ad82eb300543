# Dies with a core file of the warm interpreter.
# outcome: error
import os
import resource
import signal

try:
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
except ValueError as error:
    print(error)
if resource.getrlimit(resource.RLIMIT_CORE) != (1, 1):  # the change may be said to be done
    print("BREACH: core files")
os.abort()
