# Unpacks a little into a lot.
# outcome: out_of_memory
# memory: 96
import zlib

packed = zlib.compress(zlib.compress(bytes(900 * 2**20 // 4), 1) * 4, 1)
data = zlib.decompress(packed)
blocks = [zlib.decompressobj().decompress(data) for _ in range(8)]
