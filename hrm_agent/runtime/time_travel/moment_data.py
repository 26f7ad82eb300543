"""Moment as JSON, as `hrm-agent history --json` prints it and as pages show it."""

from __future__ import annotations

from typing import Any

from hrm_agent.runtime.time_travel.history import Moment, Step

__all__ = ["moment_data"]


def moment_data(moment: Moment) -> dict[str, Any]:
    """Moment as JSON, with the subgraphs of its step, without the state."""
    return {
        "index": moment.index,
        "checkpoint": moment.checkpoint_id,
        "parent": moment.parent,
        "namespace": moment.namespace,
        "step": moment.step,
        "source": moment.source,
        "created_at": moment.created_at,
        **_step_data(moment.ran),
        "next": moment.next,
        "names": moment.names,
        "interrupts": [{"id": q.id, "value": q.value, "node": q.node} for q in moment.questions],
        "under_way": _step_data(moment.under_way) if moment.under_way else None,
    }


def _step_data(step: Step) -> dict[str, Any]:
    used = step.used
    return {
        "nodes": step.nodes,
        "roles": step.roles,
        "model_calls": len(step.calls),
        "tool_calls": len(step.tool_calls),
        "sampled_tokens": step.sampled_tokens,
        "models": step.models,
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "seconds": step.seconds,
        "cost": used.cost,
        "inside": [
            {
                "node": run.node,
                "task": run.task_id,
                "moments": [moment_data(moment) for moment in run.moments],
            }
            for run in step.inside
        ],
    }
