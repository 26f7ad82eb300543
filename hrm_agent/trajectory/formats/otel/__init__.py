"""OpenTelemetry spans of a run: as a file, and as attributes."""
