"""What `training.evaluate` is made of: numbers (`statistics`), facts of a run (`samples`, `roles`), prices, reports."""
