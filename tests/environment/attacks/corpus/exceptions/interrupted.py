# Ends by exceptions that are meant for the runner.
# outcome: error
raise GeneratorExit(KeyboardInterrupt("\ud800\0"))
