// Draws bodies on a 2D canvas: thick strokes, ellipses and hulls, far ones first. Needs no graphics card.

import { css, gridStep, mix } from "./shapes.js";

const [INK, PAPER] = [[0.1, 0.12, 0.16], [1, 1, 1]];

export class Scene2D {
  constructor(canvas, shapes) {
    Object.assign(this, { canvas, shapes, name: "2D canvas" });
    this.pen = canvas.getContext("2d");
  }

  /** copies: [{ geoms: {xpos, xmat}, tint, trail }]; extras: { shadows, walls, target, targetSize, goal }. */
  draw(camera, copies, extras) {
    const { pen, canvas } = this;
    const ratio = canvas.width / camera.width;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.view = camera.projector();
    this.sky(camera);
    this.floor(camera);
    if (extras.goal) this.disc(extras.goal.at, extras.goal.radius, "rgba(30,160,90,0.25)", "rgb(20,130,70)");
    for (const copy of copies) this.trail(copy.trail, copy.tint);
    if (extras.shadows) for (const copy of copies) this.shadows(copy);
    const parts = (extras.walls ?? []).map((wall) => this.wall(wall));
    for (const copy of copies) for (const shape of this.shapes) parts.push(this.part(shape, copy));
    if (extras.target) parts.push(this.marker(extras.target, extras.targetSize));
    for (const part of parts.filter(Boolean).sort((a, b) => b.depth - a.depth)) part.paint();
  }

  sky(camera) {
    const shade = this.pen.createLinearGradient(0, 0, 0, camera.height);
    shade.addColorStop(0, "#e3ecf7");
    shade.addColorStop(0.6, "#f6f8fb");
    shade.addColorStop(1, "#eef1f6");
    this.pen.fillStyle = shade;
    this.pen.fillRect(0, 0, camera.width, camera.height);
  }

  floor(camera) {
    const step = gridStep(camera.distance);
    const [cx, cy] = [Math.round(camera.target[0] / step), Math.round(camera.target[1] / step)];
    const reach = 14;
    for (let i = -reach; i <= reach; i++) {
      for (const along of [0, 1]) {
        const line = along ? (cx + i) * step : (cy + i) * step;
        const strong = Math.round(line / step) % 5 === 0;
        for (let k = -reach; k < reach; k++) {
          const ends = [k, k + 1].map((j) => (along ? [line, (cy + j) * step, 0] : [(cx + j) * step, line, 0]));
          const fade = 1 - Math.hypot(i, k + 0.5) / reach;
          if (fade > 0) this.line(ends, `rgba(90,110,140,${(fade * (strong ? 0.5 : 0.24)).toFixed(3)})`, 1);
        }
      }
    }
  }

  line(points, style, width) {
    const { pen } = this;
    pen.beginPath();
    let down = false;
    for (const point of points) {
      const p = this.view.project(point);
      if (!p) down = false;
      else if (down) pen.lineTo(p[0], p[1]);
      else {
        pen.moveTo(p[0], p[1]);
        down = true;
      }
    }
    pen.strokeStyle = style;
    pen.lineWidth = width;
    pen.lineCap = pen.lineJoin = "round";
    pen.stroke();
  }

  trail(points, tint) {
    if (points.length > 1) this.line(points, css(tint, 0.75), 3);
  }

  disc(at, radius, fill, stroke) {
    const { pen } = this;
    pen.beginPath();
    for (let i = 0; i <= 40; i++) {
      const angle = (i * Math.PI) / 20;
      const p = this.view.project([at[0] + radius * Math.cos(angle), at[1] + radius * Math.sin(angle), at[2] ?? 0]);
      if (!p) return;
      if (i) pen.lineTo(p[0], p[1]);
      else pen.moveTo(p[0], p[1]);
    }
    pen.fillStyle = fill;
    pen.fill();
    if (stroke) {
      pen.strokeStyle = stroke;
      pen.lineWidth = 2;
      pen.stroke();
    }
  }

  shadows({ geoms }) {
    for (const { id, size, kind, fixed } of this.shapes) {
      if (fixed) continue;
      const [x, y, z] = geoms.xpos.subarray(3 * id, 3 * id + 3);
      const up = geoms.xmat.subarray(9 * id, 9 * id + 9);
      if (kind === "capsule" || kind === "cylinder") {
        const [hx, hy] = [up[2] * size[1], up[5] * size[1]];
        const p = this.view.project([x, y, 0]);
        if (p) this.line([[x - hx, y - hy, 0], [x + hx, y + hy, 0]], "rgba(40,50,70,0.10)", Math.max(2 * size[0] * p[3], 1));
      } else if (z < 20 * Math.max(...size)) this.disc([x, y], Math.max(size[0], size[1] || 0), "rgba(40,50,70,0.10)");
    }
  }

  /** What paints one geom, with its distance. */
  part({ id, kind, size, color }, { geoms, tint, tinted }) {
    const [pos, mat] = [geoms.xpos.subarray(3 * id, 3 * id + 3), geoms.xmat.subarray(9 * id, 9 * id + 9)];
    const centre = this.view.project(pos);
    if (!centre) return null;
    const paint = tinted ? mix(color, tint, 0.75) : color;
    const depth = centre[2];
    if (kind === "capsule" || kind === "cylinder") {
      const half = [2, 5, 8].map((k) => mat[k] * size[1]);
      const ends = [-1, 1].map((side) => this.view.project([0, 1, 2].map((i) => pos[i] + side * half[i])));
      if (!ends[0] || !ends[1]) return null;
      return { depth, paint: () => this.stroke(ends, 2 * size[0], paint, kind === "capsule" ? "round" : "butt") };
    }
    if (kind === "box") return { depth, paint: () => this.hull(this.corners(pos, mat, size), paint) };
    const radii = kind === "sphere" ? [size[0], size[0], size[0]] : size;
    return { depth, paint: () => this.ellipse(centre, mat, radii, paint) };
  }

  stroke([a, b], thickness, color, cap) {
    const { pen } = this;
    const width = thickness * (a[3] + b[3]) / 2;
    const pass = (style, lineWidth, dx, dy) => {
      pen.beginPath();
      pen.moveTo(a[0] + dx, a[1] + dy);
      pen.lineTo(b[0] + dx + 0.01, b[1] + dy);
      Object.assign(pen, { lineCap: cap, lineWidth, strokeStyle: style });
      pen.stroke();
    };
    pass(css(mix(color, INK, 0.55)), width + 1.6, 0, 0);
    pass(css(color), width, 0, 0);
    if (width > 5) pass(css(mix(color, PAPER, 0.45), 0.7), width * 0.3, -width * 0.16, -width * 0.2);
  }

  ellipse(centre, mat, radii, color) {
    // Spread of the three half axes in the picture; its eigenvectors are the axes of the outline.
    const { right, up } = this.view;
    let [xx, xy, yy] = [0, 0, 0];
    for (let k = 0; k < 3; k++) {
      const axis = [mat[k], mat[3 + k], mat[6 + k]];
      const u = radii[k] * (axis[0] * right[0] + axis[1] * right[1] + axis[2] * right[2]);
      const v = -radii[k] * (axis[0] * up[0] + axis[1] * up[1] + axis[2] * up[2]);
      xx += u * u;
      xy += u * v;
      yy += v * v;
    }
    const [mean, gap] = [(xx + yy) / 2, Math.hypot((xx - yy) / 2, xy)];
    const [long, short] = [Math.sqrt(mean + gap) * centre[3], Math.sqrt(Math.max(mean - gap, 0)) * centre[3]];
    const angle = Math.atan2(xy, (xx - yy) / 2) / 2;
    const { pen } = this;
    const light = pen.createRadialGradient(
      centre[0] - 0.3 * short, centre[1] - 0.4 * short, 0, centre[0], centre[1], Math.max(long, 1),
    );
    light.addColorStop(0, css(mix(color, PAPER, 0.5)));
    light.addColorStop(0.5, css(color));
    light.addColorStop(1, css(mix(color, INK, 0.3)));
    pen.beginPath();
    pen.ellipse(centre[0], centre[1], Math.max(long, 2), Math.max(short, 0.5), angle, 0, 2 * Math.PI);
    pen.fillStyle = light;
    pen.fill();
    pen.strokeStyle = css(mix(color, INK, 0.55));
    pen.lineWidth = 0.8;
    pen.stroke();
  }

  corners(pos, mat, size) {
    const found = [];
    for (let k = 0; k < 8; k++) {
      const local = [0, 1, 2].map((i) => ((k >> i) & 1 ? 1 : -1) * size[i]);
      found.push([0, 1, 2].map((i) => pos[i] + mat[3 * i] * local[0] + mat[3 * i + 1] * local[1] + mat[3 * i + 2] * local[2]));
    }
    return found;
  }

  hull(points, color) {
    const flat = points.map((p) => this.view.project(p));
    if (flat.some((p) => !p)) return;
    const outline = convex(flat);
    const { pen } = this;
    pen.beginPath();
    outline.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
    pen.closePath();
    pen.fillStyle = css(color);
    pen.fill();
    pen.strokeStyle = css(mix(color, INK, 0.55));
    pen.lineWidth = 1;
    pen.stroke();
  }

  wall({ x, y, width, height, tall }) {
    const centre = this.view.project([x + width / 2, y + height / 2, 0]);
    if (!centre) return null;
    const size = [width / 2, height / 2, tall / 2];
    const corners = this.corners([x + width / 2, y + height / 2, tall / 2], [1, 0, 0, 0, 1, 0, 0, 0, 1], size);
    return { depth: centre[2], paint: () => this.hull(corners, [0.72, 0.76, 0.83]) };
  }

  marker(at, size) {
    const centre = this.view.project(at);
    if (!centre) return null;
    const unit = [1, 0, 0, 0, 1, 0, 0, 0, 1];
    return { depth: centre[2], paint: () => this.ellipse(centre, unit, [size, size, size], [0.85, 0.3, 0.35]) };
  }
}

function convex(points) {
  const sorted = [...points].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const half = (list) => {
    const chain = [];
    for (const p of list) {
      while (chain.length > 1) {
        const [a, b] = chain.slice(-2);
        if ((b[0] - a[0]) * (p[1] - a[1]) - (b[1] - a[1]) * (p[0] - a[0]) > 0) break;
        chain.pop();
      }
      chain.push(p);
    }
    return chain.slice(0, -1);
  };
  return [...half(sorted), ...half(sorted.reverse())];
}
