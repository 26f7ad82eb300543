# Output that would redraw a terminal, retitle it, or answer for its reader.
# outcome: ok
print("\x1b]0;title\x07\x1b[2J\x1b[1;1H\x1b[6n\x1b]52;c;Y2FuYXJ5\x07\r\b\b\x9b31m")
