// The control that chooses a skill z: a disc, a ball, sliders, buttons or a list, as the agent's skills are.

import { css, skillColor } from "./shapes.js";

const unit = (v) => {
  const length = Math.hypot(...v);
  return length > 1e-9 ? v.map((x) => x / length) : [1, ...v.slice(1).map(() => 0)];
};
const oneHot = (index, dim) => Array.from({ length: dim }, (_, i) => (i === index ? 1 : 0));

/** What kind of control suits the skills, how to read it, and eight skills that differ. */
export class Skills {
  constructor({ kind, dim }, samples) {
    Object.assign(this, { kind, dim, samples });
    this.control = kind === "list" ? "buttons" : kind === "normals" ? "samples" : { 2: "disc", 3: "ball" }[dim] ?? "sliders";
  }

  first() {
    return this.kind === "list" ? oneHot(0, this.dim) : this.kind === "normals" ? this.samples[0] : oneHot(0, this.dim);
  }

  /** z of these numbers, null where they are no skill of this agent. */
  read(numbers) {
    if (numbers.length !== this.dim || !numbers.every(Number.isFinite)) return null;
    if (this.kind === "normals") return numbers;
    if (this.kind === "list") return oneHot(numbers.indexOf(Math.max(...numbers)), this.dim);
    return Math.hypot(...numbers) > 1e-9 ? unit(numbers) : null;
  }

  /** Eight skills, the chosen one first. */
  eight(z) {
    if (this.kind === "list") {
      const at = z.indexOf(1);
      return Array.from({ length: Math.min(8, this.dim) }, (_, i) => oneHot((at + i) % this.dim, this.dim));
    }
    if (this.kind === "normals") return [z, ...this.samples.filter((other) => other !== z).slice(0, 7)];
    if (this.dim < 2) return [z, z.map((x) => -x)];
    return Array.from({ length: 8 }, (_, i) => turned(z, (i * Math.PI) / 4));
  }

  /** The neighbour of z that an arrow key leads to. */
  moved(z, right, up) {
    if (this.kind === "list") return oneHot((z.indexOf(1) + (right || -up) + this.dim) % this.dim, this.dim);
    if (this.kind === "normals") {
      const at = this.samples.findIndex((other) => other.every((x, i) => x === z[i]));
      return this.samples[(at + (right || -up) + this.samples.length) % this.samples.length];
    }
    if (this.dim < 2) return z.map((x) => -x);
    if (this.dim === 2) return turned(z, (-(right || -up) * Math.PI) / 36);
    const tilted = [...turned(z, (-right * Math.PI) / 36)];
    tilted[2] += 0.1 * up;
    return unit(tilted);
  }
}

/** z with its first two dimensions turned; where they are zero there is nothing to turn, so they get some length. */
function turned(z, angle) {
  const [c, s] = [Math.cos(angle), Math.sin(angle)];
  const [x, y] = Math.hypot(z[0], z[1]) > 1e-3 ? z : [0.01, 0];
  return unit([c * x - s * y, s * x + c * y, ...z.slice(2)]);
}

/** Builds the control inside `box`; choose(z) is called while the user moves it. Returns show(z). */
export function buildControl(box, skills, choose) {
  return { disc, ball, sliders, buttons, samples }[skills.control](box, skills, choose);
}

function pad(box, size, label) {
  const canvas = document.createElement("canvas");
  canvas.className = "pad";
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "slider");
  canvas.setAttribute("aria-label", label);
  const ratio = window.devicePixelRatio || 1;
  canvas.width = canvas.height = size * ratio;
  canvas.style.width = canvas.style.height = `${size}px`;
  box.append(canvas);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  return [canvas, pen];
}

/** Calls move(x, y) with -1..1 while a finger or the mouse is down on the canvas. */
function dragging(canvas, move) {
  const report = (event) => {
    const area = canvas.getBoundingClientRect();
    move((2 * (event.clientX - area.left)) / area.width - 1, 1 - (2 * (event.clientY - area.top)) / area.height);
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    report(event);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (canvas.hasPointerCapture(event.pointerId)) report(event);
  });
}

const RIM = 0.84; // of the pad

function wheel(pen, size) {
  const [middle, radius] = [size / 2, (RIM * size) / 2];
  for (let i = 0; i < 120; i++) {
    const from = (i * Math.PI) / 60;
    pen.beginPath();
    pen.moveTo(middle, middle);
    pen.arc(middle, middle, radius, -from - 0.06, -from);
    pen.fillStyle = css(skillColor([Math.cos(from + 0.03), Math.sin(from + 0.03)], "directions"), 0.85);
    pen.fill();
  }
  const light = pen.createRadialGradient(middle, middle, 0, middle, middle, radius);
  light.addColorStop(0, "rgba(255,255,255,0.98)");
  light.addColorStop(0.55, "rgba(255,255,255,0.75)");
  light.addColorStop(1, "rgba(255,255,255,0.05)");
  pen.beginPath();
  pen.arc(middle, middle, radius, 0, 2 * Math.PI);
  pen.fillStyle = light;
  pen.fill();
}

function needle(pen, size, x, y, color, hollow) {
  const [middle, radius] = [size / 2, (RIM * size) / 2];
  const [px, py] = [middle + radius * x, middle - radius * y];
  Object.assign(pen, { strokeStyle: "#27324a", lineWidth: 2.5 });
  pen.beginPath();
  pen.moveTo(middle, middle);
  pen.lineTo(px, py);
  pen.stroke();
  pen.beginPath();
  pen.arc(px, py, 10, 0, 2 * Math.PI);
  pen.fillStyle = hollow ? "#fff" : css(color);
  pen.fill();
  pen.lineWidth = 3;
  pen.strokeStyle = hollow ? css(color) : "#fff";
  pen.stroke();
}

function disc(box, skills, choose) {
  const size = 148;
  const [canvas, pen] = pad(box, size, "skill direction");
  dragging(canvas, (x, y) => choose(unit([x, y])));
  return (z) => {
    pen.clearRect(0, 0, size, size);
    wheel(pen, size);
    needle(pen, size, z[0], z[1], skillColor(z, skills.kind), false);
  };
}

function ball(box, skills, choose) {
  const size = 148;
  const [canvas, pen] = pad(box, size, "skill direction on a ball");
  let front = 1;
  dragging(canvas, (x, y) => {
    const [u, v] = [x / RIM, y / RIM];
    const rest = 1 - u * u - v * v;
    choose(unit([u, v, rest > 0 ? front * Math.sqrt(rest) : 0]));
  });
  const flip = document.createElement("button");
  flip.type = "button";
  flip.className = "small";
  flip.title = "take the other side of the ball: z3 changes its sign";
  flip.textContent = "other side";
  box.append(flip);
  let now = skills.first();
  flip.addEventListener("click", () => choose(unit([now[0], now[1], -now[2] || -0.5 * front])));
  return (z) => {
    now = z;
    if (Math.abs(z[2]) > 1e-3) front = Math.sign(z[2]);
    pen.clearRect(0, 0, size, size);
    wheel(pen, size);
    Object.assign(pen, { strokeStyle: "rgba(39,50,74,0.2)", lineWidth: 1 });
    for (const share of [0.35, 0.7]) {
      for (const [a, b] of [[1, share], [share, 1]]) {
        pen.beginPath();
        pen.ellipse(size / 2, size / 2, (a * RIM * size) / 2, (b * RIM * size) / 2, 0, 0, 2 * Math.PI);
        pen.stroke();
      }
    }
    needle(pen, size, z[0], z[1], skillColor(z, skills.kind), z[2] < 0);
    flip.textContent = z[2] < 0 ? "behind: show front" : "in front: show back";
  };
}

function sliders(box, skills, choose) {
  const inputs = Array.from({ length: skills.dim }, (_, i) => {
    const label = document.createElement("label");
    label.className = "slider";
    const input = Object.assign(document.createElement("input"), { type: "range", min: -1, max: 1, step: 0.01 });
    input.setAttribute("aria-label", `z${i + 1}`);
    label.append(`z${i + 1}`, input);
    box.append(label);
    input.addEventListener("input", () => choose(unit(inputs.map((other) => Number(other.value)))));
    return input;
  });
  return (z) => inputs.forEach((input, i) => document.activeElement !== input && (input.value = z[i]));
}

function buttons(box, skills, choose) {
  return numbered(box, skills.dim, (i) => oneHot(i, skills.dim), skills.kind, choose, (z) => z.indexOf(1));
}

function samples(box, skills, choose) {
  const find = (z) => skills.samples.findIndex((other) => other.every((x, i) => Math.abs(x - z[i]) < 1e-6));
  return numbered(box, skills.samples.length, (i) => skills.samples[i], skills.kind, choose, find);
}

function numbered(box, count, skill, kind, choose, find) {
  const grid = document.createElement("div");
  grid.className = "numbers";
  box.append(grid);
  const made = Array.from({ length: count }, (_, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = i + 1;
    button.title = `skill ${i + 1}`;
    button.style.setProperty("--tint", css(skillColor(skill(i), kind)));
    button.addEventListener("click", () => choose(skill(i)));
    grid.append(button);
    return button;
  });
  return (z) => made.forEach((button, i) => button.setAttribute("aria-pressed", String(i === find(z))));
}
