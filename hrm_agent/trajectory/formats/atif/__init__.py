"""ATIF, the Agent Trajectory Interchange Format: written, and read back."""
