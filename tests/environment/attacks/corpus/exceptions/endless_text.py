# An exception whose text takes for ever.
# outcome: timeout
# wall: 0.5
class Endless(Exception):
    def __str__(self):
        while True:
            pass


raise Endless
