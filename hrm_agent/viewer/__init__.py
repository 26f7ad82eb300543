"""A local page on what is on record: runs, groups, trajectories, tokens (`hrm-agent view`)."""
