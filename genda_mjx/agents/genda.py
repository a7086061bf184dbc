"""GenDa: relabelled skills, a representation kept uniform, and a policy that sees only what phi does not.

The order of an update is the official code's: (CIB, phi, lambda) from the old parameters, critic, actor and
temperature, moving averages, gate. See docs/fidelity.md for every choice between the paper and that code.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.lax import stop_gradient

from genda_mjx import networks
from genda_mjx.agents import cib, relabel, sac
from genda_mjx.agents import representation as rep
from genda_mjx.agents.base import Agent, AgentState, Batch, Metrics, Params, Sizes, descend, sphere
from genda_mjx.config import Config

MODEL = ("phi", "encoder", "decoder", "log_lambda")  # one Adam: these losses share no parameter and see the old phi
POLICY = ("actor", "log_alpha")


def make(config: Config, sizes: Sizes) -> Agent:
    net = Networks(config, sizes)
    model_adam = optax.adam(config.learning_rate)
    critic_adam = optax.adam(config.learning_rate)
    policy_adam = optax.adam(config.learning_rate)
    gate_adam = optax.adam(config.gate_learning_rate)

    def init(key: Array) -> AgentState:
        params = net.init(key)
        return AgentState(
            params=params,
            targets={name: jax.tree.map(jnp.copy, params[name]) for name in ("phi", "critic")},
            optimizers={
                "model": model_adam.init(pick(params, MODEL)),
                "critic": critic_adam.init(params["critic"]),
                "policy": policy_adam.init(pick(params, POLICY)),
                "gate": gate_adam.init(params["gate"]),
            },
            constants={"planes": relabel.draw_planes(jax.random.fold_in(key, 1), config.gate_planes, config.skill_dim)},
            updates=jnp.zeros((), jnp.int32),
        )

    def sample_skill(key: Array, n: int) -> Array:
        return sphere(key, n, config.skill_dim)

    def act(state: AgentState, obs: Array, z: Array, key: Array | None = None) -> Array:
        mean, log_std = net.actor(state.params["actor"], net.local(state.params, obs), z)
        return jnp.tanh(mean) if key is None else networks.sample_tanh_gaussian(mean, log_std, key)[0]

    def labels(state: AgentState, batch: Batch, key: Array) -> tuple[Array, Array, Array]:
        """z-step, Eq. 4 and 8: labels for phi and for the policy [B, d], and the share of rollout skills kept."""
        if config.no_relabel:
            return batch.z_roll, batch.z_roll, jnp.ones(())
        size = len(batch.s)
        n_c = {"mix": round(size * config.mix_ratio), "c": size}.get(config.relabel, 0)
        start, end, now, later = jnp.split(
            net.phi(state.targets["phi"], jnp.concatenate([batch.s_0, batch.s_T, batch.s[:n_c], batch.s_c[:n_c]])),
            [size, 2 * size, 2 * size + n_c],
        )
        z_tau = rep.unit(end - start)
        if config.relabel == "roll":
            return z_tau, batch.z_roll, jnp.ones(())
        if config.relabel == "random":
            return z_tau, sample_skill(key, size), jnp.zeros(())
        z_mix = relabel.mix(rep.unit(later - now), z_tau)
        if config.relabel != "mix":
            return z_tau, z_mix, jnp.zeros(())
        logit = net.gate(state.params["gate"])[relabel.skill_code(batch.z_roll, state.constants["planes"])]
        keep = relabel.keep_rollout(logit, config.keep_threshold)
        return z_tau, jnp.where(keep[:, None], batch.z_roll, z_mix), keep.mean()

    def model_loss(params: Params, batch: Batch, z: Array, key: Array) -> tuple[Array, Metrics]:
        """phi-step (Eq. 6), lambda and CIB (Eq. 9) in one gradient; one forward of phi for the four states."""
        states = jnp.stack([batch.s, batch.s_next, batch.s_0, batch.s_T])
        now, following, start, end = net.phi(params["phi"], states)
        step = following - now
        constraint = rep.step_constraint(step, config.slack)
        multiplier = jnp.exp(params["log_lambda"])
        metrics = {
            "phi_loss": rep.representation_loss(step, z, constraint, multiplier),
            "lambda_loss": rep.multiplier_loss(params["log_lambda"], constraint),
        }
        loss = metrics["phi_loss"] + metrics["lambda_loss"]
        if not config.no_relabel:
            metrics["uniformity"] = rep.uniformity_loss(rep.unit(end - start))
            loss += config.beta * metrics["uniformity"]
        if not config.no_cib:
            mean, log_std = net.encoder(params["encoder"], batch.s)
            local = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
            decoded = net.decoder(params["decoder"], stop_gradient(now), local)
            metrics["reconstruction"] = cib.reconstruction_loss(decoded, batch.s)
            metrics["kl"] = cib.kl_loss(mean, log_std)
            loss += metrics["reconstruction"] + config.kl_weight * metrics["kl"]
        metrics |= {"phi_dot": rep.reward(step, z).mean(), "constraint": constraint.mean(), "lambda": multiplier}
        return loss, metrics

    def update(state: AgentState, batch: Batch, key: Array) -> tuple[AgentState, Metrics]:
        """One gradient step of everything on one batch."""
        key_label, key_cib, key_next, key_actor, key_prior = jax.random.split(key, 5)
        params, optimizers, targets = dict(state.params), dict(state.optimizers), dict(state.targets)
        z_tau, z, kept = labels(state, batch, key_label)

        # phi, lambda, CIB: all from the old parameters.
        grads, metrics = jax.grad(model_loss, has_aux=True)(pick(params, MODEL), batch, z_tau, key_cib)
        new, optimizers["model"] = descend(model_adam, grads, optimizers["model"], pick(params, MODEL))
        params |= new

        # Critic: the new phi pays the reward, the new encoder shows the states, the old actor chooses a'.
        now, following = net.phi(params["phi"], jnp.stack([batch.s, batch.s_next]))
        local, local_next = net.local(params, jnp.stack([batch.s, batch.s_next]))
        reward = rep.reward(following - now, z)
        a_next, log_prob_next = networks.sample_tanh_gaussian(*net.actor(params["actor"], local_next, z), key_next)
        q_next = net.critic(targets["critic"], batch.s_next, z, a_next)
        alpha = jnp.exp(params["log_alpha"])
        target = sac.critic_target(reward, q_next, log_prob_next, alpha, config.discount)

        def critic_loss(p: Params) -> tuple[Array, Array]:
            q = net.critic(p, batch.s, z, batch.a)
            return sac.critic_loss(q, target), q

        (metrics["critic_loss"], q), grads = jax.value_and_grad(critic_loss, has_aux=True)(params["critic"])
        params["critic"], optimizers["critic"] = descend(critic_adam, grads, optimizers["critic"], params["critic"])

        # Actor and temperature: through the new critic.
        def policy_loss(p: Params) -> tuple[Array, tuple[Array, Array]]:
            a, log_prob = networks.sample_tanh_gaussian(*net.actor(p["actor"], local, z), key_actor)
            loss = sac.actor_loss(net.critic(params["critic"], batch.s, z, a), log_prob, jnp.exp(p["log_alpha"]))
            return loss + sac.temperature_loss(p["log_alpha"], log_prob, -sizes.action), (loss, log_prob)

        grads, (actor_loss, log_prob) = jax.grad(policy_loss, has_aux=True)(pick(params, POLICY))
        new, optimizers["policy"] = descend(policy_adam, grads, optimizers["policy"], pick(params, POLICY))
        params |= new

        targets = optax.incremental_update(pick(params, targets), targets, config.ema_rate)
        if not config.no_relabel and config.relabel == "mix":
            prior = sample_skill(key_prior, len(z))
            codes = relabel.skill_code(jnp.concatenate([z_tau, prior]), state.constants["planes"])
            gate_loss = lambda p: relabel.gate_loss(*jnp.split(net.gate(p)[codes], 2))
            metrics["gate_loss"], grads = jax.value_and_grad(gate_loss)(params["gate"])
            params["gate"], optimizers["gate"] = descend(gate_adam, grads, optimizers["gate"], params["gate"])

        metrics |= {"reward": reward.mean(), "q": q.mean(), "actor_loss": actor_loss, "log_prob": log_prob.mean(),
                    "alpha": alpha, "kept": kept}  # fmt: skip
        return AgentState(params, targets, optimizers, state.constants, state.updates + 1), metrics

    return Agent(init, sample_skill, act, update, lambda state, obs: net.phi(state.params["phi"], obs))


def pick(params: Params, names: Any) -> Params:
    """The named parts that exist; ablations have fewer."""
    return {name: params[name] for name in names if name in params}


class Networks:
    """The networks as functions of (parameters, inputs), with the inputs joined in one place."""

    def __init__(self, config: Config, sizes: Sizes):
        dtype = jnp.bfloat16 if config.bf16 else jnp.float32
        self.config, self.sizes = config, sizes
        self._phi = networks.MLP(config.hidden, config.skill_dim, dtype)
        self._actor = networks.Gaussian(config.hidden, sizes.action, dtype=dtype)
        self._critic = networks.twin_critic(config.hidden, dtype)
        self._encoder = networks.Gaussian(config.hidden, config.cib_dim, networks.LECUN, dtype)
        self._decoder = networks.MLP(config.hidden, sizes.observation, dtype)
        self._gate = networks.Gate(2**config.gate_planes)

    def init(self, key: Array) -> Params:
        keys = iter(jax.random.split(key, 6))
        s, a = jnp.zeros((1, self.sizes.observation)), jnp.zeros((1, self.sizes.action))
        z, local = jnp.zeros((1, self.config.skill_dim)), jnp.zeros((1, self.config.cib_dim))
        seen = s if self.config.no_cib else local
        params = {
            "phi": self._phi.init(next(keys), s),
            "actor": self._actor.init(next(keys), jnp.concatenate([seen, z], -1)),
            "critic": self._critic.init(next(keys), jnp.concatenate([s, z, a], -1)),
            "gate": self._gate.init(next(keys)),
            "log_lambda": jnp.log(jnp.float32(self.config.initial_lambda)),
            "log_alpha": jnp.log(jnp.float32(self.config.initial_alpha)),
        }
        if not self.config.no_cib:
            params["encoder"] = self._encoder.init(next(keys), s)
            params["decoder"] = self._decoder.init(next(keys), jnp.concatenate([z, local], -1))
        return params

    def phi(self, params: Params, s: Array) -> Array:
        """[..., obs] -> [..., d]. Leading axes are joined: the gradient is then a plain product, without transposes."""
        return self._phi.apply(params, s.reshape(-1, s.shape[-1])).reshape(*s.shape[:-1], -1)

    def encoder(self, params: Params, s: Array) -> tuple[Array, Array]:
        return self._encoder.apply(params, s)

    def decoder(self, params: Params, phi: Array, local: Array) -> Array:
        return self._decoder.apply(params, jnp.concatenate([phi, local], -1))

    def local(self, params: Params, s: Array) -> Array:
        """Eq. 10, what the actor sees: the mean of the CIB embedding, or the state itself without CIB."""
        return s if self.config.no_cib else self.encoder(params["encoder"], s)[0]

    def actor(self, params: Params, local: Array, z: Array) -> tuple[Array, Array]:
        return self._actor.apply(params, jnp.concatenate([local, z], -1))

    def critic(self, params: Params, s: Array, z: Array, a: Array) -> Array:
        return self._critic.apply(params, jnp.concatenate([s, z, a], -1))

    def gate(self, params: Params) -> Array:
        """[codes] logits, one for every skill code."""
        return self._gate.apply(params)
