// A camera that follows the body and that the user turns around it.

const FIELD = 0.62; // rad, half of what it sees from top to bottom

export class Camera {
  constructor(reach) {
    Object.assign(this, { reach, target: [0, 0, 0], azimuth: -2.0, elevation: 0.5, distance: reach });
  }

  turn(dx, dy) {
    this.azimuth -= 0.008 * dx;
    this.elevation = Math.min(Math.max(this.elevation + 0.006 * dy, 0.04), 1.5);
  }

  zoom(factor) {
    this.distance = Math.min(Math.max(this.distance * factor, this.reach / 8), this.reach * 12);
  }

  /** Moves a share of the way to a point, so that the picture stays calm. */
  follow(point, share) {
    this.target = this.target.map((value, i) => value + share * (point[i] - value));
  }

  resize(width, height) {
    Object.assign(this, { width, height });
  }

  get eye() {
    const flat = this.distance * Math.cos(this.elevation);
    const [x, y, z] = this.target;
    return [
      x + flat * Math.cos(this.azimuth),
      y + flat * Math.sin(this.azimuth),
      z + this.distance * Math.sin(this.elevation),
    ];
  }

  /** Right, up and forward of the picture, in the world. */
  get axes() {
    const [ca, sa, ce, se] = [
      Math.cos(this.azimuth), Math.sin(this.azimuth), Math.cos(this.elevation), Math.sin(this.elevation),
    ];
    return [[-sa, ca, 0], [-ca * se, -sa * se, ce], [-ca * ce, -sa * ce, -se]];
  }

  /** Freezes the numbers of this frame; project(p) -> [x, y, depth, pixels per metre], null behind the eye. */
  projector() {
    const [right, up, forward] = this.axes;
    const eye = this.eye;
    const focal = this.height / 2 / Math.tan(FIELD / 2 + 0.1);
    const [cx, cy] = [this.width / 2, this.height / 2];
    const near = this.distance / 20;
    const project = (p) => {
      const [x, y, z] = [p[0] - eye[0], p[1] - eye[1], p[2] - eye[2]];
      const depth = x * forward[0] + y * forward[1] + z * forward[2];
      if (depth < near) return null;
      const scale = focal / depth;
      return [
        cx + scale * (x * right[0] + y * right[1] + z * right[2]),
        cy - scale * (x * up[0] + y * up[1] + z * up[2]),
        depth,
        scale,
      ];
    };
    return { project, right, up, forward, eye, focal };
  }

  get fieldDegrees() {
    return ((FIELD / 2 + 0.1) * 2 * 180) / Math.PI;
  }

  /** Where the line of sight through a pixel meets the plane z = height; null above the horizon. */
  onPlane(px, py, height) {
    const { right, up, forward, eye, focal } = this.projector();
    const [u, v] = [(px - this.width / 2) / focal, (this.height / 2 - py) / focal];
    const ray = forward.map((f, i) => f + u * right[i] + v * up[i]);
    const t = (height - eye[2]) / ray[2];
    return t > 0 && t < 40 * this.distance ? [eye[0] + t * ray[0], eye[1] + t * ray[1]] : null;
  }
}
