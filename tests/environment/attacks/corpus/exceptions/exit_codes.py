# Exits with every kind of thing.
# outcome: error
raise SystemExit({"status": "ok", "text": "x" * 100_000})
