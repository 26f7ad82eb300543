"""Pages of records: one file each, without a script, to keep, send and open by a double click."""

from hrm_agent.pages.group import group_page, step_page
from hrm_agent.pages.run import trajectory_page

__all__ = ["group_page", "step_page", "trajectory_page"]
