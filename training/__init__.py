"""Training on recorded runs. The package is imported as `hrm_agent.training`."""

if __name__ != "hrm_agent.training":
    raise ImportError(
        f"This folder is the package hrm_agent.training, not {__name__}: import it by that name."
    )
