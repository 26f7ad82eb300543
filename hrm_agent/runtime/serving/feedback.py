"""Feedback of people on runs: `POST /v1/feedback` -> a scoring by the rubric `feedback`, beside the
run's record.

    {"thread": "chat-1", "score": 0.75 or "up" or "down", "words": "cites the wrong page", "id": "f-1"}

`words` and `id` may be left out. Several feedbacks on one thread are all kept, with their times.
The newest counts, since people change their minds. A repeated request with the same `id`, as from a
client that got no answer, adds nothing.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hrm_agent.basics.unicode import without_surrogates
from hrm_agent.runtime.serving.requests import RefusedError, refusal
from hrm_agent.store import RunStore
from hrm_agent.trajectory import FEEDBACK, Feedback, RewardScore, RunStatus, Scoring

__all__ = ["MAX_FEEDBACKS", "MAX_WORDS", "add_feedback"]

MAX_WORDS = 4000
"""Maximum characters of one feedback."""
MAX_FEEDBACKS = 100
"""Maximum feedbacks on one thread."""
_SCORES = {"up": 1.0, "down": 0.0}


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    thread: Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,512}$")]
    score: Annotated[float, Field(ge=0, le=1)] | Literal["up", "down"]
    words: Annotated[str, Field(max_length=MAX_WORDS)] | None = None
    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,128}$")] | None = None


def add_feedback(store: RunStore, body: Any) -> dict[str, Any]:
    """Store a feedback; return the response for the client. Raises `RefusedError`. Blocks during
    the write.
    """
    asked = _read(body)
    found = store.journal.headers("thread_id = ?", (asked.thread,))
    if not found:
        raise RefusedError(
            404, "No thread of that name is on record.", code="unknown_thread", param="thread"
        )
    if found[0].status is RunStatus.RUNNING:
        raise RefusedError(
            409, "The thread's run has not ended.", code="thread_busy", param="thread"
        )
    given = Feedback(
        id=asked.id or uuid4().hex,
        score=_SCORES[asked.score] if isinstance(asked.score, str) else asked.score,
        words=without_surrogates(asked.words or ""),
        given_at=time.time(),
    )
    trajectory_id = found[0].id
    stands = store.scorings.amend(
        FEEDBACK, trajectory_id, lambda scoring: _with(scoring, trajectory_id, given)
    )
    kept = {one.id: one for one in stands.feedback} if stands is not None else {}
    if given.id not in kept:
        raise RefusedError(
            409, f"The thread has {MAX_FEEDBACKS} feedbacks, and may have no more.", code="too_many"
        )
    if (kept[given.id].score, kept[given.id].words) != (given.score, given.words):
        raise RefusedError(409, "Another feedback has that id.", code="id_taken", param="id")
    return {
        "object": "feedback",
        "id": given.id,
        "thread": asked.thread,
        "trajectory": trajectory_id,
        "of": len(kept),
    }


def _read(body: Any) -> _Body:
    if not isinstance(body, dict):
        raise RefusedError(400, "The body has to be a JSON object.")
    try:
        return _Body.model_validate(body)
    except ValidationError as error:
        wrong = refusal(error)
        if wrong.param is not None and wrong.param.startswith("score"):
            raise RefusedError(
                400, 'score has to be a number from 0 to 1, "up" or "down".', param="score"
            ) from None
        raise wrong from None


def _with(scoring: Scoring | None, trajectory_id: str, given: Feedback) -> Scoring | None:
    """Scoring with one more feedback (None if it contains this one already, or is full)."""
    before = scoring.feedback if scoring is not None else ()
    if len(before) >= MAX_FEEDBACKS or any(one.id == given.id for one in before):
        return None
    return Scoring(
        trajectory_id=trajectory_id,
        rubric=FEEDBACK,
        scores=(RewardScore(name=FEEDBACK, value=given.score, reason=given.words),),
        outcome=given.score,
        total=given.score,
        feedback=(*before, given),
        scored_at=given.given_at,
    )
