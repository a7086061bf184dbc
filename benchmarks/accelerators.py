"""The run's program on the accelerators' own compilers, as a table: memory, estimated time and what the time goes into.

    .venv-compilers/bin/python -m benchmarks.accelerators --envs point --targets v5e a100 --chips 1 4 16 [-- --bf16]

`make test-accelerators` sets up .venv-compilers. No chip is needed; times are estimates (see genda_mjx/costs.py).
A row is a process of its own, and a body with contacts takes ten minutes to compile. Flags after -- go to every run.
"""

import dataclasses
import json
import subprocess
import sys

import tyro

COLUMNS = {
    "compile, CPU s": lambda f: f"{f['compile_cpu_seconds']:.0f}",
    "arguments, MB": lambda f: f"{f['arguments'] / 1e6:.0f}",
    "temp, MB": lambda f: f"{f['temp'] / 1e6:.0f}",
    "s per iteration (env steps), estimate": lambda f: f"{f['iteration_seconds']:.3g} ({f['steps_per_iteration']:,})",
    "split, estimate": lambda f: shares(f["seconds"]),
    "copies": lambda f: f"{f['counts']['copies']:,}",
    "sorts": lambda f: f"{f['counts']['sorts']:,}",
    "library calls": lambda f: f"{f['counts']['custom calls']:,}",
    "collectives": lambda f: f"{f['counts']['collectives']:,}",
    "operations": lambda f: f"{f['counts']['operations']:,}",
    "ring copies in loops": lambda f: f"{f['ring_copies_in_loops']:,}",
}


@dataclasses.dataclass(frozen=True)
class Options:
    envs: tuple[str, ...] = ("point",)
    presets: tuple[str, ...] = ("small",)
    targets: tuple[str, ...] = ("v5e", "a100")  # or with chips, like v5e:2x2
    chips: tuple[int, ...] = (1, 4)  # of each target that does not say how many
    minutes: float = 60.0  # time limit of a row


def shares(seconds: dict[str, float]) -> str:
    total = max(sum(seconds.values()), 1e-12)
    return ", ".join(f"{part} {value / total:.0%}" for part, value in seconds.items() if value / total >= 0.005)


def all_targets(options: Options) -> list[str]:
    """Every target with every number of chips."""
    return [
        target if ":" in target else f"{target}:{count}"
        for target in options.targets
        for count in (options.chips if ":" not in target else (0,))
    ]


def measure(env: str, preset: str, target: str, options: Options, flags: list[str]) -> dict | str:
    """What a compilation found, or the last line of its error."""
    command = [sys.executable, "-m", "genda_mjx.runs.compile_only", "--env", env, "--preset", preset]
    try:
        run = subprocess.run(
            [*command, "--compile_for", target, *flags], capture_output=True, text=True, timeout=60 * options.minutes
        )
    except subprocess.TimeoutExpired:
        return f"not compiled within {options.minutes:g} minutes"
    return json.loads(run.stdout.splitlines()[-1]) if run.returncode == 0 else run.stderr.strip().splitlines()[-1][:120]


def main() -> None:
    ours, _, flags = " ".join(sys.argv[1:]).partition(" -- ")
    options = tyro.cli(Options, args=ours.split())
    print(f"| run | {' | '.join(COLUMNS)} |\n{'|---' * (len(COLUMNS) + 1)}|", flush=True)
    for env in options.envs:
        for preset in options.presets:
            for target in all_targets(options):
                found = measure(env, preset, target, options, flags.split())
                cells = [column(found) for column in COLUMNS.values()] if isinstance(found, dict) else [found]
                print(f"| {env} {preset}, {target} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
