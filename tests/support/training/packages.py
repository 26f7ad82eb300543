"""Packages as pip installs them: a module, metadata, and entry points, in a folder of
`sys.path`.
"""

from __future__ import annotations

from pathlib import Path


def install(
    folder: Path,
    name: str,
    code: str,
    *,
    version: str = "1.0",
    registers: str = "",
    value: str = "",
) -> None:
    """Put package `name` into `folder`. `registers`: a name of tasks that is registered for
    `value`, or for the package's `tasks`.
    """
    module = name.replace("-", "_")
    folder.mkdir(exist_ok=True)
    (folder / f"{module}.py").write_text(code)
    for earlier in folder.glob(f"{module}-*.dist-info/*"):
        earlier.unlink()
    about = folder / f"{module}-{version}.dist-info"
    for earlier in folder.glob(f"{module}-*.dist-info"):
        earlier.rmdir()
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (about / "top_level.txt").write_text(f"{module}\n")
    if registers:
        (about / "entry_points.txt").write_text(
            f"[hrm_agent.tasks]\n{registers} = {value or module + ':tasks'}\n"
        )
