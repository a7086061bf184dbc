"""What both command lines do around their work: check the machine, keep compiled programs, report mistakes."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import jax

from envs.tasks import goals
from genda_mjx.config import UserError


def check_jax() -> None:
    """jax 0.10 on CPU deadlocks in batched MJX programs (0.10.1, 0.10.2) and returned wrong numbers under jit there."""
    if jax.__version__.startswith("0.10.") and jax.default_backend() == "cpu":
        raise UserError(
            f"jax {jax.__version__} on CPU deadlocks or miscomputes batched MJX programs; "
            "install the tested versions: pip install -r requirements.txt (jax 0.9.2)"
        )


def tune_xla() -> None:
    """Triton for every matrix product on GPUs; before the first use of a device, and beside what the user has set."""
    flag = "--xla_gpu_triton_gemm_any"
    flags = os.environ.get("XLA_FLAGS", "")
    if flag not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {flag}=true".strip()


def keep_compilations(folder: str) -> None:
    """Persistent compilation cache: a second start of the same program skips the compiler.

    Not for several processes on the CPU: there a program from the cache belongs to the process that compiled it, and
    in another one it returned wrong numbers (jax 0.9.2, a sum over four devices in two processes).
    """
    if folder and not (jax.process_count() > 1 and jax.default_backend() == "cpu"):
        jax.config.update("jax_compilation_cache_dir", str(Path(folder).resolve()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def make_task(body: str, task: str, **options) -> goals.GoalTask:
    try:
        return goals.make(body, task, **options)
    except ValueError as error:
        raise UserError(str(error)) from error


def write_text(path: Path, text: str) -> None:
    """All or nothing: a reader never sees half a file."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(text)
    os.replace(partial, path)


def main(work: Callable[[], None]) -> None:
    """Run a command line; a user's mistake is one line on stderr and exit code 2."""
    tune_xla()
    try:
        work()
    except UserError as error:
        sys.exit(_complain(str(error)))
    except KeyboardInterrupt:  # the second Ctrl-C: at once, without a checkpoint of the iteration under way
        sys.exit(130)
    except OSError as error:  # no permission, disk full, read-only: the system's own reason
        if error.filename is None:
            raise
        sys.exit(_complain(f"cannot use {error.filename}: {error.strerror}; choose another folder with --out"))


def _complain(text: str) -> int:
    print(f"error: {' '.join(text.split())}", file=sys.stderr)
    return 2
