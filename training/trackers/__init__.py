"""Experiment trackers: send the rows of a run's metrics.jsonl to TensorBoard, trackio or wandb."""
