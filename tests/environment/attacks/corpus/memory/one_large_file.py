# One file without an end, dense and sparse.
# outcome: ok error output_limit
import os

for place in (0, 2**40):
    try:
        with open("/tmp/large", "wb", buffering=0) as file:
            file.seek(place)
            for _ in range(200):
                file.write(bytes(2**20))
        if os.stat("/tmp/large").st_blocks * 512 > 150 * 2**20:
            print("BREACH: 150 MiB")
    except OSError as error:
        print(error.strerror)
