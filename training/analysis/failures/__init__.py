"""Failed runs in classes: by rules, and by a judge model where no rule says the cause."""
