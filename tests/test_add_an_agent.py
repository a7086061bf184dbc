"""docs/add-an-agent.md as a reader would follow it: its file, one line in the registry, and it trains."""

import ast
import re
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from trainer_helpers import Walk, build, tiny

from genda_mjx import agents, evaluate, networks

PAGE = Path(__file__).parent.parent / "docs" / "add-an-agent.md"


@pytest.fixture
def lsd(tmp_path, monkeypatch):
    """The page's first block as a module of the package, its second as a line of the registry."""
    source, line = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    name = ast.literal_eval(line.strip().rstrip(","))
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.setattr(agents, "__path__", [*agents.__path__, str(tmp_path)])
    monkeypatch.setattr(agents, "AGENTS", [*agents.AGENTS, name])
    yield name
    del sys.modules[f"genda_mjx.agents.{name}"]


def test_the_page_s_agent_learns(lsd):
    config = tiny(
        algo=lsd,
        num_envs=8,
        warmup_episodes=32,
        batch_size=32,
        utd=0.5,
        iterations_per_dispatch=25,
        learning_rate=3e-3,
        buffer_size=1600,
    )
    env = Walk()
    built = build(config, env)
    agent, program = built.agent, built.program
    state, metrics = program.run(program.init(jax.random.key(0)), np.int32(25))
    progress = metrics["phi_dot"][4:]  # after the warm-up
    assert np.isfinite(progress).all() and progress[-5:].mean() > 5 * abs(progress[0])
    bounded, _ = networks.spectral_normalised(state.agent.params["phi"], state.agent.buffers["vectors"])
    for kernel in (leaf for leaf in jax.tree.leaves(bounded) if leaf.ndim == 2):
        assert np.linalg.svd(kernel, compute_uv=False)[0] == pytest.approx(1, abs=0.05)

    key = evaluate.evaluation_key(0, 0)
    run = evaluate.compile(env, agent, 24, jax.eval_shape(lambda: state.agent))
    skills, random = (
        evaluate.summary(env, agent, run(state.agent, key, np.zeros(2, np.float32), flag))["coverage"]
        for flag in (np.False_, np.True_)
    )
    assert skills > 1.3 * random
