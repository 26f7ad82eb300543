"""Every attack of the corpus, one after the other, against few slots: what one leaves, the next finds."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from hrm_agent.environment import LocalEnvironment
from tests.environment.attacks.host import Host
from tests.environment.attacks.snippets import CORPUS, Snippet, read_folder
from tests.environment.attacks.trial import try_attack, warm_up

SLOTS = 2
SNIPPETS = read_folder(CORPUS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground() -> AsyncIterator[tuple[LocalEnvironment, Host]]:
    with Host() as host:
        environment = LocalEnvironment(slots=SLOTS)
        await warm_up(environment, host, SLOTS)
        yield environment, host
        await environment.close()


@pytest.mark.parametrize("snippet", SNIPPETS, ids=[snippet.name for snippet in SNIPPETS])
@pytest.mark.asyncio(loop_scope="module")
async def test_it_is_contained(snippet: Snippet, ground: tuple[LocalEnvironment, Host]) -> None:
    trial = await try_attack(snippet, *ground, SLOTS)
    assert trial.complaints == []


def test_every_attack_says_what_it_tries_and_what_is_to_come_of_it() -> None:
    assert len(SNIPPETS) >= 80
    assert [snippet.name for snippet in SNIPPETS if not snippet.tries] == []
    assert [snippet.name for snippet in SNIPPETS if not all(call.stated for call in snippet.calls)] == []
