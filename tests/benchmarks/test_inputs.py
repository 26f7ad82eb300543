"""Changes that require the shipped policies to be built again."""

from __future__ import annotations

import pytest

from benchmarks.small_policy import inputs
from benchmarks.small_policy.inputs import Inputs, cold_start_inputs, inputs_of_card
from hrm_agent.training.small_policy import traces
from hrm_agent.training.small_policy.cold_start import COLD_START

pytestmark = pytest.mark.whole

NOW = Inputs("0123456789abcdef", (6.88891, 0.00432, 268))


@pytest.fixture
def few_texts(monkeypatch):
    """Reduce the number of demonstrations, since the tested effects show in the first ones."""
    monkeypatch.setattr(inputs, "TOKENIZER_TEXTS", 200)


def test_a_card_gives_back_what_was_written_to_it():
    assert inputs_of_card(f"# Card\n\n{NOW}\n").agree_with(NOW)
    assert inputs_of_card("# Card\n") is None


def test_rounding_is_no_change_and_another_loss_is():
    def moved(by):
        return Inputs(NOW.digest, tuple(figure * (1 + by) for figure in NOW.rehearsal))

    assert moved(1e-6).agree_with(NOW)
    assert moved(7e-5).agree_with(NOW)  # two kinds of CPU: 6.6e-5
    assert not moved(1e-4).agree_with(NOW)
    assert not Inputs("0" * 16, NOW.rehearsal).agree_with(NOW)


@pytest.mark.usefixtures("few_texts")
def test_prompts_recipe_and_training_decide_and_speed_does_not(monkeypatch):
    before = cold_start_inputs()

    def changed(target, name, value):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, value)
            return not cold_start_inputs().agree_with(before)

    def recipe(**values):
        return changed(inputs, "COLD_START", COLD_START.model_copy(update=values))

    assert changed(traces, "SOLVER_PROMPT", traces.SOLVER_PROMPT + " Think.")
    assert recipe(steps=COLD_START.steps + 1)
    assert not recipe(micro_batch_tokens=2048)


@pytest.mark.usefixtures("few_texts")
def test_what_only_the_computation_shows_is_seen(monkeypatch):
    before = cold_start_inputs()
    fresh = inputs.new_model

    def louder(tokenizer, seed):
        model = fresh(tokenizer, seed)
        model.model.layers[0].self_attn.q_proj.weight.data *= 1.5
        return model

    monkeypatch.setattr(inputs, "new_model", louder)
    again = cold_start_inputs()
    assert again.digest == before.digest
    assert not again.agree_with(before)
