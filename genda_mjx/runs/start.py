"""What every command does around its work: check the machine, keep compiled programs, report mistakes."""

import glob
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import jax

from envs.physics import cholesky_cuda
from genda_mjx.config import UserError
from genda_mjx.runs import signals
from genda_mjx.runs.checkpoint import NO_ROOM, NotWritten
from genda_mjx.runs.report import NOBODY_READS, let_go

UNREAD = 141  # exit code where nobody reads the output, as a shell has it
PLUGINS = {"cuda": "cuda12", "gpu": "cuda12", "tpu": "tpu"}  # jax platform -> what to install with jax


def prepare(compile_cache: str) -> None:
    """Checks and sets up jax, before anything is built or compiled; in a pod after `processes.start`."""
    check_devices()
    choose_solver()
    check_jax()
    keep_compilations(compile_cache)


def check_devices() -> None:
    """Starts jax's backend, which may be one that JAX_PLATFORMS asks for and this machine does not have."""
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # for a plugin that is not installed jax asserts without a message
        asked = jax.config.jax_platforms or "nothing"
        reason = (str(error).strip().splitlines() or ["its plugin is not installed"])[0]
        extras = [PLUGINS[name] for name in asked.split(",") if name in PLUGINS]
        install = f'install it with: pip install "jax[{extras[0]}]=={jax.__version__}"; or ' if extras else ""
        raise UserError(
            f"JAX_PLATFORMS asks for {asked}, which jax cannot use here ({reason}); {install}unset JAX_PLATFORMS"
        ) from error


def choose_solver() -> None:
    """Keeps the library's solver on NVIDIA GPUs that our kernel is not made for (before compute capability 8.0)."""
    found = (str(getattr(device, "compute_capability", "")) for device in jax.local_devices())
    if any(re.fullmatch(r"[1-7]\.\d", capability) for capability in found):
        os.environ.setdefault(cholesky_cuda.CHOICE, "library")


def devices_found() -> str | None:
    """What a run starts on, where that is worth a line: accelerators, or a CPU beside chips that jax does not see."""
    if jax.default_backend() != "cpu":
        return f"devices: {jax.device_count()} x {jax.devices()[0].device_kind}"
    wanted = "cpu" in os.environ.get("JAX_PLATFORMS", "")
    for pattern, kind, extra in (("/dev/nvidia[0-9]*", "GPU", "cuda12"), ("/dev/accel*", "TPU", "tpu")):
        if glob.glob(pattern) and not wanted:
            install = f'pip install "jax[{extra}]=={jax.__version__}"'
            return f"warning: this machine has a {kind}, but jax found only the CPU; {install} (or JAX_PLATFORMS=cpu)"
    return None


def check_jax() -> None:
    """Refuses jax 0.10 on CPU: there batched MJX programs deadlock (0.10.1, 0.10.2) or miscompute under jit."""
    if jax.__version__.startswith("0.10.") and jax.default_backend() == "cpu":
        raise UserError(
            f"jax {jax.__version__} on CPU deadlocks or miscomputes batched MJX programs; "
            "install the tested versions: pip install -r requirements.txt (jax 0.9.2)"
        )


def tune_xla() -> None:
    """Chooses Triton for every matrix product on GPUs, beside the user's flags; before the first use of a device."""
    flag = "--xla_gpu_triton_gemm_any"
    flags = os.environ.get("XLA_FLAGS", "")
    if flag not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {flag}=true".strip()


def keep_compilations(folder: str) -> None:
    """Turns on the persistent compilation cache: a second start of the same program skips the compiler.

    It stays off for several processes on the CPU: there a program from the cache belongs to the process that compiled
    it, and in another one it returned wrong numbers (jax 0.9.2, a sum over four devices in two processes).
    """
    if folder and not (jax.process_count() > 1 and jax.default_backend() == "cpu"):
        jax.config.update("jax_compilation_cache_dir", str(Path(folder).resolve()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def main(work: Callable[[], object], flag: str = "--out") -> None:
    """Runs a command line; a user's mistake is one line on stderr and exit code 2.

    flag: the one that names the folder which the command uses.
    """
    tune_xla()
    try:
        with signals.second_signal_quits():
            work()
    except NotWritten as error:
        complain(str(error))
        leave(1)
    except UserError as error:
        sys.exit(complain(str(error)))
    except KeyboardInterrupt:  # the second Ctrl-C: at once, without a checkpoint of the iteration under way
        sys.exit(signals.QUIT)
    except OSError as error:  # no permission, disk full, read-only: the system's own reason
        if error.errno in NOBODY_READS and error.filename is None:  # as in `train.py --help | head`
            let_go(sys.stdout)
            sys.exit(UNREAD)
        if error.errno in NO_ROOM:
            sys.exit(complain(f"cannot write to the folder of {flag}: {error.strerror}; make room, then start again"))
        if error.filename is None:
            raise
        sys.exit(complain(f"cannot use {error.filename}: {error.strerror}; choose another folder with {flag}"))


def complain(text: str) -> int:
    print(f"error: {' '.join(text.split())}", file=sys.stderr)
    return 2


def leave(code: int) -> None:
    """Ends the process at once: after a failed save the threads of Orbax keep it alive and print their own errors."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
