"""What a rollout costs, and where: by thread, by process and by what is counted."""
