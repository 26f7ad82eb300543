"""Engines of a training: in this process, or a fleet of servers behind a router."""
