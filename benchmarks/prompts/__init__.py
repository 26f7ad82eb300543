"""Prompts that `hrm-agent optimize` finds."""
