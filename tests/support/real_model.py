"""SmolLM2-135M-Instruct for the tests that need a real model. It is in the user's cache, where
`hrm-agent models get` puts it.

python -m tests.support.real_model    fetches it, unless it is there; what CI does beside its set-up
"""

from __future__ import annotations

import sys

from hrm_agent.errors import HrmError
from hrm_agent.models.cached.fetch import get_model
from hrm_agent.models.cached.known import KNOWN_MODELS, fetched_folder

__all__ = ["NAME", "missing"]

NAME = "smollm2-135m"


def missing() -> str:
    """Advice how to get the model into the cache (empty if it is there)."""
    try:
        fetched_folder(NAME)
    except HrmError as error:
        return f"{error.message} Run `make model`, or `python -m tests.support.real_model`."
    return ""


def main() -> int:
    try:
        got = get_model(KNOWN_MODELS[NAME], say=lambda text: print(text, file=sys.stderr))
    except HrmError as error:
        print(f"left out: {NAME}: {error}", file=sys.stderr)
        return 1
    print(f"{got.card.title}: {got.card.origin}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
