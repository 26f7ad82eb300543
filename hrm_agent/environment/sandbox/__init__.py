"""Code that runs inside the sandbox process. It uses only the standard library and relative
imports.

`hrm_agent.environment.local.zygote_process` starts a bare interpreter that imports this folder as a
package, without hrm_agent and its requirements.
"""
