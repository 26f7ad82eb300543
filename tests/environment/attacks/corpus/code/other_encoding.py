# -*- coding: utf-7 -*-
# Code that claims another encoding.
# outcome: ok error
print("+AGE-")
