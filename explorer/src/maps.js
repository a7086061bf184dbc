// Flat panels: the way seen from above, and the way in phi. Faint lines are the skills of the evaluation.

import { css, skillColor } from "./shapes.js";

const NEAR = 14; // pixels within which a tap takes a line

export class Panel {
  /** lines: [[x, y], ...] of each evaluated skill; pick(index) is called for the line that was tapped. */
  constructor(canvas, lines, colors, pick) {
    Object.assign(this, { canvas, lines, colors, chosen: -1, centre: [0, 0] });
    this.pen = canvas.getContext("2d");
    this.reach = 1.08 * Math.max(1e-6, ...lines.flat().map(([x, y]) => Math.max(Math.abs(x), Math.abs(y ?? 0))));
    canvas.addEventListener("click", (event) => {
      const box = canvas.getBoundingClientRect();
      const [x, y] = [event.clientX - box.left, event.clientY - box.top];
      if (this.onPlace) return this.onPlace(this.placeOf(x, y));
      const index = this.nearest(x, y);
      if (index >= 0) pick(index);
    });
  }

  /** paths: [{ points, tint }] of now; marks: { start, direction }. */
  draw(paths, marks) {
    const box = this.canvas.getBoundingClientRect();
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
    if (!width || !height) return;
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    this.fit(paths, box);
    const { pen } = this;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, box.width, box.height);
    this.axes(box);
    for (const wall of marks.walls ?? []) {
      const [x, y] = this.at([wall.x, wall.y + wall.height]);
      pen.fillStyle = "#c3cddc";
      pen.fillRect(x, y, wall.width * this.scale, wall.height * this.scale);
    }
    if (marks.goal) this.dot(marks.goal.at, "rgba(31,157,88,0.35)", Math.max(marks.goal.radius * this.scale, 4));
    this.lines.forEach((line, i) => this.polyline(line, css(this.colors[i], i === this.chosen ? 0.9 : 0.28), i === this.chosen ? 1.8 : 1));
    if (marks.direction) this.dashes(marks.start, marks.direction);
    for (const { points, tint } of paths) {
      this.polyline(points, css(tint), 2.6);
      if (points.length) this.dot(points[points.length - 1], css(tint), 5);
    }
    if (marks.start) this.dot(marks.start, "#27324a", 3);
  }

  /** Zooms out when the way leaves the picture. */
  fit(paths, box) {
    let most = this.reach;
    for (const { points } of paths) for (const [x, y] of points.slice(-1)) most = Math.max(most, 1.05 * Math.abs(x - this.centre[0]), 1.05 * Math.abs((y ?? 0) - this.centre[1]));
    this.shown = Math.max(most, (this.shown ?? most) * 0.98, this.reach);
    this.scale = Math.min(box.width, box.height) / 2 / this.shown;
    this.middle = [box.width / 2, box.height / 2];
  }

  at([x, y]) {
    return [
      this.middle[0] + (x - this.centre[0]) * this.scale,
      this.middle[1] - ((y ?? 0) - this.centre[1]) * this.scale,
    ];
  }

  placeOf(px, py) {
    return [this.centre[0] + (px - this.middle[0]) / this.scale, this.centre[1] + (this.middle[1] - py) / this.scale];
  }

  /** Shows a square about another centre. */
  look(centre, reach) {
    Object.assign(this, { centre, reach });
  }

  axes(box) {
    const { pen } = this;
    pen.strokeStyle = "rgba(90,110,140,0.25)";
    pen.lineWidth = 1;
    const [x, y] = this.at([0, 0]);
    pen.beginPath();
    pen.moveTo(0, y);
    pen.lineTo(box.width, y);
    pen.moveTo(x, 0);
    pen.lineTo(x, box.height);
    pen.stroke();
    const round = Number(this.shown.toPrecision(1)) / 2;
    const [x0, y0] = [8, box.height - 10];
    pen.strokeStyle = "#5a6b86";
    pen.beginPath();
    pen.moveTo(x0, y0);
    pen.lineTo(x0 + round * this.scale, y0);
    pen.stroke();
    pen.fillStyle = "#5a6b86";
    pen.font = "11px system-ui, sans-serif";
    pen.fillText(`${Number(round.toPrecision(2))}${this.unit ?? ""}`, x0, y0 - 4);
  }

  polyline(points, style, width) {
    const { pen } = this;
    pen.beginPath();
    points.forEach((point, i) => (i ? pen.lineTo(...this.at(point)) : pen.moveTo(...this.at(point))));
    Object.assign(pen, { strokeStyle: style, lineWidth: width, lineJoin: "round" });
    pen.stroke();
  }

  dashes(start, [dx, dy]) {
    const { pen } = this;
    const far = 2 * this.shown;
    pen.setLineDash([4, 5]);
    this.polyline([start, [start[0] + far * dx, start[1] + far * (dy ?? 0)]], "rgba(39,50,74,0.45)", 1.2);
    pen.setLineDash([]);
  }

  dot(point, style, size) {
    const { pen } = this;
    pen.beginPath();
    pen.arc(...this.at(point), size, 0, 2 * Math.PI);
    pen.fillStyle = style;
    pen.fill();
  }

  nearest(px, py) {
    let [best, index] = [NEAR, -1];
    this.lines.forEach((line, i) => {
      for (const point of line) {
        const [x, y] = this.at(point);
        const distance = Math.hypot(x - px, y - py);
        if (distance < best) [best, index] = [distance, i];
      }
    });
    return index;
  }
}

export const colorsOf = (skills, kind) => skills.map((z) => skillColor(z, kind));
