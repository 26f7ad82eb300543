# A regular expression that backtracks for ever.
# outcome: timeout
# wall: 0.5
import re

re.match(r"(a+)+$", "a" * 60 + "b")
