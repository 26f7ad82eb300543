"""Chat models of users: recording of their answers, and substitution by a policy."""
