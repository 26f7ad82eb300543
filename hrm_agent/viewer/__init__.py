"""Local web page of recorded runs, groups, trajectories and tokens (`hrm-agent view`)."""
