# Leaves a process pool behind, with its queues and semaphores.
# outcome: ok error
import multiprocessing

pool = multiprocessing.get_context("fork").Pool(2)
print(pool.map(abs, [-1, -2]))
