"use strict";
// A line chart on two canvases: the picture below, and what follows the pointer above. Everything is redrawn from `spec`.

const DASHES = [[], [7, 4], [2, 3]];
const ink = k => color(typeof k === "number" ? `--c${k}` : `--${k}`); // of a run by number, or of the page by name
const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const byId = id => document.getElementById(id);

function make(tag, props = {}, ...children) { // texts are always texts, never HTML
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name in node && name !== "role") node[name] = value; else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

const number = (value, digits = 3) => value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
const whole = value => Math.round(value).toLocaleString("en");
const percent = (value, digits = 1) => `${number(100 * value, digits)} %`;

function short(value) {
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${+(value / size).toPrecision(3)}${letter}`;
  }
  return `${+value.toPrecision(3)}`;
}

function linearTicks(low, high, many) {
  const rough = (high - low) / Math.max(many, 1), power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find(s => s * power >= rough * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step + 0); // + 0: no minus zero
  return ticks;
}

function logTicks(low, high) {
  const within = steps => {
    const ticks = [];
    for (let p = Math.floor(Math.log10(low)); 10 ** p <= high; p++) ticks.push(...steps.map(s => s * 10 ** p));
    return ticks.filter(t => t >= low * 0.999 && t <= high * 1.001);
  };
  const decades = within([1]);
  return decades.length >= 3 ? decades : within([1, 2, 5]).length >= 2 ? within([1, 2, 5]) : linearTicks(low, high, 4);
}

const tip = {
  show(x, y, heading, rows) {
    const node = byId("tip");
    node.replaceChildren(make("p", {}, heading), ...rows.slice(0, 12).map(row => make("div", {},
      make("span", { className: `swatch k${row.color} d${row.dash || 0}` }), make("span", {}, row.name), make("b", {}, row.text))));
    if (rows.length > 12) node.append(make("p", {}, `and ${rows.length - 12} more`));
    node.hidden = false;
    const box = node.getBoundingClientRect(), room = document.documentElement.clientWidth;
    const left = x + 16 + box.width > room - 8 ? x - 16 - box.width : x + 16;
    node.style.left = `${Math.max(8, Math.min(left, room - box.width - 8))}px`;
    node.style.top = `${Math.max(8, Math.min(y - box.height / 2, innerHeight - box.height - 8))}px`;
  },
  hide() { byId("tip").hidden = true; },
};

class Canvas { // a figure with a caption and two canvases that fit it
  constructor(host, spec) {
    this.host = host; this.spec = spec;
    this.title = make("h3"); this.note = make("span");
    this.below = make("canvas"); this.above = make("canvas");
    this.plot = make("div", { className: "plot", tabIndex: 0, role: "application" }, this.below, this.above);
    this.plot.style.height = `${spec.height || 300}px`;
    host.append(make("div", { className: "caption" }, this.title, this.note), this.plot);
    new ResizeObserver(() => this.draw()).observe(this.plot);
    this.plot.addEventListener("blur", () => this.leave());
    this.plot.addEventListener("pointerleave", event => { if (event.pointerType !== "touch") this.leave(); }); // a finger leaves at once
  }
  begin() { // sizes the canvases; false when the figure cannot be seen
    const { clientWidth: w, clientHeight: h } = this.plot, ratio = devicePixelRatio || 1;
    if (!w || !h || this.host.closest("[hidden]")) return false;
    this.w = w; this.h = h;
    for (const canvas of [this.below, this.above]) {
      if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
        canvas.width = Math.round(w * ratio); canvas.height = Math.round(h * ratio);
      }
      const pen = canvas.getContext("2d");
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, w, h);
      pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    }
    this.pen = this.below.getContext("2d"); this.over = this.above.getContext("2d");
    this.title.textContent = this.spec.title(); this.note.textContent = this.spec.note ? this.spec.note() : "";
    this.plot.setAttribute("aria-label", `${this.title.textContent}. ${this.spec.summary ? this.spec.summary() : ""} Arrow keys read values.`);
    return true;
  }
  text(words, x, y, align = "center", fill = "--soft", base = "middle") {
    Object.assign(this.pen, { textAlign: align, textBaseline: base, fillStyle: color(fill) });
    this.pen.fillText(words, x, y);
  }
  sideText(words, x, y) {
    this.pen.save(); this.pen.translate(x, y); this.pen.rotate(-Math.PI / 2); this.text(words, 0, 0); this.pen.restore();
  }
  leave() { tip.hide(); if (this.over) this.over.clearRect(0, 0, this.w, this.h); }
}

class Chart extends Canvas {
  constructor(host, spec) {
    super(host, spec);
    this.link = spec.link || { zoom: null, charts: [] }; // charts with the same x axis zoom together
    this.link.charts.push(this);
    const at = event => event.clientX - this.plot.getBoundingClientRect().left;
    this.plot.addEventListener("pointerdown", event => {
      if (event.pointerType === "touch") return this.point(at(event), event.clientY);
      if (event.button) return;
      this.plot.setPointerCapture(event.pointerId); this.from = at(event);
    });
    this.plot.addEventListener("pointermove", event => this.point(at(event), event.clientY));
    this.plot.addEventListener("pointerup", event => {
      const from = this.from; this.from = undefined;
      if (from === undefined || !this.box || spec.fixed) return;
      const [a, b] = [from, at(event)].sort((p, q) => p - q).map(p => this.back(p));
      if (Math.abs(at(event) - from) > 6 && b > a) this.zoomTo([a, b]); else this.point(at(event), event.clientY);
    });
    this.plot.addEventListener("pointercancel", () => { this.from = undefined; this.leave(); });
    this.plot.addEventListener("dblclick", () => this.zoomTo(null));
    this.plot.addEventListener("wheel", event => {
      if (!event.ctrlKey || spec.fixed || !this.box) return; // plain scrolling is the page's
      event.preventDefault(); this.scale(event.deltaY < 0 ? 0.7 : 1 / 0.7, at(event));
    }, { passive: false });
    this.plot.addEventListener("keydown", event => this.key(event));
  }
  key(event) {
    if (!this.box) return;
    const step = (event.shiftKey ? 0.1 : 0.01) * this.box.w, now = this.cursor ?? this.box.x + this.box.w;
    const does = {
      ArrowLeft: () => this.point(now - step), ArrowRight: () => this.point(now + step),
      Home: () => this.point(this.box.x), End: () => this.point(this.box.x + this.box.w),
      "+": () => this.scale(0.6, now), "=": () => this.scale(0.6, now), "-": () => this.scale(1 / 0.6, now),
      0: () => this.zoomTo(null), Escape: () => { this.leave(); this.zoomTo(null); },
    }[event.key];
    if (does) { event.preventDefault(); does(); }
  }
  zoomTo(range) {
    if (this.spec.fixed) return;
    if (range) {
      const [low, high] = this.spec.domain(), least = (high - low) / 2000;
      range = [Math.max(low, range[0]), Math.min(high, range[1])];
      if (range[1] - range[0] < Math.min(least, range[0] / 10 || least)) return;
      if (range[0] <= low && range[1] >= high) range = null;
    }
    this.link.zoom = range; tip.hide();
    this.link.charts.forEach(chart => chart.draw());
    if (this.link.changed) this.link.changed();
  }
  scale(factor, around = this.box.x + this.box.w / 2) {
    const { x, w } = this.box, a = around - (around - x) * factor, b = around + (x + w - around) * factor;
    this.zoomTo([this.back(a), this.back(b)]);
  }
  range() { return this.link.zoom || this.spec.domain(); }
  across(x) { // from a value to a place on the canvas
    const [low, high] = this.ends, log = this.log;
    return this.box.x + this.box.w * (log ? Math.log(x / low) / Math.log(high / low) : (x - low) / (high - low));
  }
  back(p) {
    const [low, high] = this.ends, share = (p - this.box.x) / this.box.w;
    return this.log ? low * (high / low) ** share : low + share * (high - low);
  }
  up(y) { return this.box.y + this.box.h * (1 - (y - this.low) / (this.high - this.low)); }

  points(series) { // what can be seen of a series, as [place, value]
    if (series.y) return series.x.map((x, i) => [this.across(x), series.y[i], x]);
    const points = [], from = Math.max(this.box.x, this.across(Math.max(series.from, this.ends[0])));
    const to = Math.min(this.box.x + this.box.w, this.across(Math.min(series.to, this.ends[1])));
    for (let p = from; ; p = Math.min(p + 1, to)) {
      const x = this.back(p);
      points.push([p, series.f(x), x]);
      if (p >= to) return points;
    }
  }
  draw() {
    if (!this.begin()) return;
    const { pen, spec } = this;
    this.box = { x: 58, y: 8, w: this.w - 58 - 10, h: this.h - 8 - 40 };
    this.log = spec.log ? spec.log() : false;
    this.ends = this.range();
    const lines = spec.series().map(series => ({ ...series, points: this.points(series), edges: series.band && series.band.map(f => this.points({ ...series, f })) }));
    const seen = [];
    for (const line of lines) {
      for (const [p, y, x] of line.points) {
        if (Number.isFinite(y) && p >= this.box.x - 1 && p <= this.box.x + this.box.w + 1 && !(x < line.steady)) seen.push(y);
      }
    }
    const refs = spec.refs ? spec.refs() : [];
    [this.low, this.high] = spec.heights(seen, refs.map(ref => ref.y), Boolean(this.link.zoom));
    this.axes();
    pen.save(); pen.beginPath(); pen.rect(this.box.x, this.box.y - 2, this.box.w + 1, this.box.h + 4); pen.clip();
    for (const ref of refs) if (!ref.curve) this.reference(ref); // else the reference is one of the lines
    if (spec.under) spec.under(this);
    for (const line of lines) if (line.edges) this.band(line);
    for (const line of lines) this.line(line);
    pen.restore();
    for (const ref of refs) this.name(ref, lines);
    if (!lines.some(line => line.points.some(point => Number.isFinite(point[1])))) {
      this.text(spec.nothing || "nothing to show", this.box.x + this.box.w / 2, this.box.y + this.box.h / 2);
    }
  }
  axes() {
    const { pen, box, spec } = this;
    pen.lineWidth = 1; pen.strokeStyle = color("--grid");
    const heights = linearTicks(this.low, this.high, Math.max(3, box.h / 55));
    for (const y of heights) {
      const p = Math.round(this.up(y)) + 0.5;
      pen.beginPath(); pen.moveTo(box.x, p); pen.lineTo(box.x + box.w, p); pen.stroke();
      this.text(spec.yTick(y, heights[1] - heights[0]), box.x - 7, p, "right");
    }
    const ticks = (this.log ? logTicks : spec.ticks || linearTicks)(...this.ends, Math.max(2, box.w / 90));
    pen.strokeStyle = color("--soft");
    for (const x of ticks) {
      const p = this.across(x);
      pen.beginPath(); pen.moveTo(Math.round(p) + 0.5, box.y + box.h); pen.lineTo(Math.round(p) + 0.5, box.y + box.h + 4); pen.stroke();
      const label = spec.xTick ? spec.xTick(x) : short(x), half = pen.measureText(label).width / 2;
      this.text(label, Math.min(p, this.w - half - 1), box.y + box.h + 13);
    }
    pen.beginPath(); pen.moveTo(box.x, Math.round(box.y + box.h) + 0.5); pen.lineTo(box.x + box.w, Math.round(box.y + box.h) + 0.5); pen.stroke();
    this.text(spec.xLabel, box.x + box.w / 2, this.h - 8);
    this.sideText(spec.yLabel, 8, box.y + box.h / 2);
  }
  reference({ y }) {
    const { pen, box } = this, p = this.up(y);
    Object.assign(pen, { strokeStyle: color("--soft"), lineWidth: 1 });
    pen.setLineDash([2, 3]); pen.beginPath(); pen.moveTo(box.x, p); pen.lineTo(box.x + box.w, p); pen.stroke(); pen.setLineDash([]);
  }
  name({ y, name, curve }, lines) { // where the fewest lines pass behind it
    const { pen, box } = this, p = this.up(y), w = pen.measureText(name).width;
    if (p < box.y - 1 || p > box.y + box.h + 1) return;
    let best = null;
    for (const share of curve ? [1] : [1, 0.85, 0.7, 0.55, 0.4, 0.25]) { // the name of a curve stands at its end
      for (const top of [p - 17, p + 3]) {
        const right = box.x + share * box.w - 4;
        if (top < box.y || top + 14 > box.y + box.h || right - w < box.x + 4) continue;
        let crossed = 0;
        for (const line of lines) for (const [q, v] of line.points) if (q > right - w - 4 && q < right + 4 && this.up(v) > top - 3 && this.up(v) < top + 17) crossed++;
        if (!best || crossed < best.crossed) best = { crossed, right, top };
      }
    }
    if (!best) return;
    Object.assign(pen, { strokeStyle: color("--card"), lineWidth: 3, textAlign: "right", textBaseline: "top" });
    pen.strokeText(name, best.right, best.top + 1);
    this.text(name, best.right, best.top + 1, "right", "--soft", "top");
  }
  band({ edges: [low, high], color: k }) { // what lies between two lines
    const pen = this.pen, points = [...low, ...[...high].reverse()].filter(([, y]) => Number.isFinite(y));
    Object.assign(pen, { fillStyle: ink(k), globalAlpha: 0.16 });
    pen.beginPath();
    points.forEach(([p, y], i) => pen[i ? "lineTo" : "moveTo"](p, this.up(y)));
    pen.fill(); pen.globalAlpha = 1;
  }
  line({ points, color: k, width = 2, alpha = 1, dash = 0, dots }) {
    const pen = this.pen;
    Object.assign(pen, { strokeStyle: ink(k), fillStyle: ink(k), lineWidth: width, globalAlpha: alpha, lineJoin: "round", lineCap: "round" });
    pen.setLineDash(DASHES[dash]); pen.beginPath();
    let on = false;
    for (const [p, y] of points) {
      if (!Number.isFinite(y)) { on = false; continue; }
      pen[on ? "lineTo" : "moveTo"](p, this.up(y)); on = true;
    }
    pen.stroke(); pen.setLineDash([]);
    if (dots || points.length === 1) {
      points.forEach(([p, y], i) => {
        if (!Number.isFinite(y)) return;
        pen.beginPath(); pen.arc(p, this.up(y), Array.isArray(dots) ? dots[i] : dots || 3.5, 0, 7); pen.fill();
      });
    }
    pen.globalAlpha = 1;
  }
  point(place, y) { // the cursor and the values there
    if (!this.box) return;
    const p = this.cursor = Math.max(this.box.x, Math.min(this.box.x + this.box.w, place));
    for (const chart of this.link.charts) if (chart !== this && chart.over) chart.over.clearRect(0, 0, chart.w, chart.h);
    this.over.clearRect(0, 0, this.w, this.h);
    if (this.from !== undefined && Math.abs(p - this.from) > 6 && !this.spec.fixed) {
      this.over.fillStyle = color("--shade");
      this.over.fillRect(Math.min(p, this.from), this.box.y, Math.abs(p - this.from), this.box.h);
    }
    const found = this.spec.values(this.back(p), this);
    if (!found) return tip.hide();
    const across = Math.max(this.box.x, Math.min(this.box.x + this.box.w, this.across(found.x)));
    for (const chart of this.link.charts) chart.mark(across, chart === this ? found.rows : []);
    const rect = this.plot.getBoundingClientRect();
    tip.show(rect.left + across, y ?? rect.top + this.h / 3, found.heading, found.rows);
  }
  mark(p, rows) {
    if (!this.over || !this.box || this.host.closest("[hidden]")) return;
    Object.assign(this.over, { strokeStyle: color("--soft"), lineWidth: 1 });
    this.over.beginPath(); this.over.moveTo(Math.round(p) + 0.5, this.box.y); this.over.lineTo(Math.round(p) + 0.5, this.box.y + this.box.h); this.over.stroke();
    for (const { y, color: k } of rows) {
      if (!(y >= this.low && y <= this.high)) continue;
      Object.assign(this.over, { fillStyle: ink(k), strokeStyle: color("--card"), lineWidth: 2 });
      this.over.beginPath(); this.over.arc(p, this.up(y), 4.5, 0, 7); this.over.fill(); this.over.stroke();
    }
  }
  leave() { this.link.charts.forEach(chart => chart.over && chart.over.clearRect(0, 0, chart.w, chart.h)); tip.hide(); }
}
