"""Parts of `hrm_agent.training.evaluation.evaluate`: numbers (`statistics`), facts of a run
(`samples`, `roles`), prices, reports.
"""
