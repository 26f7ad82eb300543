# Burns CPU time in threads of C, which do not wait for the interpreter's lock.
# outcome: timeout
# wall: 200
# cpu: 0.4
import hashlib
import threading


def burn():
    while True:
        hashlib.sha256(bytes(2**20)).digest()


for _ in range(4):
    threading.Thread(target=burn, daemon=True).start()
threading.Event().wait()
