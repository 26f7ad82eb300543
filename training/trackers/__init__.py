"""Trackers of experiments: what a run's metrics.jsonl holds, sent on to TensorBoard, trackio or
wandb.
"""
