// The state of the page: which skill, from where, and the bodies that follow it.

import { Agent, Body } from "./body.js";
import { arrays } from "./data.js";
import { skillColor } from "./shapes.js";
import { Skills } from "./skills.js";

const SLICE = 12; // ms that physics may take of a frame; more where frames are slow anyway
const LONGEST = 120; // ms

export class World {
  constructor(mujoco, run, bytes) {
    Object.assign(this, { mujoco, run });
    const constants = arrays(run.arrays, bytes);
    const rows = (name) => {
      const { array, shape } = run.tables[name];
      const width = shape.slice(1).reduce((a, b) => a * b, 1);
      return Array.from({ length: shape[0] }, (_, i) => constants[array].subarray(i * width, (i + 1) * width));
    };
    this.starts = rows("qpos").map((qpos, i) => ({
      qpos, qvel: rows("qvel")[i], act: rows("act")[i], sensors: rows("sensors")[i], drawn: rows("drawn")[i],
    }));
    this.episodes = {
      skills: rows("skills").map((z) => Array.from(z)),
      paths: rows("positions").map((flat) => points(flat, run.position_size)),
      latents: run.programs.phi ? rows("latents").map((flat) => points(flat, run.tables.latents.shape[2])) : null,
    };
    this.skills = new Skills(run.skills, this.episodes.skills);
    this.model = mujoco.MjModel.from_xml_string(run.xml);
    this.agent = new Agent(run, constants);
    this.bodies = [];
    Object.assign(this, { z: this.skills.first(), many: false, start: 0, offset: [0, 0], debt: 0 });
    this.task = run.task ?? null;
    this.goal = this.task && [...this.task.goal];
    this.steering = Boolean(this.task); // a controller chooses the skill
    this.reset();
  }

  get first() {
    return this.bodies[0];
  }

  /** The skill of each body. */
  get chosen() {
    return this.many ? this.skills.eight(this.z) : [this.z];
  }

  get tints() {
    return this.chosen.map((z) => skillColor(z, this.skills.kind));
  }

  choose(z) {
    this.z = z;
    for (const [i, body] of this.bodies.entries()) if (body.steps % this.run.physics_steps === 0) body.choose(this.chosen[i] ?? z);
  }

  /** The middle and half size of what a task's picture should hold: its walls, or start and goal. */
  get arena() {
    const { walls, radius } = this.task;
    const corners = walls.flatMap(({ x, y, width, height }) => [[x, y], [x + width, y + height]]);
    const places = corners.length ? corners : [this.task.goal, ...this.starts.map(({ qpos }) => qpos)];
    const [low, high] = [Math.min, Math.max].map((pick) => [0, 1].map((i) => pick(...places.map((p) => p[i]))));
    const half = Math.max(high[0] - low[0], high[1] - low[1]) / 2 + (corners.length ? 0 : 2 * radius);
    return { middle: [(low[0] + high[0]) / 2, (low[1] + high[1]) / 2], half };
  }

  /** The controller's skill, where it is its turn: it holds one for `skill_steps` agent steps. */
  steer() {
    const { first, task, run } = this;
    if (!this.steering || this.reached || first.failed) return;
    if (first.steps % (task.skill_steps * run.physics_steps)) return;
    const seen = { obs: first.observation, position: first.position, goal: this.goal };
    this.choose(Array.from(this.agent.control(seen)[0]));
    this.onSteer?.();
  }

  /** Is the body at the goal? */
  get near() {
    const [at, goal] = [this.first.position, this.goal];
    return Math.hypot(...goal.map((value, i) => value - at[i])) <= this.task.radius;
  }

  /** All bodies go back to the start, in the same pose. */
  reset() {
    const count = this.chosen.length;
    while (this.bodies.length < count) this.bodies.push(new Body(this.mujoco, this.model, this.agent, this.run, this.starts));
    for (const body of this.bodies.splice(count)) body.data.delete();
    this.bodies.forEach((body, i) => {
      body.start(this.start, this.offset);
      body.choose(this.chosen[i]);
      body.path = [body.position];
      body.way = body.latent ? [body.latent] : [];
    });
    this.debt = 0;
    this.reached = false;
    this.steer();
  }

  get failed() {
    return this.bodies.some((body) => body.failed);
  }

  /** Lets so many seconds pass, or as many as fit in a frame that took `frame` ms; returns how many did. */
  tick(seconds, frame = 0) {
    const { timestep, physics_steps } = this.run;
    const deadline = performance.now() + Math.min(Math.max(SLICE, 0.6 * frame), LONGEST);
    this.debt += seconds;
    let passed = 0;
    while (this.debt >= timestep) {
      const chosen = this.chosen;
      this.bodies.forEach((body, i) => {
        if (body.step() && !body.failed) {
          body.path.push(body.position);
          if (body.latent) body.way.push(body.latent);
          body.choose(chosen[i]);
        }
      });
      this.debt -= timestep;
      passed += timestep;
      if (this.task && this.first.steps % physics_steps === 0) {
        this.reached ||= this.near;
        this.steer();
      }
      if (performance.now() > deadline) {
        this.debt = Math.min(this.debt, timestep);
        break;
      }
    }
    return passed;
  }
}

function points(flat, width) {
  return Array.from({ length: flat.length / width }, (_, i) => Array.from(flat.subarray(i * width, (i + 1) * width)));
}
