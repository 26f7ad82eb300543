# A result that its own text changes.
# outcome: ok error
class Changing(list):
    def __repr__(self):
        globals()["RESULT"] = "another"
        self.append(self)
        return f"{len(self)}"


RESULT = Changing()
