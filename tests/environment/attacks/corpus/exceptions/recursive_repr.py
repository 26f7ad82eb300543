# A value whose text is its own text.
# outcome: ok
# shows: cannot be shown
class Again:
    def __repr__(self):
        return repr(self)


Again()
