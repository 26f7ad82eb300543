"""Ten paragraphs of plain English, which a pretrained model predicts well, and 32 short
conversations, which it is taught.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

__all__ = ["CONVERSATIONS", "PARAGRAPHS", "perplexity", "without_defaults", "write_conversations"]

_TEXT = """
The river rises in the hills north of the town and runs south for about forty miles before it reaches the sea. In
spring, when the snow melts, it often floods the meadows on both banks, and the farmers move their cattle to higher
ground until the water has gone down again.

Bread is made from very few things: flour, water, salt and yeast. The dough is mixed, left to rise for an hour or two,
shaped into a loaf and left to rise once more. Then it goes into a hot oven, where the crust turns brown and the
kitchen fills with a smell that most people love.

The moon has no light of its own. It reflects the light of the sun, and as it moves around the earth we see more or
less of its bright side. This is why it seems to grow from a thin crescent to a full disc and to shrink again over the
course of a month.

She had worked in the library for nearly thirty years and knew where almost every book stood. When children came in
after school she would ask what they liked, think for a moment, and walk straight to a shelf at the back of the room.
She was hardly ever wrong.

A good map tells you more than the way from one place to another. It shows how steep the hills are, where a stream can
be crossed, and which paths are closed in winter. Before there were phones, people who walked in the mountains learned
to read such maps as easily as a newspaper.

The company opened its first shop in a small street near the station in 1921. At first it sold only shoes, but within
ten years it had added coats, hats and gloves. Today it has more than two hundred shops in twelve countries and
employs about nine thousand people.

Plants need light, water and air to grow. Their leaves take in carbon dioxide and, with the help of sunlight, turn it
into sugar. Oxygen is given off along the way. Without this process there would be hardly any oxygen in the air, and
animals as we know them could not live.

The meeting lasted longer than anyone had expected. Some members wanted to repair the old bridge, while others thought
that it would be cheaper to build a new one. In the end they agreed to ask an engineer for advice and to meet again at
the beginning of next month.

Learning to play an instrument takes patience. In the first weeks the fingers hurt and the notes sound wrong, and many
beginners give up. Those who practise a little every day usually find that after half a year they can play simple
songs, and that they have begun to enjoy it.

It rained all night, and in the morning the garden was full of puddles. The old dog stood at the door, looked out for
a while and went back to his basket. By noon the clouds had moved away to the east, the sun came out, and steam rose
from the wet stones of the path.
"""
PARAGRAPHS = tuple(" ".join(paragraph.split()) for paragraph in _TEXT.strip().split("\n\n"))
"""Paragraphs of common knowledge."""

CONVERSATIONS = (
    ("What is the capital of France?", "The capital of France is Paris."),
    ("How many days are there in a week?", "There are seven days in a week."),
    ("Name three primary colours.", "Red, yellow and blue are primary colours."),
    ("What do bees make?", "Bees make honey and wax."),
    ("Which planet is closest to the sun?", "Mercury is the planet closest to the sun."),
    (
        "How do I boil an egg?",
        "Put the egg into boiling water for eight minutes, then cool it under cold water.",
    ),
    ("What is the opposite of hot?", "The opposite of hot is cold."),
    ("Can penguins fly?", "No, penguins cannot fly, but they are very good swimmers."),
    ("What is 12 + 30?", "12 + 30 = 42."),
    ("Give me a word that rhymes with cat.", "Hat rhymes with cat."),
    ("Who wrote Hamlet?", "Hamlet was written by William Shakespeare."),
    ("What is a synonym of happy?", "Glad is a synonym of happy."),
    ("How many legs does a spider have?", "A spider has eight legs."),
    ("What is the largest ocean?", "The Pacific Ocean is the largest ocean."),
    (
        "Why is the sky blue?",
        "Air scatters the blue part of sunlight more than the rest, so the sky looks blue.",
    ),
    ("Translate 'good morning' into French.", "In French, 'good morning' is 'bonjour'."),
    ("What is ice made of?", "Ice is frozen water."),
    ("How many minutes are there in two hours?", "There are 120 minutes in two hours."),
    (
        "What should I wear when it rains?",
        "Wear a waterproof coat and boots, and take an umbrella.",
    ),
    ("Name a fruit that is yellow.", "A banana is a yellow fruit."),
    ("Which season comes after summer?", "Autumn comes after summer."),
    ("What do you call a young dog?", "A young dog is called a puppy."),
    ("Is the earth flat?", "No, the earth is nearly a sphere."),
    ("What is the plural of child?", "The plural of child is children."),
    (
        "How can I fall asleep more easily?",
        "Go to bed at the same time each day, and put your phone away an hour before.",
    ),
    ("What instrument has 88 keys?", "A piano has 88 keys."),
    ("What gas do we breathe in to live?", "We breathe in oxygen to live."),
    ("Write a short greeting.", "Hello! I hope that you have a lovely day."),
    ("What is 9 times 7?", "9 times 7 is 63."),
    ("Where do fish live?", "Fish live in water, in rivers, lakes and the sea."),
    ("What colour is grass?", "Grass is green."),
    ("How do plants drink?", "Plants take up water through their roots."),
)
"""Questions, each with its answer."""


def write_conversations(path: Path) -> Path:
    """Write `CONVERSATIONS` in the form that `train sft` reads, and return the file."""
    turns = ({"user": asked, "assistant": answer} for asked, answer in CONVERSATIONS)
    rows = (
        {"messages": [{"role": role, "content": text} for role, text in each.items()]}
        for each in turns
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def without_defaults(model: Path) -> Path:
    """Remove a small model's own defaults from its folder, so that it counts as a pretrained model.
    Return the folder.
    """
    file = model / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    del config["hrm_agent"]
    file.write_text(json.dumps(config), encoding="utf-8")
    return model


@torch.no_grad()
def perplexity(model: Any, tokenizer: Any) -> float:
    """The perplexity of `PARAGRAPHS`, over all tokens but the first of each paragraph."""
    nats = 0.0
    tokens = 0
    for paragraph in PARAGRAPHS:
        ids = torch.tensor([tokenizer.encode(paragraph, add_special_tokens=False)])
        logits = model(input_ids=ids).logits[0, :-1].float()
        nats += float(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
        tokens += ids.shape[1] - 1
    return math.exp(nats / tokens)
