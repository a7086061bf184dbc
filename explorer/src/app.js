// The page: builds its controls and runs the clock. `window.explorer` holds it for the console and the tests.

import loadMujoco from "@mujoco/mujoco";
import { unpack } from "./data.js";
import { colorsOf, Panel } from "./maps.js";
import { css } from "./shapes.js";
import { buildControl } from "./skills.js";
import { Stage } from "./stage.js";
import { World } from "./world.js";

const $ = (id) => document.getElementById(id);
const SPEEDS = [0.25, 0.5, 1, 2, 4];
const round = (x) => Number(x.toFixed(4));

class Explorer {
  constructor(world) {
    Object.assign(this, { world, speed: 1, paused: false, clock: null, rate: null });
    const wish = this.readLink();
    this.stage = new Stage($("stage"), world, wish.get("view"));
    this.stage.onMove = (offset) => this.setOffset(offset, true);
    this.stage.onDrop = () => this.reset();
    this.show = buildControl($("skill"), world.skills, (z) => {
      this.setSteering(false);
      this.choose(z);
    });
    this.buildPanels();
    this.buildBar();
    this.buildTask();
    this.listen();
    this.applyLink();
    this.choose(world.z);
    requestAnimationFrame((now) => this.frame(now));
  }

  buildPanels() {
    const { episodes, skills, run } = this.world;
    const colors = colorsOf(episodes.skills, skills.kind);
    const pick = (index) => this.take(index);
    this.paths = new Panel($("map"), episodes.paths, colors, pick);
    this.paths.unit = " m";
    if (episodes.latents) this.ways = new Panel($("phi"), episodes.latents, colors, pick);
    else $("phi-card").remove();
    $("title").textContent = run.title;
    $("about").textContent = run.about;
    $("how").textContent = {
      disc: "Drag around the disc: every direction is a skill.",
      ball: "Drag on the ball: every point is a skill. A hollow knob is on its back.",
      sliders: "Move the sliders: together they give a direction, and every direction is a skill.",
      buttons: "Press a number: each one is a skill.",
      samples: "Press a number: each one is a skill drawn at random, as the agent was trained with.",
    }[skills.control];
    $("facts").textContent = run.facts;
    $("chooser").classList.toggle("wide", !["disc", "ball"].includes(skills.control));
  }

  /** A page of a task has a goal, and a controller that chooses skills towards it. */
  buildTask() {
    const { world } = this;
    if (!world.task) return $("steer").remove();
    $("map-note").textContent = "Bold: now. Faint: the evaluation. Green: the goal; tap anywhere to move it.";
    $("hint").textContent = "Tap the floor to set the goal · drag the body to another start · drag beside it to look around";
    $("title").textContent += `, chosen by a controller (${world.task.name})`;
    $("many").remove();
    $("steer").addEventListener("click", () => this.setSteering(!world.steering));
    this.setSteering(true);
    world.onSteer = () => this.chosen(world.z);
    this.paths.look(world.arena.middle, 1.05 * world.arena.half);
    this.paths.onPlace = this.stage.onTap = (place) => this.setGoal(place);
  }

  setSteering(on) {
    if (!this.world.task) return;
    this.world.steering = on;
    $("steer").setAttribute("aria-pressed", String(on));
    $("steer").textContent = on ? "The controller chooses" : "You choose";
  }

  setGoal([x, y]) {
    const { world } = this;
    world.goal = [x, y, ...world.goal.slice(2)];
    world.reached = false;
    this.setSteering(true);
    $("notice").hidden = true;
  }

  buildBar() {
    $("pause").addEventListener("click", () => this.setPaused(!this.paused));
    $("reset").addEventListener("click", () => this.reset());
    $("another").addEventListener("click", () => {
      this.world.start = (this.world.start + 1) % this.world.starts.length;
      this.reset();
    });
    $("many").addEventListener("click", () => this.setMany(!this.world.many));
    for (const speed of SPEEDS) $("speed").append(new Option(`${speed}×`, speed, speed === 1, speed === 1));
    $("speed").addEventListener("change", () => (this.speed = Number($("speed").value)));
    for (const id of ["x", "y"]) {
      $(id).addEventListener("change", () => this.setOffset([Number($("x").value) || 0, Number($("y").value) || 0]));
    }
    $("home").addEventListener("click", () => this.setOffset([0, 0]));
    $("flat").addEventListener("click", () => this.stage.open(this.stage.scene.name === "WebGL" ? "2d" : "3d"));
    if (location.protocol === "about:") $("link").remove();
    else $("link").addEventListener("click", () => this.copyLink());
    this.buildRecorder();
  }

  listen() {
    window.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
      const arrows = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
      const act = {
        " ": () => this.setPaused(!this.paused),
        r: () => this.reset(),
        8: () => this.setMany(!this.world.many),
        n: () => $("another").click(),
      }[event.key.toLowerCase()];
      if (arrows[event.key]) this.setSteering(false);
      if (arrows[event.key]) this.choose(this.world.skills.moved(this.world.z, ...arrows[event.key]));
      else if (act && !(event.key === " " && event.target.tagName === "BUTTON")) act();
      else return;
      event.preventDefault();
    });
    window.addEventListener("hashchange", () => this.applyLink());
    document.addEventListener("visibilitychange", () => (this.clock = null));
  }

  choose(z) {
    this.world.choose(z);
    this.chosen(z);
  }

  /** Shows which skill is on. */
  chosen(z) {
    this.show(z);
    const [tint] = this.world.tints;
    document.documentElement.style.setProperty("--skill", css(tint));
    $("z").textContent = this.describe(z);
    const marked = this.world.episodes.skills.findIndex((other) => other.every((x, i) => Math.abs(x - z[i]) < 1e-4));
    for (const panel of [this.paths, this.ways]) if (panel) panel.chosen = marked;
    this.linkSoon();
  }

  describe(z) {
    const { skills } = this.world;
    if (skills.kind === "list") return `skill ${z.indexOf(1) + 1} of ${skills.dim}`;
    if (skills.kind === "normals") return `z: ${z.length} numbers, of length ${Math.hypot(...z).toFixed(1)}`;
    return `z = (${z.map((x) => x.toFixed(2)).join(", ")})`;
  }

  /** Takes the skill of an evaluated episode, from the start of that episode. */
  take(index) {
    this.world.start = index;
    this.choose(this.world.episodes.skills[index]);
    this.reset();
  }

  reset() {
    this.world.reset();
    $("notice").hidden = true;
    this.linkSoon();
  }

  setPaused(paused) {
    this.paused = paused;
    $("pause").textContent = paused ? "Go on" : "Pause";
  }

  setMany(many) {
    if (this.world.task) return this.reset();
    this.world.many = many;
    $("many").setAttribute("aria-pressed", String(many));
    if (!many) this.stage.camera.distance = this.stage.camera.reach;
    this.reset();
  }

  setOffset(offset) {
    this.world.offset = offset.map(round);
    [$("x").value, $("y").value] = this.world.offset.map((value) => Number(value.toFixed(2)));
    this.reset();
  }

  // The link: #z=0.6,0.8&from=1,0&start=3&eight=1
  readLink() {
    return new URLSearchParams(location.hash.slice(1));
  }

  applyLink() {
    const [wish, { world }] = [this.readLink(), this];
    const numbers = (name) => (wish.get(name) ?? "").split(",").map(Number);
    const z = wish.has("z") && world.skills.read(numbers("z"));
    if (z) world.z = z;
    const start = Number(wish.get("start"));
    if (Number.isInteger(start) && start >= 0 && start < world.starts.length) world.start = start;
    const from = numbers("from");
    if (from.length === 2 && from.every(Number.isFinite)) this.setOffset(from);
    this.setMany(wish.get("eight") === "1");
    this.choose(world.z);
  }

  get link() {
    const { z, offset, start, many } = this.world;
    const parts = [`z=${z.map(round).join(",")}`];
    if (start) parts.push(`start=${start}`);
    if (offset.some(Boolean)) parts.push(`from=${offset.join(",")}`);
    if (many) parts.push("eight=1");
    return "#" + parts.join("&");
  }

  linkSoon() {
    clearTimeout(this.linking);
    this.linking = setTimeout(() => {
      try {
        history.replaceState(null, "", this.link);
      } catch {
        // A page inside a notebook has no address of its own.
      }
    }, 300);
  }

  async copyLink() {
    history.replaceState(null, "", this.link);
    try {
      await navigator.clipboard.writeText(location.href);
      $("link").textContent = "copied";
    } catch {
      $("link").textContent = "it is in the address bar";
    }
    setTimeout(() => ($("link").textContent = "Copy link"), 1600);
  }

  buildRecorder() {
    const able = typeof MediaRecorder === "function" && this.stage.canvas.captureStream && MediaRecorder.isTypeSupported("video/webm");
    if (!able) return $("record").remove();
    $("record").addEventListener("click", () => {
      if (this.recorder) return this.recorder.stop();
      const chunks = [];
      this.recorder = new MediaRecorder(this.stage.canvas.captureStream(30), { mimeType: "video/webm", videoBitsPerSecond: 6e6 });
      this.recorder.ondataavailable = (event) => chunks.push(event.data);
      this.recorder.onstop = () => {
        const link = document.createElement("a");
        link.href = URL.createObjectURL(new Blob(chunks, { type: "video/webm" }));
        link.download = `${this.world.run.name}.webm`;
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 5000);
        this.recorder = null;
        $("record").textContent = "Record";
      };
      this.recorder.start();
      $("record").textContent = "Stop and save";
    });
  }

  frame(now) {
    const elapsed = this.clock === null ? 0 : Math.min((now - this.clock) / 1000, 0.25);
    this.clock = now;
    const holding = this.stage.held !== null;
    if (!this.paused && !holding) {
      const passed = this.world.tick(elapsed * this.speed, 1000 * elapsed);
      if (elapsed) this.measure(elapsed, passed);
    }
    if (this.world.failed && $("notice").hidden) {
      $("notice").textContent = "The simulation broke with this skill. Press reset to start again.";
      $("notice").hidden = false;
    }
    this.draw(elapsed);
    requestAnimationFrame((next) => this.frame(next));
  }

  /** Simulated seconds in a second, of the last second or so. */
  measure(elapsed, passed) {
    this.sums ??= [0, 0];
    this.sums[0] += elapsed;
    this.sums[1] += passed;
    if (this.sums[0] > 1) {
      this.rate = this.sums[1] / this.sums[0];
      this.sums = [0, 0];
    }
  }

  draw(elapsed) {
    const { world } = this;
    const { task } = world;
    const goal = task && { at: world.goal, radius: task.radius };
    this.stage.draw(task ? { walls: task.walls, goal } : {}, elapsed);
    const tints = world.tints;
    const start = world.first.path[0];
    this.paths.draw(world.bodies.map((body, i) => ({ points: body.path, tint: tints[i] })), { start, goal, walls: task?.walls });
    const along = world.skills.kind === "directions" && !world.many ? world.z : null;
    this.ways?.draw(
      world.bodies.map((body, i) => ({ points: body.way, tint: tints[i] })),
      { start: world.first.way[0], direction: along },
    );
    const gone = Math.hypot(...world.first.position.map((value, i) => value - start[i]));
    const slow = this.rate !== null && this.rate < 0.9 * this.speed ? ` · slowed to ${this.rate.toFixed(1)}×` : "";
    const from = world.many ? "" : ` · ${gone.toFixed(gone < 1 ? 2 : 1)} m from the start`;
    const arrived = world.reached ? " · reached the goal" : "";
    $("status").textContent = `${world.first.seconds.toFixed(1)} s${from}${arrived}${slow}`;
  }
}

async function boot() {
  const part = (id) => unpack($(id).textContent);
  const [wasm, about, bytes] = await Promise.all([part("wasm"), part("run"), part("arrays")]);
  const run = JSON.parse(new TextDecoder().decode(about));
  const mujoco = await loadMujoco({ wasmBinary: wasm, locateFile: (name) => name });
  window.explorer = new Explorer(new World(mujoco, run, bytes));
  $("loading").remove();
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

globalThis.gendaExplorer = { loadMujoco, unpack, World };
if (typeof document === "object") {
  boot().catch((error) => {
    $("loading").textContent = `This page could not start: ${error.message}`;
  });
}
