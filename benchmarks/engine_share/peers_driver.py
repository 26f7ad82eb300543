"""Driver of TRL and smolagents for the same conversations, run by the interpreter of a virtual
environment that has them.

It reads from stdin the folder of a network with the shipped tokenizer, and conversations: system
text, problem, and the answers as text. A logits processor makes every call of `generate` give the
recorded answers, in the peer's run and in the bare run. `bare` is `model.generate` alone, with the
same tensors that the peer passed. Both runs use the network of `transformers` in float32. Standard
library, torch, transformers and the peers only.

* TRL: `GRPOTrainer._generate_and_score_completions`: rendering, `generate` on the whole batch turn
  by turn, TRL's loop over tools, parsing, rewards. The tool runs `exec` in the process, since TRL
  has no sandbox; it keeps no record.
* smolagents: a `ToolCallingAgent` with a `TransformersModel`, one conversation after another, as it
  has no batches; the system prompt is the recorded one (its own has over 2,000 tokens of this
  tokenizer), the tool its `LocalPythonExecutor`. A call of smolagents' `final_answer` with the
  recorded answer ends a conversation.
"""

# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor, LogitsProcessorList

Jobs = list[Callable[[], Any]]
"""Jobs that are timed one by one, each right before the bare generation of the same calls. The
first job also runs once untimed, as a warm-up.
"""
ANSWER, OPENING = "\\boxed{", "<|im_start|>assistant\n"
FAR = 1e4


class RecordedTokens(LogitsProcessor):
    """Logits processor that raises the recorded token above all others. The prompt of a row
    identifies its conversation.
    """

    def __init__(self, tokenizer: Any, answers: dict[str, list[list[int]]]) -> None:
        self.tokenizer, self.answers = tokenizer, answers
        self.tokens = 0
        self.begin()

    def begin(self) -> None:
        self.start, self.rows = -1, []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self.start < 0:
            self.start = input_ids.shape[1]
            self.rows = [self._answer(text) for text in self.tokenizer.batch_decode(input_ids)]
            self.tokens += sum(map(len, self.rows))
        at, end = input_ids.shape[1] - self.start, self.tokenizer.eos_token_id
        recorded = torch.tensor([row[at] if at < len(row) else end for row in self.rows])
        return scores.scatter_add(1, recorded[:, None], torch.full((len(self.rows), 1), FAR))

    def _answer(self, prompt: str) -> list[int]:
        said = next(answers for problem, answers in self.answers.items() if problem in prompt)
        turn = prompt.count(OPENING) - 1
        return said[turn] if turn < len(said) else [self.tokenizer.eos_token_id]


class Recorder:
    """Wrapper of `generate` with the recorded answers, which keeps its arguments."""

    def __init__(self, model: Any, forced: RecordedTokens) -> None:
        self.model, self.forced, self.given = model, forced, []
        self._generate = model.generate
        model.generate = self.generate

    def generate(self, *given: Any, **named: Any) -> Any:
        self.given.append((given, named))
        return self.run(given, named)

    def run(self, given: Any, named: Any) -> Any:
        self.forced.begin()
        return self._generate(*given, **named, logits_processor=LogitsProcessorList([self.forced]))

    def bare(self) -> None:
        """Repeat all calls of `generate`. Early stopping belongs to the peer and is left out."""
        with torch.no_grad():
            for given, named in self.given:
                self.run(
                    given,
                    {name: value for name, value in named.items() if name != "stopping_criteria"},
                )


def run_python(code: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        names: dict[str, Any] = {}
        *lines, last = code.splitlines()
        try:
            exec("\n".join(lines), names)
            value = eval(last, names)
        except SyntaxError:
            value = exec(code, names)
    return out.getvalue() + ("" if value is None else repr(value))


def trl(given: dict[str, Any], forced: RecordedTokens, tokenizer: Any) -> tuple[Recorder, Jobs]:
    from datasets import Dataset
    from trl.chat_template_utils import qwen3_template
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    def python(code: str) -> str:
        """Run Python code.

        Args:
            code: Python source.

        """
        return run_python(code)

    def reward(completions: list[Any], expected: list[str], **_: Any) -> list[float]:
        said = [completion[-1].get("content") or "" for completion in completions]
        return [float(right in text) for text, right in zip(said, expected, strict=True)]

    tokenizer.response_template = qwen3_template
    rows = [
        {
            "prompt": [
                {"role": "system", "content": one["system"]},
                {"role": "user", "content": one["problem"]},
            ],
            "expected": one["texts"][-1].partition(ANSWER)[2],
        }
        for one in given["conversations"]
    ]
    config = GRPOConfig(
        output_dir=given["folder"],
        per_device_train_batch_size=len(rows),
        num_generations=2,
        max_completion_length=600,
        temperature=1.0,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        report_to="none",
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(given["folder"], dtype=torch.float32),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        tools=[python],
    )
    return Recorder(trainer.model, forced), [lambda: trainer._generate_and_score_completions(rows)]


def smolagents(
    given: dict[str, Any], forced: RecordedTokens, tokenizer: Any
) -> tuple[Recorder, Jobs]:
    from smolagents import ToolCallingAgent, TransformersModel, tool
    from smolagents.local_python_executor import LocalPythonExecutor
    from smolagents.monitoring import LogLevel

    executor = LocalPythonExecutor(["math"])

    @tool
    def python(code: str) -> str:
        """Run Python code.

        Args:
            code: Python source.

        """
        return str(executor(code).output)

    for problem, one in zip(forced.answers, given["conversations"], strict=True):
        said = one["texts"][-1].partition(ANSWER)[2].partition("}")[0]
        call = json.dumps({"name": "final_answer", "arguments": {"answer": said}})
        forced.answers[problem][-1] = [*tokenizer.encode(call), tokenizer.eos_token_id]
    model = TransformersModel(
        given["folder"], device_map="cpu", torch_dtype="float32", max_new_tokens=256
    )

    def converse(one: dict[str, Any]) -> None:
        executor.state.clear()
        executor.send_tools({})
        agent = ToolCallingAgent([python], model, verbosity_level=LogLevel.OFF)
        agent.prompt_templates["system_prompt"] = one["system"]
        agent.run(one["problem"])

    return Recorder(model.model, forced), [partial(converse, one) for one in given["conversations"]]


def timed(work: Callable[[], Any]) -> Counter[str]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Counter({"CPU": time.process_time() - cpu, "wall": time.perf_counter() - wall})


def main() -> None:
    given = json.load(sys.stdin)
    tokenizer = AutoTokenizer.from_pretrained(given["folder"])
    answers = {
        one["problem"]: [[*tokenizer.encode(text), tokenizer.eos_token_id] for text in one["texts"]]
        for one in given["conversations"]
    }
    forced = RecordedTokens(tokenizer, answers)
    with contextlib.redirect_stdout(sys.stderr):
        recorder, jobs = {"TRL": trl, "smolagents": smolagents}[given["peer"]](
            given, forced, tokenizer
        )
        jobs[0]()
        rows: dict[str, list[Counter[str]]] = {"whole": [], "bare": []}
        for _ in range(given["repeats"]):
            whole, bare = Counter[str](), Counter[str]()
            calls = forced.tokens = 0
            for job in jobs:
                recorder.given.clear()
                whole += timed(job)
                calls += len(recorder.given)
                bare += timed(recorder.bare)
            rows["whole"].append(whole)
            rows["bare"].append(bare)
    print(
        json.dumps(
            {
                "by": given["peer"],
                "calls of generate": calls,
                "sampled tokens": forced.tokens // 2,
                **rows,
            }
        )
    )


if __name__ == "__main__":
    main()
