"""Code that runs in the sandbox: the code under test as a program that reads its standard input, as
`python program.py` would.

The input is at the process's descriptor 0, so that every way of reading it works. Its paths, such
as `/dev/stdin`, may be missing in the sandbox, so `open` is replaced. At the end threads are
joined, exit handlers run, and buffers are written. Prompts of `input` are part of the output, and
their offsets are returned.
"""

# ruff: noqa: S102, SIM115, PTH108, PTH123
# pyright: basic, reportAttributeAccessIssue=false


def open_input_by_path():
    """Make `open` and `os.open` accept the paths of standard input."""
    import builtins
    import io
    import os

    plain_open = io.open
    plain_os_open = os.open
    dup = os.dup
    fspath = os.fspath
    is_a = isinstance
    paths = (str, os.PathLike)
    of_input = ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")

    def opened(file, *how, **named):
        return plain_open(
            dup(0) if is_a(file, paths) and fspath(file) in of_input else file, *how, **named
        )

    def os_opened(path, *how, **named):
        return (
            dup(0)
            if is_a(path, paths) and fspath(path) in of_input
            else plain_os_open(path, *how, **named)
        )

    # the originals are not bound as methods if they are class attributes, and neither are these
    builtins.open = io.open = staticmethod(opened)
    os.open = staticmethod(os_opened)


def run_program(source, fed):
    """Run a program and return its prompts as pairs of offsets in the output. Everything needed
    after the program has run is a local name, since the program may change globals.
    """
    import builtins
    import io
    import linecache
    import os
    import sys

    file = "<program>"
    out = sys.stdout
    read = builtins.input
    names = sys.modules["__main__"].__dict__
    prompts = []

    def ask(prompt="", /):
        if prompt != "":
            sys.stdout.flush()
            begin = os.lseek(1, 0, os.SEEK_CUR)
            sys.stdout.write(str(prompt))
            sys.stdout.flush()
            prompts.append([begin, os.lseek(1, 0, os.SEEK_CUR)])
        return read()

    with open(".stdin", "w+b") as given:
        os.unlink(".stdin")
        given.write(fed.encode())
        given.seek(0)
        os.dup2(given.fileno(), 0)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)
    open_input_by_path()
    out.reconfigure(line_buffering=False)
    sys.argv, builtins.input, builtins.exit, builtins.quit = ["program.py"], ask, sys.exit, sys.exit
    # allow for the frames below the program's first one
    sys.setrecursionlimit(sys.getrecursionlimit() + 20)
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    if "atexit" in sys.modules:
        sys.modules["atexit"]._clear()
    del names["run_program"], names["open_input_by_path"]
    stopped = None
    try:
        exec(compile(source, file, "exec", dont_inherit=True), names)
    except SystemExit as stop:
        stopped = stop
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    if "atexit" in sys.modules:
        sys.modules["atexit"]._run_exitfuncs()
    names.clear()  # flushes files that the program has not closed
    for stream in (sys.stdout, out):
        if not stream.closed:
            stream.flush()
    sys.stdout = io.StringIO()  # the sandbox flushes it at the end, which fails for a closed stream
    if stopped is not None and stopped.code not in (None, 0):
        raise stopped
    return prompts
