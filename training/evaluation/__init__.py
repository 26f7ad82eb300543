"""What `hrm_agent.training.evaluation.evaluate` is made of: numbers (`statistics`), facts of a run
(`samples`, `roles`), prices, reports.
"""
