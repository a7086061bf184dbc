"""experiments.noise: how far a body goes by random actions of an entropy."""

import numpy as np
import pytest

from experiments import noise
from genda_mjx.config import UserError


@pytest.mark.parametrize("target", [-1.0, 0.0, 0.6])
def test_squashed_actions_have_the_entropy_that_they_are_drawn_for(target):
    actions = np.tanh(noise.spread_of(target) * np.random.default_rng(0).standard_normal(400_000))
    share, edges = np.histogram(actions, 400, (-1, 1))
    share = share[share > 0] / share.sum()
    assert -(share * np.log(share / (edges[1] - edges[0]))).sum() == pytest.approx(target, abs=0.01)


def test_more_noise_and_noise_that_is_held_go_further():
    found = noise.table(noise.Options("point", entropies=(-1.0, 0.3), held=(1, 10), episodes=4))
    ways = np.array([[float(cell) for cell in line.split("|")[2:-1]] for line in found.splitlines()[2:]])
    assert (ways[1] > ways[0]).all() and (ways[:, 1] > ways[:, 0]).all()


def test_mistakes():
    with pytest.raises(UserError, match="kitchen stays"):
        noise.table(noise.Options("kitchen"))
    with pytest.raises(UserError, match="point does not stand"):
        noise.table(noise.Options("point", start="standing"))
    with pytest.raises(UserError, match=r"below 0\.69"):
        noise.table(noise.Options("point", entropies=(0.7,)))
