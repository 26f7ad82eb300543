# A failure that ends with the exit code of success, by what it left in os and sys.
# outcome: ok error
import os
import sys

real = os._exit
os._exit = sys.exit = lambda code=0: real(0)
1 / 0
