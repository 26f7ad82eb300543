# Code with half a character in a name and in a text.
# outcome: ok error
text = "@SURROGATE@"
print(len(text))
