"""Program that runs a command in a virtual machine. Its root is this machine's root, read-only,
below a layer in memory.

    python -m tests.support.vm python -m pytest -q tests/environment/local/test_cgroup.py
    python -m tests.support.vm --user --suite bookworm hrm-agent doctor environment

Use it for commands that should not change a machine that people work on. The command's process is
in a cgroup (version 2) that was delegated to it. Needs root,
`apt-get install qemu-system-x86 busybox-static`, and a Debian mirror, from which the kernel comes,
once. The command is run in the current folder, with this interpreter's folder first in PATH; the
guest's /tmp is its own.
"""

from __future__ import annotations

import argparse
import lzma
import os
import re
import shlex
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

MIRROR = "https://deb.debian.org/debian"
SUITES = {"trixie": "6.12", "bookworm": "6.1"}
"""Debian's release -> its kernel."""
MODULES = ("netfs", "fscache", "9pnet", "9pnet_virtio", "9p", "overlay")
EXIT = re.compile(r"guest: exit code (\d+)")
ORDINARY_USER = 1000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.vm", description=__doc__)
    parser.add_argument("--user", action="store_true", help="as an ordinary user, not as root")
    parser.add_argument(
        "--emulate", action="store_true", help="where /dev/kvm is missing, or runs no plain kernel"
    )
    parser.add_argument(
        "--suite", choices=SUITES, default="trixie", help="whose kernel [trixie: Linux 6.12]"
    )
    parser.add_argument(
        "--kernels",
        type=Path,
        default=Path("~/.cache/hrm-agent/vm"),
        help="folder to keep kernels in",
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="until it is ended [30]")
    parser.add_argument("--memory", default="6G", help="of the guest [6G]")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND")
    arguments = parser.parse_args()
    folder = arguments.kernels.expanduser() / arguments.suite
    kernel = next(folder.glob("boot/vmlinuz-*"), None) or download(arguments.suite, folder)
    ramdisk = folder / f"initramfs-{os.getpid()}"
    ramdisk.write_bytes(initramfs(folder, arguments.words, ORDINARY_USER if arguments.user else 0))
    try:
        return boot(
            machine(arguments.memory, emulate=arguments.emulate),
            kernel,
            ramdisk,
            arguments.minutes * 60,
        )
    finally:
        ramdisk.unlink()


def download(suite: str, folder: Path) -> Path:
    """The newest kernel of a suite, unpacked into `folder`. Returns its image."""
    index = lzma.decompress(
        fetched(f"{MIRROR}/dists/{suite}/main/binary-amd64/Packages.xz")
    ).decode()
    packages = {text.partition("\n")[0]: text for text in index.split("Package: ")}
    depends = re.search(r"^Depends: (\S+)", packages["linux-image-amd64"], re.MULTILINE)
    path = re.search(r"^Filename: (\S+)", packages[depends[1]], re.MULTILINE) if depends else None
    if path is None:
        raise SystemExit(f"{suite} has no kernel")
    folder.mkdir(parents=True, exist_ok=True)
    package = folder / "kernel.deb"
    package.write_bytes(fetched(f"{MIRROR}/{path[1]}"))
    subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
    package.unlink()
    return next(folder.glob("boot/vmlinuz-*"))


def fetched(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=300) as answer:
        return answer.read()


def initramfs(folder: Path, words: list[str], owner: int) -> bytes:
    """A root in memory with the files that `init.sh`, the machine's first process, needs."""
    files = {
        "init": (Path(__file__).parent / "init.sh").read_bytes(),
        "bin/busybox": Path("/bin/busybox").read_bytes(),
        "owner": str(owner).encode(),
        "python": sys.executable.encode(),
        "command": command(words).encode(),
    }
    for name in MODULES:
        found = next(folder.rglob(f"{name}.ko*"), None)
        if found is None:  # built into the kernel, or part of another module
            continue
        data = found.read_bytes()
        files[f"modules/{name}.ko"] = lzma.decompress(data) if found.suffix == ".xz" else data
    return b"".join(archive({**files, "bin/sh": b"busybox"}, links={"bin/sh"}))


def command(words: list[str]) -> str:
    path = f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    variables = {
        "PATH": path,
        "HOME": "/tmp",
        "PYTHONPATH": str(Path.cwd()),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    return f"{exports}cd {shlex.quote(str(Path.cwd()))}\n{shlex.join(words)}\n"


def archive(files: Mapping[str, bytes], links: set[str]) -> Iterator[bytes]:
    """Archive in the kernel's cpio format. `links` are names of symbolic links, whose content is
    the target.
    """
    folders = dict.fromkeys(
        str(parent) for name in files for parent in Path(name).parents if str(parent) != "."
    )
    for name in sorted((*folders, "proc", "dev"), key=len):
        yield entry(name, stat.S_IFDIR | 0o755, b"")
    for name, content in files.items():
        yield entry(
            name, (stat.S_IFLNK | 0o777) if name in links else (stat.S_IFREG | 0o755), content
        )
    yield entry("TRAILER!!!", 0, b"")


def entry(name: str, mode: int, content: bytes) -> bytes:
    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return b"".join(part + b"\0" * (-len(part) % 4) for part in (head, content))


def machine(memory: str, *, emulate: bool) -> list[str]:
    kind = (
        ["-accel", "tcg,thread=multi", "-cpu", "max"]
        if emulate
        else ["-accel", "kvm", "-cpu", "host"]
    )
    share = "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"
    plain = [
        "-smp",
        "2",
        "-m",
        memory,
        "-nographic",
        "-no-reboot",
        "-nodefaults",
        "-serial",
        "stdio",
    ]
    return ["qemu-system-x86_64", *kind, *plain, "-virtfs", share]


def boot(machine: list[str], kernel: Path, ramdisk: Path, seconds: float) -> int:
    """Run a machine and print what the guest prints. Returns the command's exit code (124 if there
    is none).
    """
    line = "console=ttyS0 quiet panic=-1 lsm=landlock,lockdown,yama,integrity,apparmor"
    given = ["-kernel", str(kernel), "-initrd", str(ramdisk), "-append", line]
    code = 124
    limited = ["timeout", "--kill-after=5", str(seconds), *machine, *given]
    with subprocess.Popen(limited, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        for raw in running.stdout:
            text = raw.decode(errors="replace").rstrip("\r\n")
            if told := EXIT.search(text):
                code = int(told[1])
            else:
                print(text, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
