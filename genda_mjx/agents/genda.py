"""GenDa: relabelled skills, a representation kept uniform, and a policy that sees only what phi does not.

The order of an update is the official code's: (CIB, phi, lambda) from the old parameters, critic, actor and
temperature, moving averages. The gate learns with the first, whose labels it sees: no other step touches it. See
docs/fidelity.md for every choice between the paper and that code.
"""

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.lax import stop_gradient

from genda_mjx import devices, networks
from genda_mjx.agents import cib, relabel, sac, skills
from genda_mjx.agents import representation as rep
from genda_mjx.agents.base import Agent, AgentState, Batch, Metrics, Params, Sizes, advance, begin, grad, pick, track
from genda_mjx.config import Config

MODEL = ("phi", "encoder", "decoder", "log_lambda")  # one Adam: these losses share no parameter and see the old phi


def make(config: Config, sizes: Sizes) -> Agent:
    net = Networks(config, sizes)
    policy = sac.of(config, sizes.action, target_entropy=-sizes.action)
    learns_gate = not config.no_relabel and config.relabel == "mix"
    model_adam, gate_adam = optax.adam(config.learning_rate), optax.adam(config.gate_learning_rate)

    def init(key: Array) -> AgentState:
        key_phi, key_actor, key_critic, *keys = jax.random.split(key, 6)
        seen = sizes.observation if config.no_cib else config.cib_dim
        params = net.init(key_phi, *keys) | policy.init(
            key_actor, key_critic, seen, sizes.observation, config.skill_dim
        )
        optimizers = {"model": model_adam.init(pick(params, MODEL)), "gate": gate_adam.init(pick(params, ["gate"]))}
        planes = relabel.draw_planes(jax.random.fold_in(key, 1), config.gate_planes, config.skill_dim)
        return begin(params, ["phi", "critic"], optimizers | policy.init_optimizers(params), {"planes": planes})

    def sample_skill(key: Array, n: int) -> Array:
        return skills.directions(key, n, config.skill_dim)

    def act(state: AgentState, obs: Array, z: Array, key: Array | None = None) -> Array:
        return policy.act(state.params, net.local(state.params, obs), z, key)

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
            return z_tau, devices.own_rows(lambda rows: sample_skill(key, rows), size), jnp.zeros(())
        z_mix = relabel.mix(rep.unit(later - now), z_tau)
        if config.relabel != "mix":
            return z_tau, z_mix, jnp.zeros(())
        logit = net.gate(state.params["gate"])[relabel.skill_code(batch.z_roll, state.buffers["planes"])]
        keep = relabel.keep_rollout(logit, config.keep_threshold)
        return z_tau, jnp.where(keep[:, None], batch.z_roll, z_mix), keep.mean()

    def model_loss(
        params: Params, planes: Array, batch: Batch, z: Array, key_cib: Array, key_prior: Array
    ) -> tuple[Array, Metrics]:
        """phi-step (Eq. 6), lambda, CIB (Eq. 9) and gate in one gradient; one forward of phi for the four states."""
        states = jnp.stack([batch.s, batch.s_next, batch.s_0, batch.s_T])
        now, following, start, end = net.phi(params["phi"], states)
        step = following - now
        constraint = rep.step_constraint(step, config.slack)
        multiplier = jnp.exp(params["log_lambda"])
        metrics = {
            "phi_loss": rep.representation_loss(step, z, constraint, multiplier),
            "lambda_loss": rep.multiplier_loss(multiplier, constraint),
        }
        loss = metrics["phi_loss"] + metrics["lambda_loss"]
        if not config.no_relabel:
            metrics["uniformity"] = rep.uniformity_loss(rep.unit(end - start))
            loss += config.beta * metrics["uniformity"]
        if not config.no_cib:
            mean, log_std = net.encoder(params["encoder"], batch.s)
            noise = devices.own_rows(lambda rows: jax.random.normal(key_cib, (rows, config.cib_dim)), len(mean))
            local = mean + jnp.exp(log_std) * noise
            decoded = net.decoder(params["decoder"], stop_gradient(now), local)
            metrics["reconstruction"] = cib.reconstruction_loss(decoded, batch.s)
            metrics["kl"] = cib.kl_loss(mean, log_std)
            loss += metrics["reconstruction"] + config.kl_weight * metrics["kl"]
        if learns_gate:
            prior = devices.own_rows(lambda rows: sample_skill(key_prior, rows), len(z))
            codes = relabel.skill_code(jnp.concatenate([z, prior]), planes)
            metrics["gate_loss"] = relabel.gate_loss(*jnp.split(net.gate(params["gate"])[codes], 2))
            loss += metrics["gate_loss"]
        metrics |= {"phi_dot": rep.reward(step, z).mean(), "constraint": constraint.mean(), "lambda": multiplier}
        return loss, metrics

    def update(state: AgentState, batch: Batch, key: Array) -> tuple[AgentState, Metrics]:
        """One gradient step of everything on one batch."""
        key_label, key_cib, key_next, key_actor, key_prior = jax.random.split(key, 5)
        z_tau, z, kept = labels(state, batch, key_label)

        # phi, lambda, CIB and gate: all from the old parameters.
        parts = pick(state.params, [*MODEL, "gate"])
        (_, metrics), grads = grad(model_loss, parts, state.buffers["planes"], batch, z_tau, key_cib, key_prior)
        state = advance(state, "model", model_adam, pick(grads, MODEL))
        if learns_gate:
            state = advance(state, "gate", gate_adam, pick(grads, ["gate"]))

        # SAC: the new phi pays the reward, the new encoder shows the states.
        pair = jnp.stack([batch.s, batch.s_next])
        now, following = net.phi(state.params["phi"], pair)
        rows = sac.Rows(batch.s, batch.a, batch.s_next, *net.local(state.params, pair))
        state, more = policy.step(state, rows, z, rep.reward(following - now, z), key_next, key_actor)
        return track(state, config.ema_rate), metrics | more | {"kept": kept}

    return Agent(init, sample_skill, act, update, lambda state, obs: net.phi(state.params["phi"], obs))


class Networks:
    """The networks as functions of (parameters, inputs), with the inputs joined in one place."""

    def __init__(self, config: Config, sizes: Sizes):
        dtype = networks.precision(config.bf16)
        self.config, self.sizes = config, sizes
        self._phi = networks.MLP(config.hidden, config.skill_dim, dtype)
        self._encoder = networks.Gaussian(config.hidden, config.cib_dim, networks.LECUN, dtype)
        self._decoder = networks.MLP(config.hidden, sizes.observation, dtype)
        self._gate = networks.Gate(2**config.gate_planes)

    def init(self, key_phi: Array, key_gate: Array, key_encoder: Array, key_decoder: Array) -> Params:
        s = jnp.zeros((1, self.sizes.observation))
        z, local = jnp.zeros((1, self.config.skill_dim)), jnp.zeros((1, self.config.cib_dim))
        params = {
            "phi": self._phi.init(key_phi, s),
            "gate": self._gate.init(key_gate),
            "log_lambda": jnp.log(jnp.float32(self.config.initial_lambda)),
        }
        if not self.config.no_cib:
            params["encoder"] = self._encoder.init(key_encoder, s)
            params["decoder"] = self._decoder.init(key_decoder, jnp.concatenate([z, local], -1))
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

    def gate(self, params: Params) -> Array:
        """[codes] logits, one for every skill code."""
        return self._gate.apply(params)
