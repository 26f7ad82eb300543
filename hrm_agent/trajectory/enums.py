"""The words of the record: how calls and runs can end, what log-probs mean, why a branch begins."""

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
    """How a tool call ended. Decided by the side that enforces it, never read from the tool's
    output.
    """

    OK = "ok"
    """It ended without an error."""
    ERROR = "error"
    """The code raised or exited with an error, or the tool said that it failed."""
    TIMEOUT = "timeout"
    """It was ended at its limit of wall-clock or CPU time."""
    OUT_OF_MEMORY = "out_of_memory"
    """It was ended at its limit of memory."""
    OUTPUT_LIMIT = "output_limit"
    """It gave more output than it may."""
    INVALID_CALL = "invalid_call"
    """It was not run: its arguments could not be decoded, or are not what the tool takes."""
    DENIED = "denied"
    """It asked for something that is not allowed: a forbidden system call, or one use more than its
    budget.
    """
    INFRASTRUCTURE = "infrastructure"
    """The machine or a service failed it, by no fault of the policy."""

    @property
    def is_policy_failure(self) -> bool:
        """True if the policy is to blame; a fault of the infrastructure never is."""
        return self not in (ToolStatus.OK, ToolStatus.INFRASTRUCTURE)


class SessionState(StrEnum):
    """What a call of a session found of the session's earlier calls."""

    NEW = "new"
    """It is the first."""
    KEPT = "kept"
    """The process that ran them."""
    REPLAYED = "replayed"
    """A new process that ran them again, to the same status, output and value: the old one was
    gone, or had gone on from here on another branch.
    """
    DIFFERS = "differs"
    """A new process that ran them again, and some ended with another status, output or value, as
    `changed_cells` says.
    """
    LOST = "lost"
    """A new process in which some could not be run again: they ended it otherwise than before, or
    are not known.
    """


class RunStatus(StrEnum):
    """Where a run stands. `truncated`, `failed` and `aborted` runs are kept like any other."""

    RUNNING = "running"
    """Under way, or its process died; it can be resumed."""
    COMPLETED = "completed"
    """The graph finished."""
    TRUNCATED = "truncated"
    """It ended before it was done: at a limit, with a question to a person, or by giving up."""
    FAILED = "failed"
    """The graph or the verifier raised an error; the stop reason says whose doing that was."""
    ABORTED = "aborted"
    """It was stopped from outside."""


class StopReason(StrEnum):
    """Why a run ended. `answer` is the only one that goes with `RunStatus.COMPLETED`."""

    ANSWER = "answer"
    """The graph finished: none of the limits below was reached."""
    MAX_TURNS = "max_turns"
    """The loop's limit of model calls was reached."""
    MAX_TOKENS = "max_tokens"
    """The budget of completion tokens, or the model's context window, was used up."""
    MAX_SECONDS = "max_seconds"
    """The budget of time in which models and tools are at work was used up."""
    MAX_CALLS = "max_calls"
    """The run's budget of model calls was used up."""
    MAX_COST = "max_cost"
    """The budget of money was used up."""
    MAX_ROUNDS = "max_rounds"
    """The critic would have had more done, and no round was left."""
    GAVE_UP = "gave_up"
    """The critic saw no way to an answer; the best one so far stands."""
    RECURSION_LIMIT = "recursion_limit"
    """LangGraph's limit of steps was reached."""
    INTERRUPT = "interrupt"
    """The graph waits for a person: a question of its own, or a breakpoint."""
    ERROR = "error"
    """The graph raised an error that is not known to be the policy's doing."""
    UNUSABLE_ANSWER = "unusable_answer"
    """The graph, or the chat template, could not go on from what the policy wrote: the run is
    wrong, not lost.
    """
    VERIFIER_ERROR = "verifier_error"
    """The verifier raised an error, or gave no number from 0 to 1: the run has no reward."""
    ABORTED = "aborted"
    """The run was stopped from outside."""

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
    """Why a single model call stopped sampling."""

    STOP = "stop"
    """The end-of-turn token or a stop string was sampled."""
    LENGTH = "length"
    """The token limit of the call was reached."""
    CONTROL_TOKEN = "control_token"
    """The policy sampled a control token other than its end of turn; sampling ends there, so no
    turn is forged.
    """


class LogprobKind(StrEnum):
    """What the stored log-probs mean."""

    RAW = "raw"
    """log softmax of the logits, as at temperature 1, over the whole vocabulary."""
    TEMPERED = "tempered"
    """log softmax of the logits divided by the call's temperature, over the whole vocabulary: no
    top-p, no schema.
    """
    SAMPLED = "sampled"
    """of a distribution that was cut further: by top-p, a schema, or something that is not on
    record.
    """
    NONE = "none"
    """the engine gives none."""


class BranchReason(StrEnum):
    """Why a call starts a new root of the message forest instead of extending its parent."""

    ROOT = "root"
    """the first call of a conversation: nothing to extend."""
    TEMPLATE = "template"
    """the chat template rewrites earlier turns, so that the stored prefix is no prefix of the new
    prompt.
    """
    REWRITTEN = "rewritten"
    """the message that carries the earlier call was edited, or messages before it were added,
    edited or removed.
    """
    TOOLS = "tools"
    """the tools offered to the model changed, and with them the system turn."""
    MODEL = "model"
    """the earlier call was another model's: its token ids mean nothing here."""
    NO_TOKENS = "no_tokens"
    """the model reports no token ids."""


class Verdict(StrEnum):
    """What a training run did with a trajectory."""

    KEPT = "kept"
    """It was trained on; of a choice among several runs, it was chosen."""
    DROPPED = "dropped"
    """It was left out: not drawn, or it failed by no fault of the policy; of a choice, another run
    was chosen.
    """
    GROUP_REJECTED = "group_rejected"
    """It was left out with its whole group, which gives no signal,
    or is too small to be trusted.
    """


class DropReason(StrEnum):
    """Why a training run did not train on a trajectory."""

    NOT_DRAWN = "not_drawn"
    """The selection took other rollouts of the group."""
    EQUAL_REWARDS = "equal_rewards"
    """The rewards of the group, or of those drawn from it, are all equal: no signal."""
    SMALL_GROUP = "small_group"
    """Too few rollouts of the group can take part (`min_group`)."""
    NO_GRADIENT = "no_gradient"
    """No call of the group's kept rollouts can be trained on."""
    RUN_FAILED = "run_failed"
    """The graph raised an error by itself: not on what the policy wrote, or in every rollout of the
    prompt.
    """
    TRUNCATED = "truncated"
    """It ended at a limit, and the run leaves such rollouts out (`truncated = "leave_out"`)."""
    INFRASTRUCTURE = "infrastructure"
    """A tool call was lost to a machine or a service,
    so the reward may not be the policy's doing.
    """
    ABORTED = "aborted"
    """The run was stopped from outside."""
    NOT_ENDED = "not_ended"
    """The run is still under way."""
    CUT_OFF = "cut_off"
    """Its group went on without it (`group_quorum`); it stays on record as it stood, and can be
    forked.
    """
    TOO_OLD = "too_old"
    """Weights sampled it that are further back than the run allows (`versions_behind`)."""
    NOT_SCORED = "not_scored"
    """A reward function failed, or none gave a value: the run has no reward, which is not a reward
    of 0.
    """


class RewardFault(StrEnum):
    """Why a reward function gave no value. Never counted as 0."""

    RAISED = "raised"
    """It raised an error."""
    TIMEOUT = "timeout"
    """It was not done within its time."""
    PROCESS_ENDED = "process_ended"
    """It ended the process that it ran in."""
    NOT_A_NUMBER = "not_a_number"
    """It returned nan or an infinity."""
    OUT_OF_RANGE = "out_of_range"
    """It decides the outcome and returned a value outside of [0, 1]."""
    NOT_ON_RECORD = "not_on_record"
    """It needs what is not on record any more, such as the state of a thread whose checkpoints were
    deleted.
    """
    JUDGE = "judge"
    """The model that judges gave no answer, or none that could be read."""
