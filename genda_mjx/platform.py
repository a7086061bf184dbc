"""Accelerators that a program can be compiled for without having one: `--compile_for v5e:2x2`, `--compile_for a100:4`.

jax compiles for the description of a chip ("compile-only"): libtpu and the CUDA plugin hold the real compilers and need
neither chip nor driver. What comes out is the program that would run there, with its exact memory; its time can only be
estimated (`costs.py`).
"""

import importlib.util
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from genda_mjx.config import UserError
from genda_mjx.devices import AXIS

GB, TERA = 1e9, 1e12
PLUGINS = {  # platform -> module that must be there, and how to get it
    "tpu": ("libtpu", 'pip install "jax[tpu]==0.9.2"'),
    "cuda": ("jax_cuda12_plugin", 'pip install "jax-cuda12-plugin[with-cuda]==0.9.2"'),
}


class Gpu(NamedTuple):
    """What XLA's description of a GPU has beside the data sheet of a chip."""

    device: str
    capability: str
    cores: int
    units_per_core: int
    l2_cache: int  # bytes
    shared_memory: int  # bytes per core


@dataclass(frozen=True)
class Chip:
    """One chip by its vendor's data sheet."""

    name: str
    platform: str  # tpu or cuda
    memory: float  # bytes
    bfloat16: float  # FLOP/s of matrix products
    float32: float  # FLOP/s of matrix products with float32 inputs; on TPUs six bfloat16 passes
    vector: float  # FLOP/s outside of matrix products
    bandwidth: float  # bytes/s of its memory
    clock: float  # Hz
    dimensions: int = 2  # of a TPU's torus
    single: bool = False  # a TPU host may have one chip
    gpu: Gpu | None = None


def _tpu(name: str, memory: float, bfloat16: float, bandwidth: float, clock: float, **more: Any) -> Chip:
    # A guess: eight sublanes by 128 lanes of the vector unit, four operations each.
    vector = 8 * 128 * 4 * clock
    return Chip(name, "tpu", memory, bfloat16, bfloat16 / 6, vector, bandwidth, clock, **more)


# From memory of the data sheets; of the clocks only v5e's and the GPUs' were checked against a source.
CHIPS = {
    chip.name: chip
    for chip in (
        _tpu("v4", 32 * GB, 275 * TERA, 1228 * GB, 1.05e9, dimensions=3),
        _tpu("v5e", 16 * GB, 197 * TERA, 819 * GB, 1.5e9, single=True),
        _tpu("v5p", 95 * GB, 459 * TERA, 2765 * GB, 1.75e9, dimensions=3),
        _tpu("v6e", 32 * GB, 918 * TERA, 1640 * GB, 1.7e9, single=True),
        _tpu("tpu7x", 192 * GB, 2307 * TERA, 7370 * GB, 1.9e9, dimensions=3),
        Chip(
            *("a100", "cuda", 85.1 * GB, 312 * TERA, 19.5 * TERA, 19.5 * TERA, 2039 * GB, 1.41e9),
            gpu=Gpu("NVIDIA A100-SXM4-80GB", "major: 8 minor: 0", 108, 64, l2_cache=40 << 20, shared_memory=164 << 10),
        ),
        Chip(
            *("h100", "cuda", 84.9 * GB, 989 * TERA, 67 * TERA, 67 * TERA, 3352 * GB, 1.98e9),
            gpu=Gpu("NVIDIA H100 80GB HBM3", "major: 9 minor: 0", 132, 128, l2_cache=50 << 20, shared_memory=228 << 10),
        ),
    )
}


@dataclass(frozen=True)
class Target:
    """So many chips of a kind."""

    chip: Chip
    count: int
    topology: str  # of TPUs, like 2x2x1

    def __str__(self) -> str:
        return f"{self.count} x {self.chip.name}" + (f" ({self.topology})" if self.chip.platform == "tpu" else "")


def parse(text: str) -> Target:
    """NAME, NAME:CHIPS or, for TPUs, NAME:TOPOLOGY."""
    name, _, size = text.partition(":")
    if name not in CHIPS:
        raise UserError(
            f"unknown target {name!r} in --compile_for {text}; choose one of {', '.join(CHIPS)}, like v5e:2x2"
        )
    chip = CHIPS[name]
    if not re.fullmatch(r"(\d+(x\d+)*)?", size):
        raise UserError(f"--compile_for {text}: after the colon comes a number of chips or a topology, like 4 or 2x2")
    if chip.platform == "cuda":
        if "x" in size:
            raise UserError(f"--compile_for {text}: GPUs have no topology; give their number, like {name}:4")
        return Target(chip, int(size or 1), "")
    topology = size if "x" in size else _topology(chip, int(size or (1 if chip.single else 4)))
    count = 1
    for side in topology.split("x"):
        count *= int(side)
    return Target(chip, count, topology)


def _topology(chip: Chip, count: int) -> str:
    """The squarest slice with so many chips."""
    known = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 256: "16x16"}
    if chip.dimensions == 3:
        known = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4"}
    if count not in known:
        raise UserError(f"{chip.name} comes in slices of {', '.join(map(str, known))} chips, not of {count}")
    return known[count]


def describe_all() -> str:
    """The targets, for --compile_for list."""
    lines = [
        f"{name:6s} {chip.memory / GB:4.0f} GB, {chip.bfloat16 / TERA:5.0f} TFLOP/s bf16, "
        f"{chip.bandwidth / GB:5.0f} GB/s   needs {PLUGINS[chip.platform][0]}: {PLUGINS[chip.platform][1]}"
        for name, chip in CHIPS.items()
    ]
    return "\n".join(["--compile_for NAME, NAME:CHIPS or (TPU) NAME:TOPOLOGY, like v5e:2x2 or a100:4", *lines])


def prepare(target: Target) -> None:
    """Before the first use of a device: this computer's CPU runs Python, the target's compiler is only called."""
    module, install = PLUGINS[target.chip.platform]
    if importlib.util.find_spec(module) is None:
        raise UserError(f"compiling for {target} needs {module}: {install}")
    os.environ["JAX_PLATFORMS"] = "cpu"
    jax.config.update("jax_platforms", "cpu")
    if target.chip.platform == "tpu":
        os.environ |= {
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_ACCELERATOR_TYPE": "v5litepod-4",
            "TPU_WORKER_HOSTNAMES": "localhost",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # its lock file would stop a second compilation
        }


def make_mesh(target: Target) -> Mesh:
    """Devices that can be compiled for but not used."""
    if target.chip.platform == "tpu":
        single = {"chips_per_host_bounds": (1, 1, 1)} if target.count == 1 else {}
        described = topologies.get_topology_desc(
            platform="tpu", topology_name=f"{target.chip.name}:{target.topology}", **single
        )
    else:
        described = _gpus(target)
    return jax.make_mesh((target.count,), (AXIS,), (AxisType.Auto,), devices=described.devices[: target.count])


def compile_counted(lowered: Any, target: Target) -> tuple[Any, int]:
    """The compiled program and the bytes of its scratch.

    jax's figure for a TPU is the scratch and, once more, what lies idle between its buffers: 1,163 MB with the dog's
    paper schedule, where libtpu allocates 825 and calls 338 of these fragmentation. So libtpu's own list is read; a
    program from a cache comes without one.
    """
    if target.chip.platform != "tpu":
        compiled = lowered.compile()
        return compiled, compiled.memory_analysis().temp_size_in_bytes
    with tempfile.TemporaryDirectory() as folder:
        compiled = lowered.compile(compiler_options={"xla_dump_to": folder, "xla_dump_hlo_as_text": True})
        lists = [path.read_text() for path in Path(folder).glob("*buffer-assignment.txt")]
    return compiled, max(map(assigned_scratch, lists), default=compiled.memory_analysis().temp_size_in_bytes)


def assigned_scratch(buffers: str) -> int:
    """Bytes of scratch in the chip's main memory; allocations of another colour are in its fast memories."""
    return sum(map(int, re.findall(r"^allocation \d+: size (\d+), preallocated-temp", buffers, re.MULTILINE)))


def _gpus(target: Target) -> topologies.TopologyDescription:
    from jax._src import xla_bridge

    known = xla_bridge.canonicalize_platform

    def canonical(platform: str) -> str:  # jax asks for "gpu" and would want a GPU behind the name
        return "cuda" if platform == "gpu" else known(platform)

    xla_bridge.canonicalize_platform = canonical
    try:
        return topologies.get_topology_desc(
            platform="cuda", topology=f"1x1x{target.count}", target_config=gpu_description(target.chip)
        )
    finally:
        xla_bridge.canonicalize_platform = known


def gpu_description(chip: Chip) -> str:
    """XLA's GpuTargetConfigProto as text."""
    gpu = chip.gpu
    numbers = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 48 << 10,
        "shared_memory_per_core": gpu.shared_memory,
        "threads_per_core_limit": 2048,
        "core_count": gpu.cores,
        "fpus_per_core": gpu.units_per_core,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 65535,
        "block_dim_limit_z": 65535,
        "memory_bandwidth": int(chip.bandwidth),
        "l2_cache_size": gpu.l2_cache,
        "clock_rate_ghz": chip.clock / 1e9,
        "device_memory_size": int(chip.memory),
        "shared_memory_per_block_optin": gpu.shared_memory - 1024,
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
    }
    fields = " ".join(f"{name}: {value}" for name, value in numbers.items())
    return (
        f"gpu_device_info {{ {fields} cuda_compute_capability {{ {gpu.capability} }} }} "
        'platform_name: "CUDA" dnn_version_info { major: 9 } '
        f'device_description_str: "{gpu.device}"'
    )
