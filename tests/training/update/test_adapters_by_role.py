"""An adapter for each role: what the engine samples, what each one learns from, what is kept, what
is refused.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import nn

from hrm_agent.errors import ConfigError, ModelError
from hrm_agent.models.adapter_folder import BASE_FILE
from hrm_agent.models.engine import Completion, GenerationRequest
from hrm_agent.models.loading.load_weights import load_for_answers, load_pretrained
from hrm_agent.models.loading.policy_loader import load_policy, model_folder
from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.models.local.role_adapters import WEIGHTS_FILE, route_of
from hrm_agent.models.model_string import LoadOptions
from hrm_agent.training.config.commands import FineTuneConfig, GrpoConfig
from hrm_agent.training.grpo import train
from hrm_agent.training.metrics import read_metrics
from hrm_agent.training.update.batch import MicroBatch, linearise, micro_batches
from hrm_agent.training.update.learner import Learner
from hrm_agent.training.update.logprobs import token_logprobs
from hrm_agent.trajectory import Sampling
from tests.support.training.builders import place, sampled_call, trajectory

MODEL = "builtin:roles-cold-start"
IN_4_BITS = f"{MODEL}?load=nf4"
ROLES = ("plan", "solve")
ANYONE = "critique"
"""Role without its own adapter."""
PROMPT = tuple(range(3, 43))
FILES = {"adapter_config.json", "adapter_model.safetensors", "base.json"}


def learner(**keys: Any) -> Learner:
    asked = {
        "policy": MODEL,
        "graph": "reasoning",
        "lora_rank": 4,
        "lora_roles": ROLES,
        "seed": 3,
        **keys,
    }
    return Learner(GrpoConfig.of(**asked), Accelerator())


@pytest.fixture(scope="module", params=[MODEL, IN_4_BITS])
def learnt(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adapters that have been trained, each differently."""
    ours, folder = learner(policy=request.param), tmp_path_factory.mktemp("adapters") / "model"
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in ours.model.named_parameters():
            if ".lora_B." in name:
                weight.normal_(0.0, 0.08, generator=generator)
    ours.save(folder)
    return folder


def asked(role: str, prompt: tuple[int, ...], seed: int = 4, tokens: int = 24) -> GenerationRequest:
    return GenerationRequest(
        prompt, Sampling(temperature=1.0, max_tokens=tokens, seed=seed), role=role
    )


def answered(engine: Any, requests: list[GenerationRequest]) -> list[Completion]:
    return [future.result(60) for future in [engine.submit(each) for each in requests]]


def batch_of(done: Completion, prompt: tuple[int, ...], role: str) -> MicroBatch:
    ids, count = [*prompt, *done.token_ids], len(done.token_ids)
    ones, zeros = torch.ones(count), torch.zeros(count, dtype=torch.long)
    return MicroBatch(
        token_ids_N=torch.tensor(ids),
        positions_N=torch.arange(len(ids)),
        parents_N=torch.arange(len(ids)) - 1,
        loss_indices_K=torch.arange(len(prompt), len(ids)),
        weights_K=ones,
        old_logprobs_K=torch.tensor(done.logprobs),
        temperatures_K=ones,
        old_temperatures_K=ones,
        versions_K=zeros,
        sequences_K=zeros,
        lengths_K=count * ones,
        role=role,
    )


def sampled(ours: Learner, role: str) -> MicroBatch:
    prompt = PROMPT
    (done,) = answered(ours.engine, [asked(role, prompt)])
    return batch_of(done, prompt, role if role in ROLES else "")


def weights_of(model: nn.Module, number: str) -> dict[str, torch.Tensor]:
    return {
        n: w.detach().clone()
        for n, w in model.named_parameters()
        if f".{number}." in n and ".lora_" in n
    }


def test_a_mixed_batch_samples_as_each_role_alone_with_its_adapter_merged_into_the_weights(
    learnt: Path,
) -> None:
    together: Any = load_policy(str(learnt))
    turns = (*ROLES, ANYONE, *ROLES)
    prompts = [PROMPT, tuple(range(50, 90))]
    requests = [asked(role, prompt, seed) for seed, role in enumerate(turns) for prompt in prompts]
    requests = [
        replace(each, sampling=each.sampling.model_copy(update={"seed": 7})) for each in requests
    ]
    first = answered(together, requests)
    assert len({(done.token_ids) for done in first}) == 2 * len({*turns}), "the adapters do differ"
    again = [
        asked(role, (*each.prompt_ids, *done.token_ids, 5, 6), 8)
        for each, done in zip(requests, first, strict=True)
        for role in (*ROLES, ANYONE)
    ]
    beside: list[int] = []
    route = together._route
    said = route.by_token
    route.by_token = lambda adapters_T, device: (
        beside.append(len({*adapters_T.tolist()})),
        said(adapters_T, device),
    )
    requests, found = requests + again, first + answered(together, again)
    assert max(beside) == 3, "tokens of all of them stood in one pass"
    in_4_bits = together.capabilities().quantized is not None
    for role in (*ROLES, ANYONE):
        own = learnt / role if role in ROLES else learnt
        if in_4_bits:
            if role not in ROLES:
                continue  # in that folder it is the one of several
            alone: Any = load_policy(str(own))
        else:
            model, tokenizer = load_pretrained(model_folder(MODEL), dtype="float32")
            merged = peft.PeftModel.from_pretrained(model, str(own)).merge_and_unload()
            alone = TransformersEngine(merged.eval(), tokenizer, name="merged")
        of_role = [
            (each, done) for each, done in zip(requests, found, strict=True) if each.role == role
        ]
        ties = 0
        for (_, done), expected in zip(
            of_role, answered(alone, [each for each, _ in of_role]), strict=True
        ):
            pairs = zip(done.token_ids, expected.token_ids, strict=False)
            same = next(
                (i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), len(done.token_ids)
            )
            assert done.logprobs[:same] == pytest.approx(expected.logprobs[:same], abs=1e-4)
            ties += same < len(done.token_ids)
        assert ties <= 1, "the number drawn may fall between two tokens whose border rounding moves"
        alone.close()
    together.close()


def test_a_role_never_sees_what_another_ones_adapter_has_cached(learnt: Path) -> None:
    engine: Any = load_policy(f"{learnt}?device=cpu")
    prompt = PROMPT
    answered(engine, [asked("plan", prompt)])
    fed = engine.fed_tokens
    answered(engine, [asked("solve", prompt, tokens=1)])
    assert engine.fed_tokens - fed == len(prompt)
    fed = engine.fed_tokens
    answered(engine, [asked("solve", prompt, tokens=1)])
    assert engine.fed_tokens - fed == 1
    fed = engine.fed_tokens
    answered(engine, [asked(ANYONE, prompt, tokens=1), asked("synthesize", prompt, tokens=1)])
    assert engine.fed_tokens - fed == len(prompt) + 1, "those without one of their own share"
    engine.close()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("role", [*ROLES, ANYONE])
def test_a_role_has_the_loss_and_gradients_of_a_model_with_its_adapter_alone(
    learnt: Path, role: str, again: bool
) -> None:
    ours = learner(policy=str(learnt), gradient_checkpointing=again)
    batch = sampled(ours, role)
    number = f"role_{ROLES.index(role) + 1}" if role in ROLES else "default"
    found: list[tuple[torch.Tensor, dict[str, torch.Tensor]]] = []
    alone = _alone(learnt, role)
    for model, name in ((ours.model, number), (alone, "default")):
        model.train()
        logprobs_K = token_logprobs(model, batch)
        logprobs_K.sum().backward()
        given = {n: w.grad for n, w in model.named_parameters() if w.grad is not None}
        assert given and all(f".{name}." in each for each in given), (
            "no other adapter has a gradient"
        )
        found.append(
            (logprobs_K.detach(), {n.replace(f".{name}.", "."): g for n, g in given.items()})
        )
    (ours_K, ours_grads), (alone_K, alone_grads) = found
    assert torch.equal(ours_K, alone_K) and ours_grads.keys() == alone_grads.keys()
    assert all(torch.equal(ours_grads[name], alone_grads[name]) for name in ours_grads)
    torch.testing.assert_close(ours_K, batch.old_logprobs_K, rtol=0, atol=1e-5)
    ours.engine.close()


def _alone(learnt: Path, role: str) -> Any:
    """Model with a single adapter, loaded by PEFT."""
    load = json.loads((learnt / BASE_FILE).read_text())["model"].partition("?")[2]
    options = LoadOptions("nf4" if "nf4" in load else None, "float32", "cpu", kernel="plain")
    model, _ = load_for_answers(model_folder(MODEL), options)
    own = learnt / role if role in ROLES else learnt
    return peft.PeftModel.from_pretrained(model, str(own), is_trainable=True).get_base_model()


def test_only_adapters_whose_roles_have_a_gradient_change_and_the_engine_samples_with_them(
    tmp_path: Path,
) -> None:
    ours = learner(weight_decay=0.1)
    names = dict(zip((ANYONE, *ROLES), ("default", "role_1", "role_2"), strict=True))
    base = {n: w.detach().clone() for n, w in ours.model.named_parameters() if not w.requires_grad}
    for role in ("plan", ANYONE, "plan"):
        before = {each: weights_of(ours.model, number) for each, number in names.items()}
        row = ours.update([sampled(ours, role)], 0.01)
        assert row["stepped"] and row["engine_difference"] < 1e-5
        for each, number in names.items():
            after = weights_of(ours.model, number)
            assert len(after) == 28
            changed = [not torch.equal(after[name], before[each][name]) for name in after]
            assert all(changed) if each == role else not any(changed)
    assert all(torch.equal(w, base[n]) for n, w in ours.model.named_parameters() if n in base)
    mixed = [sampled(ours, role) for role in (*ROLES, ANYONE)]
    row = ours.update(mixed, 0.01)
    assert row["engine_difference"] < 1e-5 and row["micro_batches"] == 3
    ours.save(tmp_path)
    served: Any = load_policy(str(tmp_path))
    requests = [asked(role, PROMPT, 11) for role in (*ROLES, ANYONE)]
    for one, other in zip(answered(served, requests), answered(ours.engine, requests), strict=True):
        assert one.token_ids == other.token_ids and one.logprobs == pytest.approx(
            other.logprobs, abs=1e-5
        )
    served.close(), ours.engine.close()


def test_a_call_that_goes_on_from_another_roles_is_trained_through_its_own_adapter(
    learnt: Path,
) -> None:
    """The engine reads all tokens before an answer through the adapter of the answering role, and
    so does the trainer.
    """
    ours = learner(policy=str(learnt))
    prompt = PROMPT
    (first,) = answered(ours.engine, [asked("plan", prompt, 1)])
    longer = (*prompt, *first.token_ids, 5, 6)
    (second,) = answered(ours.engine, [asked("solve", longer, 2)])

    def call(
        name: str, node: str, tokens: tuple[int, ...], done: Completion, parent: str | None = None
    ) -> Any:
        made = sampled_call(name, (*tokens, *done.token_ids), len(tokens), parent)
        logprobs = (0.0,) * len(tokens) + done.logprobs
        return made.model_copy(update={"identity": place("t", name, node), "logprobs": logprobs})

    calls = (call("a", "plan", prompt, first), call("b", "solve", (5, 6), second, "a"))
    run = trajectory().model_copy(update={"calls": calls})
    weights = {"a": 1.0, "b": 2.0}
    (whole,) = linearise(run, weights)
    rows = linearise(run, weights, roles=ROLES)
    assert [(row.role, len(row)) for row in rows] == [
        ("plan", len(prompt) + len(first.token_ids)),
        ("solve", len(whole)),
    ]
    assert (
        sum(int(row.loss_mask.sum()) for row in rows)
        == int(whole.loss_mask.sum())
        == rows[0].sequence_tokens
    )
    assert not rows[1].loss_mask[: len(longer)].any()
    for forward in ("padded", "packed", "tree"):
        batches = micro_batches(rows, token_budget=4096, forward=forward, whole_trajectories=True)
        assert [batch.role for batch in batches] == ["plan", "solve"]
        for batch in batches:
            with torch.no_grad():
                found_K = token_logprobs(ours.model, batch)
            torch.testing.assert_close(found_K, batch.old_logprobs_K, rtol=0, atol=1e-5)
    ours.engine.close()


def test_the_reference_is_what_the_run_starts_from(learnt: Path) -> None:
    for policy, keys in ((MODEL, {}), (str(learnt), {})):
        ours, start = learner(policy=policy, kl_coef=0.1, **keys), learner(policy=policy)
        batches = [sampled(ours, role) for role in (*ROLES, ANYONE)]
        row = ours.update(batches, 0.02)
        assert row["kl_reference"] == pytest.approx(0.0, abs=1e-5)
        reference = ours.reference
        assert reference is not None
        for batch in batches:
            with torch.no_grad():
                expected, found = (
                    token_logprobs(start.model, batch),
                    token_logprobs(reference, batch),
                )
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
        assert ours.update([sampled(ours, "plan")], 0.02)["kl_reference"] > 1e-4
        ours.engine.close()


def test_adapters_go_on_from_those_of_their_roles_or_all_from_one(
    learnt: Path, tmp_path: Path
) -> None:
    ours = learner(policy=str(learnt), lora_roles=ROLES[::-1])
    ours.save(tmp_path / "same")
    for role in ("", *ROLES):
        one, other = (load_file(each / role / WEIGHTS_FILE) for each in (learnt, tmp_path / "same"))
        assert all(torch.equal(one[name], other[name]) for name in one)
    from_one = learner(policy=str(learnt / "plan"))
    from_one.save(tmp_path / "one")
    wanted = load_file(learnt / "plan" / WEIGHTS_FILE)
    for role in ("", *ROLES):
        found = load_file(tmp_path / "one" / role / WEIGHTS_FILE)
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    with pytest.raises(
        ConfigError, match=r"lora_roles = plan, but the adapters in .* are of plan, solve"
    ):
        learner(policy=str(learnt), lora_roles=("plan",))
    with pytest.raises(
        ConfigError, match=r"lora_roles names no role.*train the adapter of one role: .*plan"
    ):
        learner(policy=str(learnt), lora_roles=())


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(
        ConfigError, match=r"lora_roles has no effect here: there is no adapter.*Set lora_rank"
    ):
        GrpoConfig.of(lora_roles=ROLES)
    for roles in (("plan", "plan"), ("../plan",), ("",)):
        with pytest.raises(ConfigError, match="is saved in a folder with"):
            GrpoConfig.of(lora_rank=4, lora_roles=roles)
    with pytest.raises(ConfigError, match=r"lora_roles is of `train rl`"):
        FineTuneConfig.model_validate(
            {"data": "x", "adapter": {"lora_rank": 4, "lora_roles": ("plan",)}}
        )
    with pytest.raises(ModelError, match=r"takes no adapter on query.*q_proj"):
        learner(lora_targets=("query",))
    with pytest.raises(ModelError, match=r"several roles cannot be on 'lm_head'"):
        learner(lora_targets=("q_proj", "lm_head"))


def test_a_role_that_the_graph_has_not_is_refused_before_there_is_a_folder(tmp_path: Path) -> None:
    config = GrpoConfig.of(
        policy=MODEL, graph="reasoning", lora_rank=4, lora_roles=("plan", "solver")
    )
    with pytest.raises(
        ConfigError, match=r"'solver', and the graph reasoning has no such node\..*solve"
    ):
        asyncio.run(train(config, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_adapters_of_other_shapes_are_not_read(tmp_path: Path) -> None:
    learner(lora_rank=2).save(tmp_path)
    with pytest.raises(ModelError, match="does not fit the model's adapter"):
        learner()._policy.read(tmp_path)


@pytest.mark.slow
def test_a_run_on_four_roles_goes_on_to_the_same_adapters_and_keeps_no_other_weights(
    tmp_path: Path,
) -> None:
    keys: dict[str, Any] = {
        "policy": MODEL,
        "graph": "reasoning",
        "prompts_per_step": 2,
        "group_size": 4,
        "algorithm": "grpo",
        "cooldown": 0.0,
        "learning_rate": 5e-3,
        "seed": 1,
        "lora_rank": 2,
        "lora_roles": ("plan", "solve", "critique"),
        "frozen_roles": ("critique",),
    }
    asyncio.run(train(GrpoConfig.of(steps=2, **keys), tmp_path / "undisturbed"))
    for steps in (1, 2):
        asyncio.run(train(GrpoConfig.of(steps=steps, **keys), tmp_path / "resumed"))
    rows = read_metrics(tmp_path / "undisturbed" / "metrics.jsonl")
    assert all(row["stepped"] and row["engine_difference"] < 1e-5 for row in rows)
    fresh, model = tmp_path / "fresh", tmp_path / "undisturbed" / "model"
    Learner(GrpoConfig.of(**keys), Accelerator()).save(fresh)
    changed: dict[str, bool] = {}
    for role in ("", "plan", "solve", "critique"):
        files = {file.name for file in (model / role).iterdir() if file.is_file()}
        assert files == FILES | (set() if role else {"README.md", "manifest.json"})
        before, one, other = (
            load_file(each / role / WEIGHTS_FILE)
            for each in (fresh, model, tmp_path / "resumed" / "model")
        )
        # not to the bit: solvers side by side end in any order, in which their tokens are summed
        for name in one:
            torch.testing.assert_close(
                one[name], other[name], rtol=0, atol=1e-4 if role != "critique" else 0.0
            )
        changed[role] = any(not torch.equal(one[name], before[name]) for name in one)
    assert changed == {"": True, "plan": True, "solve": True, "critique": False}
    checkpoint, *_ = sorted((tmp_path / "resumed" / "checkpoints").iterdir())
    assert not list(checkpoint.rglob("model.safetensors"))
    whole = Path(model_folder(MODEL), "model.safetensors").stat().st_size
    assert sum(file.stat().st_size for file in model.rglob("*") if file.is_file()) < whole / 4


def test_the_route_of_an_engine_is_its_own() -> None:
    ours = learner()
    assert ours.engine._route is not None is not route_of(ours.model)
    assert ours.engine._route is not route_of(ours.model)
    ours.engine.close()
