"""Rollouts of a training: tasks in groups, through the graph, scored and kept in order."""
