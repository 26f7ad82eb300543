"""Enumerations of the record: outcomes of runs and calls, kinds of log-probs, reasons for
branches.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = [
    "BranchReason",
    "DropReason",
    "FinishReason",
    "LogprobKind",
    "RewardFault",
    "RunStatus",
    "SessionState",
    "StopReason",
    "ToolStatus",
    "Verdict",
]


class ToolStatus(StrEnum):
    """Outcome of a tool call, set by the side that enforces the limits, never read from the tool's
    output.
    """

    OK = "ok"
    """Call ended without an error."""
    ERROR = "error"
    """Code raised or exited with an error, or the tool reported a failure."""
    TIMEOUT = "timeout"
    """Call reached its limit of wall-clock or CPU time and was ended."""
    OUT_OF_MEMORY = "out_of_memory"
    """Call reached its memory limit and was ended."""
    OUTPUT_LIMIT = "output_limit"
    """Call produced more output than allowed."""
    INVALID_CALL = "invalid_call"
    """Arguments could not be decoded, or do not fit the tool. The tool was not run."""
    DENIED = "denied"
    """Call asked for something that is not allowed: a forbidden system call, or one use more than
    its budget.
    """
    INFRASTRUCTURE = "infrastructure"
    """Failure of the machine or a service, not caused by the policy."""

    @property
    def is_policy_failure(self) -> bool:
        """True if the policy is to blame, which it never is for a fault of the infrastructure."""
        return self not in (ToolStatus.OK, ToolStatus.INFRASTRUCTURE)


class SessionState(StrEnum):
    """State in which a tool call found the earlier calls of its session."""

    NEW = "new"
    """First call of the session."""
    KEPT = "kept"
    """Original process, which ran the earlier calls."""
    REPLAYED = "replayed"
    """New process that ran the earlier calls again, with the same status, output and value. The
    original process was gone, or had continued on another branch.
    """
    DIFFERS = "differs"
    """New process that ran the earlier calls again. Some ended with another status, output or
    value, as listed in `changed_cells`.
    """
    LOST = "lost"
    """New process in which some earlier calls could not be run again. They ended the process
    differently than before, or are unknown.
    """


class RunStatus(StrEnum):
    """Status of a run. `truncated`, `failed` and `aborted` runs are kept like any other."""

    RUNNING = "running"
    """Run in progress, or its process died. It can be resumed."""
    COMPLETED = "completed"
    """Graph finished."""
    TRUNCATED = "truncated"
    """Run ended before the graph finished: at a limit, with a question to the user, or by giving
    up.
    """
    FAILED = "failed"
    """Graph or verifier raised an error. The stop reason names the cause."""
    ABORTED = "aborted"
    """Run was stopped from outside."""


class StopReason(StrEnum):
    """Reason why a run ended. Only `answer` goes with `RunStatus.COMPLETED`."""

    ANSWER = "answer"
    """Graph finished before any of the limits below was reached."""
    MAX_TURNS = "max_turns"
    """Loop reached its limit of model calls."""
    MAX_TOKENS = "max_tokens"
    """Budget of completion tokens, or the model's context window, was used up."""
    MAX_SECONDS = "max_seconds"
    """Time budget for the work of models and tools was used up."""
    MAX_CALLS = "max_calls"
    """Budget of model calls of the run was used up."""
    MAX_COST = "max_cost"
    """Budget of money was used up."""
    MAX_ROUNDS = "max_rounds"
    """Critic asked for more work, and no round was left."""
    GAVE_UP = "gave_up"
    """Critic saw no way to an answer. The best answer so far is kept."""
    RECURSION_LIMIT = "recursion_limit"
    """Graph reached LangGraph's limit of steps."""
    INTERRUPT = "interrupt"
    """Graph waits for the user: at its own question, or at a breakpoint."""
    ERROR = "error"
    """Graph raised an error that is not known to be caused by the policy."""
    UNUSABLE_ANSWER = "unusable_answer"
    """Graph, or chat template, could not continue from the policy's answer. The run counts as
    wrong, not as lost.
    """
    VERIFIER_ERROR = "verifier_error"
    """Verifier raised an error, or returned no number from 0 to 1. The run has no reward."""
    ABORTED = "aborted"
    """Run was stopped from outside."""

    @property
    def truncates(self) -> bool:
        """True for reasons that end a run before the graph has finished: limits, questions, giving
        up.
        """
        return self not in _NO_LIMITS


_NO_LIMITS = (
    StopReason.ANSWER,
    StopReason.ERROR,
    StopReason.UNUSABLE_ANSWER,
    StopReason.VERIFIER_ERROR,
    StopReason.ABORTED,
)


class FinishReason(StrEnum):
    """Reason why a single model call stopped sampling."""

    STOP = "stop"
    """End-of-turn token or a stop string was sampled."""
    LENGTH = "length"
    """Token limit of the call was reached."""
    CONTROL_TOKEN = "control_token"
    """Policy sampled a control token other than its end of turn. Sampling ends there, so that no
    turn is forged.
    """


class LogprobKind(StrEnum):
    """Distribution that the stored log-probs belong to."""

    RAW = "raw"
    """Log softmax of the logits, as at temperature 1, over the whole vocabulary."""
    TEMPERED = "tempered"
    """Log softmax of the logits divided by the call's temperature, over the whole vocabulary,
    without top-p or schema.
    """
    SAMPLED = "sampled"
    """Log-probs of a distribution that was restricted further: by top-p, by a schema, or by
    something that is not on record.
    """
    NONE = "none"
    """Engine reports no log-probs."""


class BranchReason(StrEnum):
    """Reason why a call starts a new root of the message forest instead of extending its parent."""

    ROOT = "root"
    """First call of a conversation."""
    TEMPLATE = "template"
    """Chat template rewrites earlier turns, so that the stored prefix is no prefix of the new
    prompt.
    """
    REWRITTEN = "rewritten"
    """Message of the earlier call was edited, or messages before it were added, edited or
    removed.
    """
    TOOLS = "tools"
    """Tools offered to the model changed, and with them the system turn."""
    MODEL = "model"
    """Earlier call was made by another model, whose token ids this model cannot continue."""
    NO_TOKENS = "no_tokens"
    """Model reports no token ids."""


class Verdict(StrEnum):
    """Decision of a training run about a trajectory."""

    KEPT = "kept"
    """Trajectory was trained on, or was chosen among several runs."""
    DROPPED = "dropped"
    """Trajectory was left out: not drawn, failed without fault of the policy, or not chosen among
    several runs.
    """
    GROUP_REJECTED = "group_rejected"
    """Trajectory was left out with its whole group, which gives no signal or is too small to be
    trusted.
    """


class DropReason(StrEnum):
    """Reason why a training run did not train on a trajectory."""

    NOT_DRAWN = "not_drawn"
    """Selection took other rollouts of the group."""
    EQUAL_REWARDS = "equal_rewards"
    """Rewards of the group, or of the rollouts drawn from it, are all equal: no signal."""
    SMALL_GROUP = "small_group"
    """Group has too few rollouts that can take part (`min_group`)."""
    NO_GRADIENT = "no_gradient"
    """Kept rollouts of the group contain no call that can be trained on."""
    RUN_FAILED = "run_failed"
    """Graph raised an error that is not blamed on the policy: no answer of the policy caused it, or
    every rollout of the prompt raised one.
    """
    TRUNCATED = "truncated"
    """Run ended at a limit, and such rollouts are left out (`truncated = "leave_out"`)."""
    INFRASTRUCTURE = "infrastructure"
    """Tool call was lost to a machine or a service, so that the reward may not be caused by the
    policy.
    """
    ABORTED = "aborted"
    """Run was stopped from outside."""
    NOT_ENDED = "not_ended"
    """Run is still in progress."""
    CUT_OFF = "cut_off"
    """Group continued without this rollout (`group_quorum`). The rollout stays on record unchanged
    and can be forked.
    """
    TOO_OLD = "too_old"
    """Weights that sampled the rollout are older than the run allows (`versions_behind`)."""
    NOT_SCORED = "not_scored"
    """Reward function failed, or none gave a value. The run has no reward, which is not a reward of
    0.
    """


class RewardFault(StrEnum):
    """Reason why a reward function gave no value. Never counted as 0."""

    RAISED = "raised"
    """Function raised an error."""
    TIMEOUT = "timeout"
    """Function exceeded its time limit."""
    PROCESS_ENDED = "process_ended"
    """Function ended the process that it ran in."""
    NOT_A_NUMBER = "not_a_number"
    """Function returned nan or an infinity."""
    OUT_OF_RANGE = "out_of_range"
    """Function decides the outcome and returned a value outside of [0, 1]."""
    NOT_ON_RECORD = "not_on_record"
    """Required data is not on record any more, such as the state of a thread whose checkpoints were
    deleted.
    """
    JUDGE = "judge"
    """Judge model gave no answer, or none that could be parsed."""
