"""Search for better prompts by gepa (arXiv 2507.19457): reflective mutation and a Pareto front.

In each iteration one candidate of the Pareto front is run on a minibatch of training tasks. The
reflection model reads the feedback on one prompt and writes a new text. If the sum of rewards on
the minibatch rises, the new candidate is run on the validation tasks, and enters the front.

gepa keeps no state here. All runs and reflections are on record, so a search that is repeated with
the same seed reads them back, and goes on where an interrupted one ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from gepa.api import optimize
from gepa.core.adapter import EvaluationBatch, ProposalFn
from gepa.core.state import GEPAState
from gepa.strategies.instruction_proposal import InstructionProposalSignature

from hrm_agent.basics.unicode import find_surrogate
from hrm_agent.errors import ConfigError, HrmError
from hrm_agent.prompts import PromptTexts, fields_of, refuse_other_fields
from hrm_agent.training.prompts.feedback import feedback_on
from hrm_agent.training.prompts.rollouts import OutOfBudget
from hrm_agent.training.select.roc import reward_of
from hrm_agent.training.tasks import Task
from hrm_agent.trajectory import Trajectory

__all__ = ["CutOff", "Evolution", "PromptCandidate", "Proposal", "evolve"]

Places = Sequence[tuple[int, Task]]
"""Tasks with their places."""
RunAll = Callable[[Places, Mapping[str, str]], list[Trajectory]]
"""Function that runs tasks with given prompts. Raises `OutOfBudget`."""
Reflect = Callable[[str], tuple[str, str]]
"""Function that asks the reflection model. Returns its answer, and the id of the trajectory."""

_QUESTION = """An agent has several prompts. This is the text of the prompt `{name}`:
```
<curr_param>
```

These are runs of the agent, as seen by the model that has this prompt, with feedback:

<side_info>

Write a better text for this prompt. Read the feedback closely. Name what the model did not know or did
wrong, and put every fact and rule that it needs for other tasks of this kind into the text. Keep what
works, and the form of reply that the text asks for.{fields} Do not write the answer to one of the tasks.

Give the new text between ``` and ```."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Text that the reflection model proposed."""

    prompt: str
    """Name of the prompt."""
    before: str
    """Text that was to be improved."""
    text: str
    """Proposed text."""
    reflection: str
    """Whole answer of the reflection model."""
    trajectory_id: str
    """Trajectory of the reflection."""
    refused: str = ""
    """Reason why the text was refused before it was run (empty: it was run)."""


@dataclass(slots=True)
class PromptCandidate:
    """Set of texts that was run on the validation tasks."""

    texts: dict[str, str]
    """Texts by name."""
    score: float
    """Mean reward on the validation tasks."""
    parent: int | None = None
    """Index of the candidate that it was made from (None for the first)."""
    proposal: Proposal | None = None
    """Change from the parent (None for the first)."""
    minibatch: tuple[float, float] | None = None
    """Mean reward on its minibatch before and after the change (None for the first)."""


@dataclass(frozen=True, slots=True)
class CutOff:
    """Proposed text that could not be judged, since the budget was used up."""

    proposal: Proposal
    """Change from the parent."""
    parent: int | None
    """Index of the candidate that it was made from."""
    before: float | None
    """Mean reward on its minibatch before the change."""
    after: float | None
    """Mean reward on its minibatch (None: the budget did not suffice for the minibatch)."""


@dataclass(slots=True)
class Evolution:
    """Result of a search."""

    candidates: list[PromptCandidate] = field(default_factory=list[PromptCandidate])
    """Candidates in the order in which they were found. The first has the texts of the start."""
    proposals: list[Proposal] = field(default_factory=list[Proposal])
    """All proposed texts, in order."""
    ended_by: str = ""
    """Reason why the search ended."""
    cut_off: CutOff | None = None
    """Text that was not judged, since the search ended before (None if there is none)."""

    @property
    def best(self) -> int:
        """Index of the candidate with the highest score, the first of equal ones."""
        scores = [each.score for each in self.candidates]
        return scores.index(max(scores))


def evolve(
    start: Mapping[str, str],
    train: Places,
    validation: Places,
    run_all: RunAll,
    reflect: Reflect,
    *,
    minibatch: int,
    seed: int,
) -> Evolution:
    """Search for better texts than those of `start`, until the budget is used up, or nothing new
    was tried for several passes over the training tasks.
    """
    search = _Search(run_all, reflect)
    # passes over the tasks without a new run, after which all minibatches are solved
    idle = 2 * len(start) * -(-len(train) // minibatch) + 1
    # gepa imports litellm only for models that are given by name
    logging.getLogger("gepa").setLevel(logging.CRITICAL)
    try:
        optimize(
            seed_candidate=dict(start),
            trainset=list(train),
            valset=list(validation),
            adapter=search,
            custom_candidate_proposer=search.propose,
            reflection_minibatch_size=minibatch,
            stop_callbacks=lambda gepa_state: search.is_idle(gepa_state, idle),
            callbacks=cast("Any", [search]),  # gepa calls the methods that there are
            logger=_Silent(),
            seed=seed,
        )
        search.found.ended_by = "nothing new was found to try"
    except OutOfBudget:
        search.found.ended_by = "the budget is used up"
        search.found.cut_off = search.in_progress()
    except _Failed as failed:
        raise failed.error from failed
    return search.found


class _Failed(BaseException):
    """Error of a run or a reflection. gepa catches every `Exception` of a reflection, and goes on."""

    def __init__(self, error: HrmError) -> None:
        super().__init__(str(error))
        self.error = error


class _Silent:
    def log(self, message: str) -> None:
        """Write nothing."""


class _Search:
    """Adapter and callback of gepa."""

    propose_new_texts: ProposalFn | None = None
    """Attribute by which gepa looks for a proposer in the adapter."""

    def __init__(self, run_all: RunAll, reflect: Reflect) -> None:
        self.found = Evolution()
        self._run_all = run_all
        self._reflect = reflect
        self._last_news = 0
        self._iteration = 0
        self._tried = set[tuple[Any, ...]]()
        self._minibatch: dict[int, list[float]] = {}
        self._made_in: dict[int, Proposal] = {}
        self._parent: int | None = None

    def evaluate(
        self, batch: list[tuple[int, Task]], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[Trajectory, Trajectory]:
        """Run a batch of tasks with the texts of a candidate."""
        for place, _ in batch:
            key = (place, *candidate.values())
            if key not in self._tried:
                self._tried.add(key)
                self._last_news = self._iteration
        try:
            runs = self._run_all(batch, candidate)
        except HrmError as error:
            raise _Failed(error) from error
        return EvaluationBatch(
            outputs=runs,
            scores=[*map(reward_of, runs)],
            trajectories=runs if capture_traces else None,
        )

    def make_reflective_dataset(
        self,
        candidate: dict[str, str],
        eval_batch: EvaluationBatch[Trajectory, Trajectory],
        components_to_update: list[str],
    ) -> dict[str, list[dict[str, Any]]]:
        """Feedback on each of some prompts."""
        texts = PromptTexts(candidate)
        runs = eval_batch.trajectories or []
        return {name: feedback_on(name, runs, texts) for name in components_to_update}

    def propose(
        self,
        candidate: dict[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: list[str],
    ) -> dict[str, str]:
        """New texts by name. Texts that cannot replace the old ones are left out, and not run."""
        made = dict[str, str]()
        for name in components_to_update:
            entries = reflective_dataset.get(name)
            if not entries:  # no run of the minibatch asked the prompt's role
                continue
            try:
                answer, trajectory_id = self._reflect(_question(name, candidate[name], entries))
            except HrmError as error:
                raise _Failed(error) from error
            text = InstructionProposalSignature.output_extractor(answer)["new_instruction"]
            proposal = Proposal(
                name,
                candidate[name],
                text,
                answer,
                trajectory_id,
                _why_refused({**candidate, name: text}, name, candidate[name]),
            )
            self.found.proposals.append(proposal)
            self._last_news = self._iteration
            if not proposal.refused:
                made[name] = text
                self._made_in[self._iteration] = proposal
        return made

    def is_idle(self, state: GEPAState[Any, Any], most: int) -> bool:
        """True if no iteration of the last `most` ones has tried something new."""
        return state.i - self._last_news > most

    def in_progress(self) -> CutOff | None:
        """Text of the current iteration, which was not run on the validation tasks (None: no text
        was proposed, or it was refused).
        """
        proposal = self._made_in.get(self._iteration)
        if proposal is None:
            return None
        before, after = [*self._minibatch.get(self._iteration, []), None, None][:2]
        return CutOff(proposal, self._parent, before, after)

    # callbacks of gepa

    def on_iteration_start(self, event: Mapping[str, Any]) -> None:
        self._iteration = int(event["iteration"])

    def on_candidate_selected(self, event: Mapping[str, Any]) -> None:
        self._parent = int(event["candidate_idx"])

    def on_evaluation_end(self, event: Mapping[str, Any]) -> None:
        """Note the mean reward of a minibatch, first of the parent, then of the new candidate."""
        scores: list[float] = event["scores"]
        means = self._minibatch.setdefault(int(event["iteration"]), [])
        means.append(sum(scores) / len(scores))

    def on_valset_evaluated(self, event: Mapping[str, Any]) -> None:
        """Note a candidate that was run on the validation tasks."""
        parents: Sequence[int] = event["parent_ids"]
        iteration = int(event["iteration"])
        means = self._minibatch.get(iteration, [])
        made = PromptCandidate(dict(event["candidate"]), float(event["average_score"]))
        if parents:
            made.parent = parents[0]
            made.proposal = self._made_in.get(iteration)
            made.minibatch = (means[0], means[1]) if len(means) == 2 else None
        self.found.candidates.append(made)


def _question(name: str, text: str, entries: Sequence[Mapping[str, Any]]) -> str:
    fields = ", ".join(f"{{{field}}}" for field in sorted(fields_of(text)))
    kept = f" The fields {fields} have to stay in it, and no other braces." if fields else ""
    template = _QUESTION.replace("{name}", name).replace("{fields}", kept)
    rendered = InstructionProposalSignature.prompt_renderer(
        {
            "current_instruction_doc": text,
            "dataset_with_feedback": list(entries),
            "prompt_template": template,
        }
    )
    assert isinstance(rendered, str), "there are no images in the feedback"
    return rendered


def _why_refused(texts: Mapping[str, str], name: str, before: str) -> str:
    """Reason why a new text cannot replace the old one (empty if it can)."""
    if not texts[name].strip():
        return "the reflection has no text"
    if texts[name] == before:
        return "the text is unchanged"
    if find_surrogate(texts[name]) is not None:
        return "the text is not Unicode"
    try:
        refuse_other_fields(name, before, texts[name])
        PromptTexts(texts)
    except ConfigError as error:
        return error.message
    return ""
