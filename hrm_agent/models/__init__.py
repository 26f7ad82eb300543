"""Models: the chat model that graphs call, and its engines."""

from hrm_agent.models.call_recording import was_cut
from hrm_agent.models.chat import PolicyModel, invalid_tool_calls, policy
from hrm_agent.models.current_policy import ActivePolicy, Backend, active_policy, using_policy
from hrm_agent.models.engine import Codec, Completion, Engine, GenerationRequest
from hrm_agent.models.loading.policy_loader import DEFAULT_POLICY, load_policy

__all__ = [
    "DEFAULT_POLICY",
    "ActivePolicy",
    "Backend",
    "Codec",
    "Completion",
    "Engine",
    "GenerationRequest",
    "PolicyModel",
    "active_policy",
    "invalid_tool_calls",
    "load_policy",
    "policy",
    "using_policy",
    "was_cut",
]
