# Fills both streams side by side, from threads.
# outcome: output_limit
import sys
import threading


def fill(stream):
    while True:
        stream.write("y" * 10_000)
        stream.flush()


threads = [
    threading.Thread(target=fill, args=(stream,))
    for stream in (sys.stdout, sys.stderr)
    for _ in range(3)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
