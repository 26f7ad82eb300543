# A value of a hundred million characters.
# outcome: ok out_of_memory output_limit
# heavy: yes
"x" * 100_000_000
