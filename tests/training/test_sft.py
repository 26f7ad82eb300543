from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, AutoTokenizer

from hrm_agent.errors import ModelError, RunError, TaskError
from hrm_agent.models.engine import TemplateMismatch
from hrm_agent.models.loading.policy_loader import load_codec, model_folder
from hrm_agent.training.checkpoints import Checkpoints, save_policy
from hrm_agent.training.config.commands import SftConfig
from hrm_agent.training.config.parts import AdapterPart
from hrm_agent.training.metrics import read_metrics
from hrm_agent.training.sft import Conversation, read_chats, tokenize, train_sft
from hrm_agent.training.small_policy.architecture import new_model
from hrm_agent.training.small_policy.cold_start import answer_text
from hrm_agent.training.update.trained_policy import TrainedPolicy

pytestmark = pytest.mark.whole

SHORT = SftConfig(steps=8, batch_size=16, learning_rate=3e-3, warmup_steps=2, cooldown=0.5)


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def test_a_few_steps_lower_the_loss(tokenizer, codec, lessons):
    rows = train_sft(new_model(tokenizer, 0), codec, lessons, SHORT)
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert rows[-1]["loss"] < rows[0]["loss"] - 1
    shares = [1 / 2, 1, 1, 1, 4 / 5, 3 / 5, 2 / 5, 1 / 5]
    assert [row["learning_rate"] for row in rows] == pytest.approx(
        [3e-3 * share for share in shares]
    )


def test_the_seed_decides_the_weights_to_the_bit(tokenizer, codec, lessons):
    def trained(seed):
        model = new_model(tokenizer, seed)
        train_sft(model, codec, lessons, SHORT.model_copy(update={"steps": 3, "seed": seed}))
        return weights(model)

    first = trained(0)
    assert same(first, trained(0))
    assert not same(first, trained(1))


def test_new_weights_leave_the_global_random_state_alone(tokenizer):
    before = torch.get_rng_state()
    first, second = new_model(tokenizer, 4), new_model(tokenizer, 4)
    assert same(weights(first), weights(second))
    assert torch.equal(torch.get_rng_state(), before)
    assert first.num_parameters() < 1_000_000


def test_micro_batches_make_the_step_of_one_batch(tokenizer, codec, lessons):
    def first_step(micro_batch_tokens):
        config = SHORT.model_copy(update={"steps": 1, "micro_batch_tokens": micro_batch_tokens})
        return train_sft(new_model(tokenizer, 0), codec, lessons, config)[0]

    whole, split = first_step(100_000), first_step(300)
    assert split["loss"] == pytest.approx(whole["loss"], rel=1e-5)
    assert split["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-4)
    assert split["tokens"] == whole["tokens"]


def test_packed_conversations_see_themselves_alone(tokenizer, codec, lessons):
    def trained(forward, budget):
        model = new_model(tokenizer, 0)
        config = SHORT.model_copy(
            update={"steps": 2, "forward": forward, "micro_batch_tokens": budget}
        )
        return train_sft(model, codec, lessons, config)

    rows = trained("padded", 100_000)
    for budget in (100_000, 700):
        for row, other in zip(rows, trained("packed", budget), strict=True):
            assert other["loss"] == pytest.approx(row["loss"], rel=1e-5)
            assert other["grad_norm"] == pytest.approx(row["grad_norm"], rel=1e-4)
            assert other["accuracy"] == row["accuracy"] and other["tokens"] == row["tokens"]


def test_a_packed_conversation_without_a_trained_token_is_passed_over(tokenizer, codec, lessons):
    context = AIMessage("nothing to learn", additional_kwargs={"weight": 0})
    silent = Conversation((HumanMessage("hello"), context))
    config = SHORT.model_copy(update={"steps": 1, "forward": "packed", "batch_size": 4})
    with_it = train_sft(new_model(tokenizer, 0), codec, [silent, *lessons], config)
    without = train_sft(new_model(tokenizer, 0), codec, lessons, config)
    assert with_it[0]["loss"] == without[0]["loss"]
    with pytest.raises(TaskError, match="answer to learn from"):
        train_sft(new_model(tokenizer, 0), codec, [silent], config)


def test_only_the_policys_own_tokens_are_learnt(tokenizer, codec):
    """A conversation whose answer is known by heart has no loss left,
    however strange its prompt.
    """
    model = new_model(tokenizer, 0)
    lesson = Conversation((HumanMessage("zq" * 8), AIMessage("ok")))
    rows = train_sft(
        model, codec, [lesson], SHORT.model_copy(update={"steps": 40, "batch_size": 1})
    )
    assert rows[-1]["loss"] < 0.05
    (example,) = tokenize(lesson, codec)
    ids = torch.tensor([example.token_ids], device=model.device)
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(
            model(input_ids=ids).logits[0, :-1], ids[0, 1:], reduction="none"
        )
    own = torch.tensor(example.mask[1:], device=model.device)
    assert loss[own].mean() < 0.05 < 1 < loss[~own].mean()


def test_rows_are_written_as_they_come(tokenizer, codec, lessons, tmp_path):
    path, heard = tmp_path / "metrics.jsonl", []
    config = SHORT.model_copy(update={"steps": 2})
    rows = train_sft(
        new_model(tokenizer, 0),
        codec,
        lessons[:20],
        config,
        metrics_path=path,
        progress=heard.append,
    )
    assert [json.loads(line) for line in path.read_text().splitlines()] == rows == heard


def test_a_saved_policy_loads_as_it_was(tokenizer, codec, tmp_path, lessons):
    model = new_model(tokenizer, 1)
    save_policy(model, tokenizer, tmp_path, "# A card\n")
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert same(weights(model), weights(again))
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template == tokenizer.chat_template
    assert (tmp_path / "model.safetensors").exists()
    assert (tmp_path / "README.md").read_text() == "# A card\n"
    assert again.generation_config.eos_token_id == codec.end_of_turn


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_what_was_trained_is_spoken_to_as_in_training_from_any_folder(
    tmp_path, monkeypatch, lora_rank
):
    monkeypatch.chdir(tmp_path)
    shipped = Path(model_folder("builtin:cold-start"), "chat_template.jinja").read_text()
    Path("my.jinja").write_text("<|im_start|>system\nMine.<|im_end|>\n" + shipped)
    asked = "builtin:cold-start?template=my.jinja&thoughts=keep&tools=prompted"
    policy = TrainedPolicy.load(
        asked, AdapterPart(lora_rank=lora_rank), dtype="float32", device="cpu", seed=0
    )
    saved = tmp_path / "saved"
    policy.save(saved, "")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    messages = [SystemMessage("Be brief."), HumanMessage("What is 6 * 7?")]
    tool = {"type": "function", "function": {"name": "python", "parameters": {"type": "object"}}}
    written = policy.codec.encode(messages, [tool])
    codec = load_codec(str(saved))
    assert codec.encode(messages, [tool]) == written and "Mine." in codec.decode(written)
    assert codec.keep_thoughts and codec.speech.tools.startswith("prompted")
    other = load_codec(f"{saved}?tools=hermes")
    assert other.speech.tools != codec.speech.tools and other.keep_thoughts, (
        "an option that is given comes first"
    )
    damaged = saved / ("base.json" if lora_rank else "codec.json")
    damaged.write_text("[")
    with pytest.raises(ModelError):
        load_codec(str(saved))


def test_unknown_keys_are_refused():
    with pytest.raises(ValidationError, match="learning_rat"):
        SftConfig(learning_rat=1e-3)


def test_where_the_template_rewrites_earlier_turns_a_new_example_begins(codec):
    class Forgetful:
        """Codec whose template drops earlier turns."""

        encode = codec.encode
        encode_turn = codec.encode_turn

        def extend(self, *_args, **_options):
            raise TemplateMismatch

    lesson = Conversation((HumanMessage("a"), AIMessage("b"), HumanMessage("c"), AIMessage("d")))
    first, second = tokenize(lesson, Forgetful())
    (whole,) = tokenize(lesson, codec)
    assert second.token_ids == whole.token_ids
    assert second.token_ids[: len(first.token_ids)] == first.token_ids
    assert sum(second.mask) == len(codec.encode_answer("d"))


CHAT = {
    "messages": [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Q"},
        {
            "role": "assistant",
            "content": "<reason>R</reason>",
            "tool_calls": [
                {
                    "id": "1",
                    "type": "function",
                    "function": {"name": "python", "arguments": '{"code": "1+1"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "2"},
        {"role": "assistant", "content": "<answer>\\boxed{2}</answer>"},
    ]
}


def test_chats_are_read_from_json_lines(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text(
        json.dumps(CHAT) + "\n\n" + json.dumps({**CHAT, "tools": [{"type": "function"}]}) + "\n"
    )
    first, second = read_chats(path)
    assert [message.type for message in first.messages] == ["system", "human", "ai", "tool", "ai"]
    assert (
        answer_text(first.messages[2])
        == '<reason>R</reason><tool_call>{"name": "python", "arguments": {"code":'
        ' "1+1"}}</tool_call>'
    )
    assert first.tools == () and second.tools == ({"type": "function"},)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "{}",
        '{"messages": 3}',
        '{"messages": [{"role": "king", "content": ""}]}',
        '{"messages": [3]}',
    ],
)
def test_a_bad_line_is_named(tmp_path, line):
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps(CHAT) + "\n" + line + "\n")
    with pytest.raises(TaskError, match="line 2") as raised:
        read_chats(path)
    assert "\n" not in raised.value.message


@pytest.mark.parametrize(
    "messages", [3, None, "text", {}, [3], [None], ["text"], [["user"]], [["user", "text"]]]
)
def test_messages_are_a_list_of_objects(tmp_path, messages):
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": messages}))
    with pytest.raises(
        TaskError, match=r"line 1 is not a conversation: .*`messages` has to be a list of objects"
    ):
        read_chats(path)


@pytest.mark.parametrize("tools", ["abc", {"x": 1}, [1]])
def test_tools_are_a_list_of_objects(tmp_path, tools):
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps(CHAT | {"tools": tools}))
    with pytest.raises(TaskError, match="`tools` has to be a list of objects"):
        read_chats(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(TaskError, match="is not UTF-8"):
        read_chats(path)


def test_a_chat_without_an_answer_is_refused(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "Q"}]}')
    with pytest.raises(TaskError, match="no assistant message"):
        read_chats(path)


def test_nothing_to_learn_is_an_error(tokenizer, codec):
    with pytest.raises(TaskError, match="answer to learn from"):
        train_sft(new_model(tokenizer, 0), codec, [], SHORT)


class Killed(BaseException):
    """Stand-in for a kill, which nothing catches."""


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_that_was_killed_and_damaged_comes_to_the_same_weights(
    tokenizer, codec, lessons, tmp_path, optimizer
):
    config = SHORT.model_copy(
        update={
            "steps": 5,
            "batch_size": 4,
            "cooldown": 0.0,
            "average": 0.9,
            "optimizer": optimizer,
            "warmup_steps": 1,
        }
    )

    def train(folder, steps=5, killed_after=0, checkpoints=True):
        model = new_model(tokenizer, 0)

        def progress(row):
            if row["step"] == killed_after:
                raise Killed

        kept = Checkpoints(tmp_path / folder, every=2) if checkpoints else None
        path = tmp_path / folder / "metrics.jsonl"
        config_now = config.model_copy(update={"steps": steps})
        train_sft(
            model,
            codec,
            lessons[:40],
            config_now,
            metrics_path=path,
            checkpoints=kept,
            progress=progress,
        )
        return weights(model), [(row["step"], row["loss"]) for row in read_metrics(path)]

    whole = train("whole", checkpoints=False)
    with pytest.raises(Killed):
        train("killed", killed_after=3)  # the newest checkpoint is of step 2
    again = train("killed")
    assert same(again[0], whole[0]) and again[1] == whole[1]
    assert [step for step, _ in again[1]] == [1, 2, 3, 4, 5]
    newest = tmp_path / "killed" / "checkpoints" / "step-000005" / "optimizers.pt"
    newest.write_bytes(newest.read_bytes()[:-9])
    damaged = train("killed")
    assert same(damaged[0], whole[0]) and damaged[1] == whole[1]
    assert same(train("killed")[0], whole[0])
    train("prolonged", steps=3)
    prolonged = train("prolonged")
    assert same(prolonged[0], whole[0]) and prolonged[1] == whole[1]
    with pytest.raises(RunError, match="has taken 5 steps: it cannot end after 3"):
        train("prolonged", steps=3)


def test_a_run_is_not_gone_on_with_on_other_conversations(tokenizer, codec, lessons, tmp_path):
    config = SHORT.model_copy(update={"steps": 1, "batch_size": 2})
    train_sft(
        new_model(tokenizer, 0), codec, lessons[:4], config, checkpoints=Checkpoints(tmp_path)
    )
    with pytest.raises(RunError, match="begun on other conversations"):
        train_sft(
            new_model(tokenizer, 0), codec, lessons[1:5], config, checkpoints=Checkpoints(tmp_path)
        )


def test_a_warm_up_longer_than_the_run_does_not_keep_it_from_learning(tokenizer, codec, lessons):
    config = SHORT.model_copy(
        update={"steps": 3, "warmup_steps": 30, "batch_size": 4, "cooldown": 0.0}
    )
    rows = train_sft(new_model(tokenizer, 0), codec, lessons[:20], config)
    assert [row["learning_rate"] for row in rows] == pytest.approx([1e-3, 2e-3, 3e-3])
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.1
