# Asks the interpreter where the project lives.
# outcome: ok
import sys
import sysconfig

print(sys.path, sys.argv, sys.orig_argv, sys.executable, sys.prefix, sysconfig.get_paths())
print([getattr(module, "__file__", None) for module in sys.modules.values()])
