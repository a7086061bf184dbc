"""Pods: the same command in several processes, one on each host, that train one run together.

Every process runs the whole loop on the same numbers; process 0, the lead, alone writes files other than checkpoints,
prints and logs. docs/pods.md has the commands.
"""

import glob
import importlib.util
import os
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from genda_mjx.config import Config, UserError


def start(config: Config) -> None:
    """Joins the other processes, if there are any. Must run before the first use of a device."""
    if jax.distributed.is_initialized():
        return
    if config.coordinator:
        if config.num_processes < 1 or not 0 <= config.process_id < config.num_processes:
            raise UserError(
                f"--coordinator needs --num_processes and --process_id from 0 to one less, got {config.num_processes} "
                f"and {config.process_id}"
            )
        jax.distributed.initialize(config.coordinator, config.num_processes, config.process_id)
    elif config.num_processes > 1 or config.process_id >= 0:
        raise UserError("--num_processes and --process_id need --coordinator HOST:PORT, the address of process 0")
    elif under_slurm() or on_tpu():
        jax.distributed.initialize()
        if one_task_a_node():  # jax gives each task of Slurm one GPU, however many tasks there are
            jax.config.update("jax_cuda_visible_devices", "all")
            jax.config.update("jax_rocm_visible_devices", "all")


def under_slurm() -> bool:
    """Whether this is a Slurm step of several tasks, as srun starts them."""
    return "SLURM_STEP_NODELIST" in os.environ and int(os.environ.get("SLURM_NTASKS", 1)) > 1


def one_task_a_node() -> bool:
    """Whether Slurm started one task per node, which then has all GPUs of the node, not just that of its number."""
    return under_slurm() and os.environ["SLURM_NTASKS"] == os.environ.get("SLURM_STEP_NUM_NODES")


def on_tpu() -> bool:
    """Whether this is a TPU host, of a pod or alone."""
    wanted = os.environ.get("JAX_PLATFORMS", "tpu")
    has_chips = glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*")
    return "tpu" in wanted and bool(has_chips) and importlib.util.find_spec("libtpu") is not None


def is_lead() -> bool:
    return jax.process_index() == 0


def any_of(flag: bool) -> bool:
    """True on all processes if it is on one."""
    return flag if jax.process_count() == 1 else bool(multihost_utils.process_allgather(np.array(flag)).any())


def wait_for_lead(error: UserError | None = None) -> None:
    """Waits for the lead, which does something first that can fail: all go on, or each stops with a message."""
    if any_of(error is not None):
        raise error or UserError("process 0 cannot start the run; its message says why")


def in_lead(check: Callable[[], None]) -> None:
    """Runs a check in the lead only; if it fails, all stop."""
    error = None
    if is_lead():
        try:
            check()
        except UserError as found:
            error = found
    wait_for_lead(error)
