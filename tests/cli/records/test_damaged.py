"""One unreadable trajectory among others: the commands report it in a line and continue with the
rest.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hrm_agent.store import open_store
from tests.cli.conftest import Command
from tests.support.store.bodies import execute
from tests.support.trajectory.samples import make_trajectory


@pytest.fixture
def damaged(store: str) -> str:
    """Store of the sample with two more trajectories, one of which is invalid."""
    with open_store(store) as opened:
        for number in (2, 3):
            made = make_trajectory(
                id=f"trajectory-{number}", thread_id=f"t{number}", calls=(), tool_calls=()
            )
            opened.journal.write_trajectory(made)
    execute(
        f"sqlite:///{store}",
        "UPDATE trajectories SET record = ? WHERE id = 'trajectory-2'",
        (b'{"id": "x"}',),
    )
    return store


def test_history_shows_the_others(damaged: str, hrm: Command) -> None:
    done = hrm("history", "--store", damaged)
    assert done.code == 1 and done.err == "" and "2 trajectories in" in done.out
    (said,) = [line for line in done.out.splitlines() if "cannot be read" in line]
    assert said.startswith("trajectory trajectory-2: The trajectory trajectory-2 cannot be read: ")
    rows = hrm("history", "--store", damaged, "--json").json
    assert [row["trajectory"] for row in rows] == ["trajectory-1", "trajectory-3", "trajectory-2"]
    assert "cannot be read" in rows[-1]["error"]


def test_lint_checks_the_others(damaged: str, hrm: Command) -> None:
    done = hrm("lint", damaged)
    assert done.code == 1 and done.err == "" and "2 trajectories, " in done.out
    assert (
        "0 findings, 1 that cannot be read" in done.out and "trajectory trajectory-2: " in done.out
    )
    assert list(hrm("lint", damaged, "--json").json["damaged"]) == ["trajectory-2"]


def test_verify_names_it_and_delete_takes_it_out(damaged: str, hrm: Command) -> None:
    found = hrm("store", "verify", damaged)
    assert found.code == 1 and "trajectory trajectory-2: cannot be read" in found.out
    assert hrm("store", "delete", "trajectory-2", "--store", damaged).code == 0
    assert hrm("store", "verify", damaged).code == 0
    assert hrm("history", "--store", damaged).code == hrm("lint", damaged).code == 0


def test_what_needs_it_says_so(damaged: str, hrm: Command) -> None:
    done = hrm("show", "trajectory-2", "--store", damaged)
    assert done.code == 2 and "The trajectory trajectory-2 cannot be read: " in done.err
    assert "`hrm-agent store verify`" in done.err and "Traceback" not in done.err


def test_a_configuration_that_cannot_be_read_is_no_reason_to_fail(
    hrm: Command, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("a = " + "[" * 50_000)
    for words in (("history", "--store"), ("analyze",)):
        done = hrm(*words, str(tmp_path / "run"))
        assert done.code == 2 and "There is no store at" in done.err


@pytest.mark.parametrize(
    "option",
    [
        "api_key=sk-1",
        "openai_api_key=sk-1",
        "hf_token=sk-1",
        "openaiApiKey=sk-1",
        "wiki=http://ann:sk-1@wiki.test/api.php",
        'servers=[{headers={x-api-key="sk-1"}}]',
        'models={critic={access_token="sk-1"}}',
        'servers=[{env={AWS_SECRET_ACCESS_KEY="sk-1"}}]',
    ],
)
def test_a_secret_is_not_recorded(option: str, hrm: Command) -> None:
    """Options are stored with the run. An option named like a secret is refused, and its value is
    not repeated.
    """
    done = hrm("run", "What is 6 * 7?", "--context", option)
    told = "is named like a secret, or holds an address with a password: options are recorded"
    assert done.code == 2 and told in done.err
    assert "environment variable" in done.err and "sk-1" not in done.err
