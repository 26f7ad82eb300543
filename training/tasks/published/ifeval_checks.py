"""Checks of IFEval's instructions by the library if-verifiable, which has the published code.

The module is only imported in the process of `bounded_call`, since texts of a policy may keep the
library's patterns busy, and the library's import takes seconds.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

# The library imports Arrow and pandas for data that is not read here. They would reserve most of
# the memory that a bounded call may have.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import langdetect
from if_verifiable.ifeval.instructions_registry import INSTRUCTION_DICT
from if_verifiable.ifeval.instructions_util import count_sentences

__all__ = ["first_problem", "followed"]

Instruction = tuple[str, dict[str, Any]]
"""Id of an instruction, and its arguments."""


def first_problem(lists: list[list[Instruction]]) -> tuple[int, str] | None:
    """Index of the first list with an instruction that cannot be checked, and the reason (None if
    all can).
    """
    for index, instructions in enumerate(lists):
        if problem := _problem_of(instructions):
            return index, problem
    return None


def _problem_of(instructions: list[Instruction]) -> str:
    """Reason why one of the instructions cannot be checked (empty if all can)."""
    for name, arguments in instructions:
        if name not in INSTRUCTION_DICT:
            return f"the instruction {name!r} is unknown"
        # the library draws an argument that is missing
        missing = set(INSTRUCTION_DICT[name](name).get_instruction_args_keys()) - arguments.keys()
        if missing:
            return f"the instruction {name!r} has no {', '.join(sorted(missing))}"
        try:
            _checker(name, arguments).check_following("One sentence.")
        except Exception as error:  # raised by the library for odd arguments
            if _lacks_data(error):
                return f"the instruction {name!r} needs NLTK's punkt_tab"
            return f"the instruction {name!r} cannot be checked: {error}"
    return ""


def followed(response: str, instructions: list[Instruction]) -> list[tuple[bool, bool]]:
    """Pairs (followed by the strict criterion, followed by the loose criterion), one for each
    instruction.

    Loose: it is followed by the response, or by the response without its first line, last line or
    both, each also without asterisks (Zhou et al. 2023). An empty text follows nothing.
    """
    lines = response.split("\n")
    shortened = ("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))
    variants = [response, *shortened]
    variants += [variant.replace("*", "") for variant in variants]
    found: list[tuple[bool, bool]] = []
    for name, arguments in instructions:
        checker = _checker(name, arguments)
        strict = _follows(checker, response)
        found.append((strict, strict or any(_follows(checker, each) for each in variants)))
    return found


def _checker(name: str, arguments: dict[str, Any]) -> Any:
    checker: Any = INSTRUCTION_DICT[name](name)
    checker.build_description(**arguments)
    if name == "keywords:letter_frequency":
        # for a sign such as `#`, the library counts a letter that it draws
        checker._letter = arguments["letter"].strip().lower()
    return checker


def _follows(checker: Any, text: str) -> bool:
    try:
        return bool(text.strip() and checker.check_following(text))
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        if _lacks_data(error):
            raise
        return False  # the instructions were tried before, so the text is the cause


def _lacks_data(error: Exception) -> bool:
    """True for NLTK's error for a missing data file."""
    return type(error) is LookupError


# without a seed, the detected language of a text may change from call to call
langdetect.DetectorFactory.seed = 0
# both read files for their first text, so they read one before the first call
langdetect.detect("A sentence in English.")
with suppress(LookupError):
    count_sentences("A sentence.")
