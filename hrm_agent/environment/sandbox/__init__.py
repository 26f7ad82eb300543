"""What runs inside the sandbox process. Standard library only, relative imports only: it is loaded without hrm_agent.

`hrm_agent.environment.local` starts a bare interpreter that imports this folder as a package of its own.
"""
