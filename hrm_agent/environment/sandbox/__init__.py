"""What runs inside the sandbox process: the standard library and relative imports only.

`hrm_agent.environment.local.zygote_process` starts a bare interpreter that imports this folder as a
package of its own, without hrm_agent and what that needs.
"""
