"""Program that wrote `inspect.eval`, with inspect_ai 0.3.285: a mock model, a tool, and two
scorers, of which one leaves a run unscored.

python tests/support/trajectory/data/write_inspect_log.py FOLDER
"""

from __future__ import annotations

import sys
from typing import Any

from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, match, mean, scorer
from inspect_ai.solver import generate, system_message, use_tools
from inspect_ai.tool import tool

MODEL = "mockllm/model"


@tool
def add() -> Any:
    async def execute(x: int, y: int) -> int:
        """Add two numbers.

        Args:
            x: One.
            y: Other.
        """
        return x + y

    return execute


@scorer(metrics=[mean()])
def length() -> Any:
    async def score(state: Any, target: Any) -> Score:
        short = len(state.output.completion) < 5
        return Score(value=0.5, explanation="short") if short else Score.unscored()

    return score


def answers() -> list[ModelOutput]:
    given = [
        ModelOutput.for_tool_call(MODEL, "add", {"x": 17, "y": 25}, content="Let me add."),
        ModelOutput.from_content(MODEL, "It is 40."),
        ModelOutput.from_content(MODEL, "42"),
    ]
    for output in given:
        output.usage = ModelUsage(
            input_tokens=20,
            output_tokens=5,
            total_tokens=29,
            input_tokens_cache_read=4,
            total_cost=0.001,
        )
    return given


if __name__ == "__main__":
    sums = Task(
        name="sums",
        dataset=[Sample(input="What is 17 + 25?", target="42", id="sum", metadata={"level": 1})],
        solver=[system_message("You add."), use_tools(add()), generate()],
        scorer=[match(), length()],
    )
    model = get_model(MODEL, custom_outputs=answers())
    evaluate(
        sums,
        model=model,
        epochs=2,
        max_samples=1,
        log_format="eval",
        log_dir=sys.argv[1],
        display="none",
    )
