# A value whose text takes for ever.
# outcome: timeout
# wall: 0.4
class Endless:
    def __repr__(self):
        while True:
            pass


Endless()
