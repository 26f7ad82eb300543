# A value of a hundred million characters.
# outcome: ok out_of_memory output_limit
# wall: 8
# cpu: 8
"x" * 100_000_000
