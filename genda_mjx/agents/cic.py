"""CIC (Laskin et al. 2022): a contrastive embedding of states, and a reward for states that lie far from each other.

As the CSF repository runs it: the contrastive loss ties a transition to its skill and so shapes the embedding g, but
the reward is the particle entropy of g alone. A skill is a Gaussian of 64 dimensions (the preset of --algo cic), and
all embeddings have its dimension d.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from genda_mjx import devices, encoders, networks
from genda_mjx.agents import csf, sac
from genda_mjx.agents import representation as rep
from genda_mjx.agents.base import Agent, AgentState, Batch, Metrics, Params, Spec, advance, begin, grad, pick, track
from genda_mjx.agents.skills import SkillSpace, unit
from genda_mjx.config import AgentOptions, Config

MODEL = ("state_embed", "transition_embed", "skill_embed")
TEMPERATURE = 0.5  # of the contrastive loss
NEIGHBOURS = 16  # of the particle entropy
DISTANCE_FLOOR = 5e-4  # subtracted from each scaled distance; nearer points pay nothing


class Moments(NamedTuple):
    """Running mean and variance of a number."""

    mean: Array
    variance: Array
    count: Array


def no_moments() -> Moments:
    """The moments before any value: a guess that hardly counts."""
    return Moments(jnp.float32(0.0), jnp.float32(1.0), jnp.float32(1e-4))


def observe(moments: Moments, x: Array) -> Moments:
    """Joins the values x [...] to those seen before, weighing both by their number."""
    count = moments.count + x.size
    weight, delta = x.size / count, x.mean() - moments.mean
    variance = (1 - weight) * moments.variance + weight * x.var(ddof=1) + weight * (1 - weight) * delta**2
    return Moments(moments.mean + weight * delta, variance, count)


def contrastive_loss(query: Array, key: Array) -> Array:
    """Cross-entropy of a skill's query [B, d] with the key [B, d] of its own transition among all of the batch.

    As in the official code, the sum loses not its positive but the largest value that the positive can have.
    """
    query, key = unit(query), unit(key)
    similarity = query @ devices.gather(key).T / TEMPERATURE
    negatives = jnp.maximum(jnp.exp(similarity).sum(-1) - math.exp(1 / TEMPERATURE), 1e-6)
    return (jnp.log(negatives + 1e-6) - (query * key).sum(-1) / TEMPERATURE).mean()


def nearest_distances(source: Array, target: Array, k: int) -> Array:
    """[B, k] from each row of source [B, d] to the nearest rows of target [B, d], in the batch of all devices."""
    target = devices.gather(target)
    k = min(k, len(target))
    distance = jnp.linalg.norm(source[:, None] - target[None], axis=-1)
    return -jax.lax.top_k(-distance, k)[0]


def entropy_reward(distances: Array, scale: Array) -> Array:
    """[B] particle estimate of entropy from the distances [B, k] to the nearest neighbours."""
    return jnp.log1p(jnp.maximum(distances / scale - DISTANCE_FLOOR, 0).mean(-1))


@dataclass(frozen=True)
class Options(AgentOptions):
    """Other defaults, as in the CSF repository's scripts."""

    def defaults(self) -> dict[str, Any]:
        return {"skill_dim": 64} | csf.SCHEDULE


def make(config: Config, spec: Spec) -> Agent:
    embed = rep.network(config, spec)
    net = embed.clone(withheld=0)
    policy = sac.baseline(config, spec)
    adam = optax.adam(config.learning_rate)

    def init(key: Array) -> AgentState:
        key_state, key_transition, key_skill, key_actor, key_critic, key_vectors = jax.random.split(key, 6)
        z = jnp.zeros((1, config.skill_dim))
        params = policy.init(key_actor, key_critic, spec.observation, spec.observation, config.skill_dim) | {
            "state_embed": embed.init(key_state, encoders.blank(spec.observation)),
            "transition_embed": net.init(key_transition, z, z),
            "skill_embed": net.init(key_skill, z),
        }
        optimizers = policy.init_optimizers(params) | {"model": adam.init(pick(params, MODEL))}
        vectors = networks.spectral_vectors(key_vectors, params["skill_embed"])
        return begin(params, ["critic"], optimizers, {"skill_vectors": vectors, "distances": no_moments()})

    def embed_states(params: Params, batch: Batch) -> tuple[Array, Array]:
        """g(s), g(s') [B, d] in one forward."""
        now, following = jnp.split(embed.apply(params["state_embed"], encoders.concatenate(batch.s, batch.s_next)), 2)
        return now, following

    def model_loss(params: Params, vectors: list[Array], batch: Batch) -> tuple[Array, list[Array]]:
        """The contrastive loss; the skill embedding alone has its layers spectrally normalised."""
        skill_embed, vectors = networks.spectral_normalised(params["skill_embed"], vectors)
        query = net.apply(skill_embed, batch.z_roll)
        key = net.apply(params["transition_embed"], *embed_states(params, batch))
        return contrastive_loss(query, key), vectors

    def update(state: AgentState, batch: Batch, key: Array) -> tuple[AgentState, Metrics]:
        """The embeddings, then SAC with the particle entropy of the new g."""
        params, vectors = pick(state.params, MODEL), state.buffers["skill_vectors"]
        (loss, vectors), grads = grad(model_loss, params, vectors, batch)
        state = advance(state, "model", adam, grads)
        distances = nearest_distances(*embed_states(state.params, batch), NEIGHBOURS)
        moments = observe(state.buffers["distances"], devices.gather(distances))
        state = state.replace(buffers={"skill_vectors": vectors, "distances": moments})
        # The official code divides by what it calls a standard deviation, which is the variance.
        reward = entropy_reward(distances, moments.variance)
        state, metrics = policy.step(state, sac.Rows.of(batch), batch.z_roll, reward, *jax.random.split(key))
        return track(state, config.ema_rate), metrics | {"contrastive_loss": loss, "distance": distances.mean()}

    return Agent(
        init=init,
        skills=SkillSpace("normals", config.skill_dim),
        act=policy.act_on_state,
        update=update,
        shown=("contrastive_loss", "alpha"),
        scratch_rows=20,
        scratch_pairs=64,  # the differences of all pairs in 64 dimensions
    )
