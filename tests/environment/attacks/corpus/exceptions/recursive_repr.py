# A value whose text is its own text.
# outcome: error
class Again:
    def __repr__(self):
        return repr(self)


Again()
