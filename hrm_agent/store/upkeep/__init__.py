"""Upkeep of stores: creation, migration, copies, verification, maintenance."""
