"""Films of trainings: tasks under each version of the weights, with the same noise."""
