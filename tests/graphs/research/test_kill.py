"""A research that is killed between its searches continues from there: completed searches are not
repeated.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hrm_agent.environment import LocalEnvironment
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.store import open_store
from hrm_agent.trajectory import RunStatus
from hrm_agent.trajectory.lint import lint
from tests.support.graphs.killed_research import HANGS
from tests.support.graphs.research_scripts import AGENT, NIGHT, Researcher, Talk, assert_exact
from tests.support.graphs.small_wiki import SmallWiki

pytestmark = pytest.mark.whole


@pytest.mark.slow
async def test_a_search_that_was_done_is_not_made_again(
    tmp_path: Path, idle_environment: LocalEnvironment
) -> None:
    wiki, path = SmallWiki(), tmp_path / "store.db"
    command = [sys.executable, "-m", "tests.support.graphs.killed_research", wiki.url, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline().strip() == HANGS
        process.kill()
    asked = len(wiki.requests)
    assert asked == 5, "a search of two requests for each, and one page"
    with open_store(path) as store:
        talk = Talk(store, idle_environment, Researcher(), wiki=wiki.url, user_agent=AGENT)
        trajectory = await talk.resumed()
        talk.close()
        searched = [
            request.messages[1].text
            for request in talk.engine.requests
            if len(request.messages) > 2
        ]
        assert len(talk.engine.requests) == 3, (
            "what the krill's searcher had not said, and the answer"
        )
        assert all(NIGHT in text for text in searched[:2]) and len(wiki.requests) == asked + 1
        assert trajectory.status is RunStatus.COMPLETED and len(talk.state["citations"]) == 2
        assert_exact(talk.state)
        assert len(trajectory.calls) == 8 and lint(trajectory) == []
        wiki.close()
        assert (await replay_async(store, "talk")).equal
