"""ATIF, the Agent Trajectory Interchange Format: export and import."""
