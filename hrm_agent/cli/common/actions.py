"""Commands that have actions, such as `hrm-agent store verify`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.main import command_list
from hrm_agent.errors import ConfigError, nearest

__all__ = ["run_action"]


def run_action(
    command: str,
    about: str,
    actions: Mapping[str, str],
    functions: Mapping[str, Callable[[list[str]], int]],
    words: Sequence[str],
) -> int:
    """Run the action that comes first in `words`, or show the help of the command. `actions`: their
    descriptions by name. Returns the exit code. Raises `ConfigError` for an unknown action.
    """
    if words and words[0] in functions:
        return functions[words[0]](list(words[1:]))
    if words and not words[0].startswith("-"):
        raise ConfigError(
            f"`hrm-agent {command}` has no action {words[0]!r}.",
            nearest(words[0], actions) or f"Actions: {', '.join(actions)}.",
        )
    listed = f"{command_list(actions)}\n\n`hrm-agent {command} ACTION --help` lists its options."
    Parser(f"{command} ACTION", f"{about}\n\n{listed}").read([*words] or ["--help"])
    return 0
