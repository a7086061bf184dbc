"""What a skill can be: a direction, a Gaussian vector, or one of a list."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

LIST_LENGTH = 16  # skills of a list where METRA's or CSF's are one, as in METRA's HalfCheetah script
FREE_RANGE = 1.5  # Gaussian skills (CIC) from a controller's action: z = 1.5 a_h, as in the CSF repo


@dataclass(frozen=True)
class SkillSpace:
    """All that the rest of the program knows of an agent's skills z [n, dim]."""

    kind: Literal["directions", "normals", "list"]
    dim: int  # d; the number of skills where they are a list

    def sample(self, key: Array, n: int) -> Array:
        """[n, d] from the prior: what episodes are collected with."""
        prior = {"directions": directions, "normals": normals, "list": one_hots}[self.kind]
        return prior(key, n, self.dim)

    def show(self, key: Array, n: int) -> Array:
        """[n, d] for an evaluation: samples, or each skill of a list in turn."""
        return each_in_turn(n, self.dim) if self.is_list else self.sample(key, n)

    @property
    def is_list(self) -> bool:
        return self.kind == "list"

    def target(self, z: Array) -> Array:
        """[..., d] where a latent step of the skill z should point: along z, for a list away from the others."""
        return centred(z) if self.is_list else z

    def from_action(self, action: Array) -> Array:
        """A controller's action, [B, d] in (-1, 1) or [B] indices into a list -> z [B, d]."""
        if self.is_list:
            return each_in_turn(self.dim, self.dim)[action]
        return unit(action) if self.kind == "directions" else FREE_RANGE * action

    def colors(self, z: np.ndarray) -> np.ndarray:
        """[E, d] -> [E, 3] hue, saturation, value. Hue is the angle of the first two dimensions, a third one darkens;
        the skills of a list have a hue each."""
        z = np.asarray(z)
        value = np.full(len(z), 0.9)
        if self.is_list:
            hue = z.argmax(-1) / self.dim
        else:
            first, second, third = (z[:, i] if self.dim > i else np.zeros(len(z)) for i in range(3))
            hue = np.arctan2(second, first) / (2 * np.pi) % 1.0
            value = np.clip(0.75 + 0.25 * third, 0, 1) if self.dim > 2 else value
        return np.stack([hue, np.full(len(z), 0.9), value], -1)


def unit(x: Array) -> Array:
    """[..., d] scaled to length 1. The norm has a finite gradient at 0, where two equal states put it."""
    squared = (x**2).sum(-1, keepdims=True)
    safe = jnp.where(squared > 0, squared, 1.0)
    return x / (jnp.where(squared > 0, jnp.sqrt(safe), 0.0) + 1e-8)


def directions(key: Array, n: int, dim: int) -> Array:
    """[n, d] uniform on the sphere: the prior of GenDa, METRA and CSF."""
    x = jax.random.normal(key, (n, dim))
    return x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + 1e-8)


def normals(key: Array, n: int, dim: int) -> Array:
    """[n, d] standard normal, of any length: the prior of CIC."""
    return jax.random.normal(key, (n, dim))


def one_hots(key: Array, n: int, dim: int) -> Array:
    """[n, d] uniform over d skills: the prior of DIAYN and of discrete METRA and CSF."""
    return jax.nn.one_hot(jax.random.randint(key, (n,), 0, dim), dim)


def each_in_turn(n: int, dim: int) -> Array:
    """One-hots [n, d] of the skills 0, 1, ..., as evenly as n allows."""
    return jax.nn.one_hot(jnp.arange(n) % dim, dim)


def centred(z: Array) -> Array:
    """One-hot [B, d] -> 1 on the chosen dimension, -1/(d-1) elsewhere: discrete skills then push apart."""
    dim = z.shape[-1]
    return (z - z.mean(-1, keepdims=True)) * dim / max(dim - 1, 1)
