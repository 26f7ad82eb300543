"""Environments of the trial, and the answers that a scripted policy gives in them."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from langchain_core.messages import BaseMessage, ToolMessage

Answers = Callable[[random.Random, Sequence[BaseMessage]], str]

TASKSET = """
import verifiers.v1 as vf

from sums_env.servers.tool import SumsToolset, SumsState


class SumsData(vf.TaskData):
    answer: int


class SumsTaskConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class SumsTask(vf.Task[SumsData, SumsState, SumsTaskConfig]):
    @classmethod
    def toolsets(cls, config):
        return [SumsToolset(config.tools)]

    @vf.reward(weight=0.5)
    async def right(self, trace: vf.Trace) -> float:
        return float(str(self.data.answer) in (trace.last_reply or ""))

    @vf.reward(weight=0.5)
    async def used_the_tool(self, trace: vf.Trace) -> float:
        return float(trace.state.total == self.data.answer)


class SumsConfig(vf.TasksetConfig):
    num_tasks: int = 5
    task: SumsTaskConfig = SumsTaskConfig()


class SumsTaskset(vf.Taskset[SumsTask, SumsConfig]):
    def load(self):
        return [
            SumsTask(SumsData(prompt=f"What is {i} + {2 * i}?", answer=3 * i), self.config.task)
            for i in range(1, self.config.num_tasks + 1)
        ]
"""
TOOL = '''
import verifiers.v1 as vf


class SumsState(vf.State):
    total: int = 0


class SumsToolset(vf.Toolset[vf.ToolsetConfig, SumsState]):
    TOOL_PREFIX = "sums"

    @vf.tool
    def add(self, number: int) -> str:
        """Add a number to the running total, and return the total."""
        self.state.total += number
        return str(self.state.total)


if __name__ == "__main__":
    SumsToolset.run()
'''
"""Taskset in the layout of verifiers' `vf-init --add-tool`, with a tool whose state is rewarded."""
CASES = (("Drug A lowers the pressure by 10 mmHg in adults.", "By how much does drug A lower it?"),)
CHANNELS = "<|channel|>analysis<|message|>{}<|end|><|channel|>proof<|message|>{}<|end|><|channel|>final<|message|>{}<|end|>"  # noqa: E501


@dataclass(frozen=True, slots=True)
class World:
    """Environment of the trial."""

    name: str
    """Name in the report."""
    origin: str
    """Package of the registry that it is from."""
    spec: str
    """Text of `--tasks`."""
    answers: Answers
    """Answers of the policy, from random numbers and the conversation."""
    alike: bool = False
    """True if all its episodes begin alike. Their answers then differ by the seeds of the calls."""


def sums_taskset(folder: Path) -> Path:
    """Write the taskset `sums-env`; return the folder to import it from."""
    package = folder / "sums_env"
    (package / "servers").mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(
        'from sums_env.taskset import SumsTaskset\n\n__all__ = ["SumsTaskset"]\n'
    )
    (package / "taskset.py").write_text(TASKSET)
    (package / "servers" / "__init__.py").write_text("")
    (package / "servers" / "tool.py").write_text(TOOL)
    return folder


def medical_cases(file: Path) -> Path:
    """Write the data set of `openenv-dipg-safety`, whose own is on a hub."""
    rows = [
        {
            "messages": [
                {
                    "role": "user",
                    "content": f"<context>\n{context}\n</context>\n<question>\n{question}\n</question>",
                },
                {"role": "assistant", "content": "<|channel|>final<|message|>By 10 mmHg.<|end|>"},
            ]
        }
        for context, question in CASES
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def word_list(folder: Path) -> Path:
    """Write a word list in the place of NLTK's, which is on a server of its own."""
    words = folder / "corpora" / "words"
    words.mkdir(parents=True, exist_ok=True)
    listed = "apple bread chair dance earth flame grape house image joker knife lemon mouse night"
    for name in ("en", "en-basic"):
        (words / name).write_text("\n".join(listed.split()) + "\n")
    (words / "README").write_text("A list for a trial.\n")
    return folder


def letters(draw: random.Random, messages: Sequence[BaseMessage]) -> str:
    """Guess of a new letter, as Hangman takes it."""
    said = {message.text for message in messages}
    return draw.choice([f"[{one}]" for one in string.ascii_lowercase if f"[{one}]" not in said])


def texts(draw: random.Random, messages: Sequence[BaseMessage]) -> str:
    """Text of random length."""
    return "".join(draw.choices(string.ascii_lowercase + " ", k=draw.randint(1, 12))) + "."


def verdicts(draw: random.Random, messages: Sequence[BaseMessage]) -> str:
    """Medical answer: grounded, ungrounded, or without the channels."""
    proof = draw.choice([CASES[0][0], "It is well known."])
    final = draw.choice(["By 10 mmHg.", "I do not know."])
    return draw.choice([CHANNELS.format("The context says it.", proof, final), final])


def sums(draw: random.Random, messages: Sequence[BaseMessage]) -> str:
    """Two calls of the tool, then an answer."""
    if any(isinstance(message, ToolMessage) for message in messages):
        return f"It is {draw.choice(['3', '6', '9', '3, 6, 9, 12 or 15'])}."
    asked = [{"name": "sums_add", "arguments": {"number": draw.choice([1, 2, 3, 6])}}] * 2
    return "".join(f"<tool_call>{json.dumps(each)}</tool_call>" for each in asked)


def guesses(draw: random.Random, messages: Sequence[BaseMessage]) -> str:
    """Guess of a number, by a tool."""
    asked = json.dumps({"name": "step", "arguments": {"number": draw.randint(1, 100)}})
    return f"<tool_call>{asked}</tool_call>"
