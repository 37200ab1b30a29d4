// What each figure shows. The curves hold sums up to some positions, so averages over any stretch are differences.

const state = { data: null, stream: 0, hidden: new Set(), log: false, window: 0, metric: "accuracy", bits: "total", map: "", classes: "" };
const METRICS = {
  accuracy: { name: "Accuracy", text: value => percent(value), tick: (y, step) => percent(y, step < 0.0095 ? 1 : 0), label: "accuracy (%)" },
  loss: { name: "Log-loss", text: value => `${number(value)} nats`, tick: (y, step) => number(y, step < 0.095 ? 2 : 1), label: "log-loss (nats an example)" },
};
const LN2 = Math.log(2);

function decode(run) { // the page's data hold differences
  if (!run.curve) return;
  const sums = steps => { let total = 0; return Float64Array.from(steps, step => (total += step)); };
  run.x = sums(run.curve.x); run.right = sums(run.curve.right);
  run.nats = new Float64Array(run.x.length).fill(NaN); // from the first infinite loss on there is no sum
  run.nats.set(sums(run.curve.nats).map(value => value / 1000));
  run.gap = run.curve.x.reduce((a, b) => Math.max(a, b), 1);
}

const streamRuns = () => state.data.runs.filter(run => run.stream === state.stream && run.x && isPicked(run));
const shown = () => streamRuns().filter(run => !state.hidden.has(run.group));
const longest = () => Math.max(1, ...streamRuns().map(run => run.examples));
const look = run => ({ color: run.group % 10, dash: Math.min(2, Math.floor(run.group / 10)) });
const seeds = run => streamRuns().filter(other => other.group === run.group).length;

function upTo(run, sums, x) { // the sum up to a position between two points
  const { x: at } = run;
  let low = -1, high = at.length - 1;
  if (x >= at[high]) return sums[high];
  while (high - low > 1) { const middle = (low + high) >> 1; if (at[middle] <= x) low = middle; else high = middle; }
  const x0 = low < 0 ? 0 : at[low], y0 = low < 0 ? 0 : sums[low];
  return y0 + (sums[high] - y0) * (x - x0) / (at[high] - x0);
}
function averages(run, metric) {
  const sums = metric === "accuracy" ? run.right : run.nats;
  return {
    all: x => upTo(run, sums, x) / x,
    latest: x => { const w = Math.min(Math.max(state.window, run.gap), x); return (upTo(run, sums, x) - upTo(run, sums, x - w)) / w; },
  };
}

const classesOf = () => Math.max(...streamRuns().map(run => run.classes || 0));
const lossHeights = (values, refs, zoomed) => spread(values, refs, zoomed, classesOf() > 1 ? 2 * Math.log(classesOf()) : 0);
const heightsOf = metric => (...given) => (metric() === "accuracy" ? shareHeights : lossHeights)(...given);
const REFERENCES = { majority: ["majority class", 2], lastLabel: ["last label", 1] };
const known = () => streamRuns().find(run => run.classScores); // the labels, and what follows from them, are those of the stream
function references(metric) { // names at the right; lines of their own where a reference is the same everywhere
  const classes = classesOf(), run = known();
  if (metric === "accuracy" && run) {
    const [majority, last] = [run.majority, run.lastLabel];
    if (Math.abs(majority - last) < 0.02) return [{ y: Math.max(majority, last), name: "majority class, last label", curve: true }];
    return Object.entries(REFERENCES).map(([key, [name]]) => ({ y: run[key], name, curve: true }));
  }
  if (classes < 2) return [];
  return [metric === "accuracy" ? { y: 1 / classes, name: "chance" } : { y: Math.log(classes), name: "uniform" }];
}
const chanceOnly = metric => references(metric).map(ref => ({ ...ref, curve: false }));
function referenceCurves(metric) {
  const run = metric === "accuracy" && known();
  if (!run) return [];
  const { references: curves } = run.classScores, from = curves.x.findIndex(x => x >= Math.min(100, run.examples / 10));
  return Object.entries(REFERENCES).map(([key, [, dash]]) => ({ color: "soft", dash, width: 1.1, alpha: 0.8, x: curves.x.slice(from), y: curves[key].slice(from) }));
}

function lines(value, drawn, bands = false) { // one line a group: its run, or the mean of its runs with a band from the lowest to the highest
  const groups = [...new Set(shown().map(run => run.group))];
  return groups.map(group => {
    const runs = shown().filter(run => run.group === group), fs = runs.map(value), all = x => fs.map(f => f(x));
    const begun = runs.map(begins), common = { from: Math.max(...begun.map(b => b.from)), to: Math.min(...begun.map(b => b.to)), steady: Math.max(...begun.map(b => b.steady)) };
    const mean = x => all(x).reduce((a, b) => a + b, 0) / fs.length;
    const band = bands && runs.length > 1 ? [x => Math.min(...all(x)), x => Math.max(...all(x))] : null;
    return { ...look(runs[0]), ...common, f: mean, band, ...drawn };
  });
}

function byGroup(runs, value) { // one row for runs that differ in the seed only
  const rows = new Map();
  for (const run of runs) {
    const found = value(run);
    if (!found || !Number.isFinite(found.y)) continue;
    if (!rows.has(run.group)) rows.set(run.group, { ...look(run), name: state.data.groups[run.group], all: [] });
    rows.get(run.group).all.push(found);
  }
  const mean = list => list.reduce((a, b) => a + b, 0) / list.length;
  return [...rows.values()].map(row => ({
    ...row, y: mean(row.all.map(one => one.y)), z: mean(row.all.map(one => one.z)),
    name: row.all.length > 1 ? `${row.name} (${runsOrSeeds(row.all.length)})` : row.name,
  }));
}

const summaryOf = metric => () => shown().filter(run => run[metric] !== null).slice(0, 8)
  .map(run => `${run.name}: ${METRICS[metric].text(run[metric])} in the end.`).join(" ");

const examples = { zoom: null, charts: [] }; // everything over examples zooms together
const overExamples = {
  link: examples, xLabel: "examples", log: () => state.log,
  domain: () => [state.log ? Math.min(10, longest() / 2) : 0, longest()],
};
const begins = run => ({ from: Math.min(10, run.examples / 2), to: run.examples, steady: Math.min(100, run.examples / 10) });

function curveSpec(metric) {
  const { name, text, tick, label } = METRICS[metric];
  return {
    ...overExamples, title: () => name, yLabel: label, yTick: tick, heights: heightsOf(() => metric), summary: summaryOf(metric),
    note: () => `faint: latest ${whole(state.window)} examples`,
    refs: () => references(metric), nothing: metric === "loss" ? "no finite log-loss" : undefined,
    series: () => [
      ...referenceCurves(metric),
      ...lines(run => averages(run, metric).latest, { width: 1.2, alpha: 0.38 }),
      ...lines(run => averages(run, metric).all, { width: 2.2 }, true),
    ],
    values: x => {
      const here = Math.max(1, Math.round(x)), sign = metric === "accuracy" ? -1 : 1;
      const rows = byGroup(shown(), run => here > run.examples ? null : { y: averages(run, metric).all(here), z: averages(run, metric).latest(here) });
      rows.sort((a, b) => sign * (a.y - b.y));
      return { x: here, heading: `${whole(here)} examples · so far | latest`, rows: rows.map(row => ({ ...row, text: `${text(row.y).replace(" nats", "")} | ${text(row.z).replace(" nats", "")}` })) };
    },
  };
}

const bitsSpec = {
  ...overExamples, yLabel: "bits", height: 330,
  title: () => state.bits === "total" ? "Bits to tell all labels so far" : "Bits saved against the uniform code",
  note: () => state.bits === "total" ? "dotted: uniform code" : "higher is better",
  yTick: y => short(y), heights: (values, refs, zoomed) => {
    const [low, high] = spread(values, refs, zoomed, state.bits === "total" && classesOf() > 1 ? 2 * longest() * Math.log2(classesOf()) : 0);
    return [low, high];
  },
  refs: () => state.bits === "total" ? [] : [{ y: 0, name: "uniform code" }],
  nothing: "no finite description length",
  f: run => state.bits === "total" ? x => upTo(run, run.nats, x) / LN2 : x => x * Math.log2(run.classes) - upTo(run, run.nats, x) / LN2,
  series: () => {
    const drawn = lines(bitsSpec.f, { width: 2.2 }, true), classes = classesOf();
    if (state.bits === "total" && classes > 1) drawn.unshift({ color: "soft", dash: 2, width: 1, from: 1, to: longest(), f: x => x * Math.log2(classes) });
    return drawn;
  },
  values: x => {
    const here = Math.max(1, Math.round(x));
    const rows = byGroup(shown(), run => here > run.examples ? null : { y: bitsSpec.f(run)(here), z: upTo(run, run.nats, here) / LN2 / here });
    rows.sort((a, b) => (state.bits === "total" ? 1 : -1) * (a.y - b.y));
    return { x: here, heading: `${whole(here)} examples`, rows: rows.map(row => ({ ...row, text: `${whole(row.y)} bits` })) };
  },
};

function pooled(lines) { // the means of lines of the same group and part that have the same points: seeds
  const sets = new Map();
  for (const line of lines) {
    const key = JSON.stringify([line.run.group, line.part?.when, line.x]);
    sets.set(key, [...(sets.get(key) || []), line]);
  }
  return [...sets.values()].map(same => ({ ...same[0], y: same[0].y.map((_, i) => same.reduce((sum, line) => sum + line.y[i], 0) / same.length) }));
}

const withTasks = () => shown().filter(run => run.inside);
const metricOf = () => METRICS[state.metric];
const tasksCommon = {
  get yLabel() { return metricOf().label; }, yTick: (y, step) => metricOf().tick(y, step),
  heights: heightsOf(() => state.metric), refs: () => chanceOnly(state.metric), summary: () => "",
};

const alone = () => new Set(withTasks().map(run => run.group)).size === 1;
function fewSeries() { // alone: early to late, from faint to full; several: early dashed, late solid
  return pooled(withTasks().flatMap(run => run.inside.few.filter(part => alone() || part.when !== "middle").map(part => ({
    run, part, x: part.x, y: part[state.metric].map(value => value ?? NaN), color: look(run).color, width: part.when === "last" ? 2.4 : 1.8,
    dash: part.when === "first" && !alone() ? 1 : 0, alpha: !alone() || part.when === "last" ? 1 : part.when === "middle" ? 0.62 : 0.34,
  }))));
}
const fewSpec = {
  ...Object.defineProperties({}, Object.getOwnPropertyDescriptors(tasksCommon)),
  title: () => `${metricOf().name} by position in the task`, height: 330, fixed: true, xLabel: "position in the task", log: () => true,
  note: () => alone() ? `faint to full: ${withTasks()[0].inside.few.map(part => part.what).join(", ")}` : "dashed: first tasks, solid: last tasks",
  domain: () => [0.95, Math.max(10, ...withTasks().flatMap(run => run.inside.map.last)) * 1.03],
  series: fewSeries,
  values: x => {
    const all = fewSeries();
    if (!all.length) return null;
    const xs = all[0].x, at = xs[nearest(xs, x, true)];
    const when = ["last", "middle", "first"];
    all.sort((a, b) => when.indexOf(a.part.when) - when.indexOf(b.part.when));
    const rows = all.map(line => ({ ...line, y: line.y[nearest(line.x, at, true)], name: `${state.data.groups[line.run.group]}, ${line.part.what}` }));
    return { x: at, heading: `position ${whole(at)} in the task`, rows: rows.filter(row => Number.isFinite(row.y)).map(row => ({ ...row, text: metricOf().text(row.y) })) };
  },
};
const byTask = run => run.inside.byTask;
const tasksSpec = {
  ...Object.defineProperties({}, Object.getOwnPropertyDescriptors(tasksCommon)),
  title: () => `${metricOf().name} of each task`, height: 240, xLabel: "task", ticks: (...given) => linearTicks(...given).filter(Number.isInteger), // there is no half task
  note: () => { const x = withTasks().length ? byTask(withTasks()[0]).x : []; return x.length > 1 && x[1] - x[0] > 1 ? `each point: ${Math.round(x[1] - x[0])} tasks` : ""; },
  domain: () => [0, Math.max(1, ...withTasks().map(run => run.tasks - 1))],
  series: () => pooled(withTasks().map(run => ({ run, ...look(run), x: byTask(run).x, y: byTask(run)[state.metric].map(value => value ?? NaN), width: 1.8, dots: byTask(run).x.length <= 120 ? 2.6 : 0 }))),
  values: x => {
    if (!withTasks().length) return null;
    const xs = byTask(withTasks()[0]).x, at = xs[nearest(xs, x)];
    const rows = byGroup(withTasks(), run => { const i = byTask(run).x.indexOf(at); return i < 0 ? null : { y: byTask(run)[state.metric][i] ?? NaN, z: 0 }; });
    rows.sort((a, b) => (state.metric === "accuracy" ? -1 : 1) * (a.y - b.y));
    return { x: at, heading: Number.isInteger(at) ? `task ${at}` : `tasks around ${Math.round(at)}`, rows: rows.map(row => ({ ...row, text: metricOf().text(row.y) })) };
  },
};

const FEW_PREDICTIONS = 20; // a bin with fewer of them says nothing
function confidences() { // by confidence, the seeds of a run together
  const groups = [...new Set(shown().map(run => run.group))];
  return groups.map(group => {
    const runs = shown().filter(run => run.group === group), total = runs.reduce((sum, run) => sum + run.examples, 0);
    const count = runs[0].calibration.count.map((_, i) => runs.reduce((sum, run) => sum + run.calibration.count[i], 0));
    const mean = what => count.map((n, i) => n ? runs.reduce((sum, run) => sum + run.calibration.count[i] * (run.calibration[what][i] ?? 0), 0) / n : NaN);
    return { ...look(runs[0]), name: state.data.groups[group], count, share: count.map(n => n / total), confidence: mean("confidence"), accuracy: mean("accuracy") };
  });
}
const calibrationSpec = {
  title: () => "Accuracy by confidence", note: () => "larger dots and bars: more predictions", height: 330, fixed: true,
  xLabel: "confidence (%)", yLabel: "accuracy (%)", yTick: y => percent(y, 0), xTick: x => percent(x, 0),
  domain: () => [0, 1], heights: () => [0, 1.005],
  summary: () => shown().slice(0, 8).map(run => `${run.name}: calibration error ${percent(run.calibrationError)}.`).join(" "),
  under: chart => {
    const { pen, box } = chart;
    Object.assign(pen, { strokeStyle: color("--soft"), lineWidth: 1 });
    pen.setLineDash([2, 3]); pen.beginPath(); pen.moveTo(chart.across(0), chart.up(0)); pen.lineTo(chart.across(1), chart.up(1)); pen.stroke(); pen.setLineDash([]);
    const some = confidences(), wide = box.w / 20 / Math.max(1, some.length);
    some.forEach((group, i) => {
      Object.assign(pen, { fillStyle: ink(group.color), globalAlpha: 0.22 });
      group.share.forEach((share, bin) => {
        const tall = 0.45 * box.h * share;
        pen.fillRect(box.x + box.w * bin / 20 + wide * i + 0.5, box.y + box.h - tall, Math.max(wide - 1, 0.5), tall);
      });
    });
    pen.globalAlpha = 1;
  },
  series: () => confidences().map(group => {
    const held = group.count.map((_, i) => i).filter(i => group.count[i] >= Math.min(FEW_PREDICTIONS, Math.max(...group.count)));
    return { ...group, x: held.map(i => group.confidence[i]), y: held.map(i => group.accuracy[i]), width: 1.6, dots: held.map(i => 1.5 + 7 * Math.sqrt(group.share[i])) };
  }),
  values: x => {
    const bin = Math.max(0, Math.min(19, Math.floor(x * 20))), some = confidences().filter(group => group.share[bin] > 0);
    return { x: (bin + 0.5) / 20, heading: `confidence ${5 * bin}–${5 * bin + 5} % · accuracy | share of predictions`, rows: some.map(group => ({ ...group, text: `${percent(group.accuracy[bin])} | ${percent(group.share[bin])}` })) };
  },
};

const SCALE = ["#10204c", "#243f7d", "#3d5f8f", "#627c8e", "#8a9a86", "#b5b876", "#dfd65f", "#fdf05a"].map(hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16)));
function shade(share) { // dark blue to yellow, also for color-blind readers
  const at = Math.max(0, Math.min(0.9999, share)) * (SCALE.length - 1), i = Math.floor(at);
  return `rgb(${SCALE[i].map((part, c) => Math.round(part + (at - i) * (SCALE[i + 1][c] - part))).join(",")})`;
}

class HeatMap extends Canvas { // tasks from left to right, positions in the task from below
  constructor(host, spec) {
    super(host, spec);
    for (const kind of ["pointermove", "pointerdown"]) this.plot.addEventListener(kind, event => {
      const rect = this.plot.getBoundingClientRect();
      this.read(event.clientX - rect.left, event.clientY - rect.top);
    });
    this.plot.addEventListener("keydown", event => {
      const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
      if (!by || !this.cells) return;
      event.preventDefault(); this.cell((this.at?.[0] ?? 0) + by[0], (this.at?.[1] ?? 0) + by[1]);
    });
  }
  draw() {
    const run = this.spec.run();
    if (!run || !this.begin()) return;
    const { pen } = this, map = this.cells = run.inside.map, table = map[state.metric];
    const box = this.box = { x: 58, y: 8, w: this.w - 58 - 70, h: this.h - 48 };
    const all = table.flat().filter(value => value !== null);
    this.high = state.metric === "accuracy" ? 1 : Math.max(0.01, Math.min(all.reduce((a, b) => Math.max(a, b), 0), 2 * Math.log(run.classes || 10)));
    const tone = value => shade(state.metric === "accuracy" ? value / this.high : 1 - value / this.high);
    const columns = table.length, rows = map.first.length;
    pen.fillStyle = color("--empty"); pen.fillRect(box.x, box.y, box.w, box.h);
    table.forEach((column, i) => column.forEach((value, j) => {
      if (value === null) return;
      const x = Math.round(box.x + box.w * i / columns), y = Math.round(box.y + box.h * (1 - (j + 1) / rows));
      pen.fillStyle = tone(value);
      pen.fillRect(x, y, Math.round(box.x + box.w * (i + 1) / columns) - x, Math.round(box.y + box.h * (1 - j / rows)) - y);
    }));
    let before = Infinity;
    map.first.forEach((first, j) => {
      const y = box.y + box.h * (1 - (j + 0.5) / rows);
      if (before - y >= 17) { this.text(short(first), box.x - 7, y, "right"); before = y; }
    });
    const last = map.lastTask[columns - 1] + 1;
    for (const task of linearTicks(0, last, Math.max(2, box.w / 70))) {
      if (Number.isInteger(task) && task < last) this.text(short(task), box.x + box.w * (task + 0.5) / last, box.y + box.h + 13);
    }
    this.text("task", box.x + box.w / 2, this.h - 8);
    this.sideText("position in the task", 8, box.y + box.h / 2);
    for (let i = 0; i < box.h; i++) { pen.fillStyle = tone(this.high * (1 - i / box.h)); pen.fillRect(this.w - 56, box.y + i, 12, 1.5); }
    for (const share of [0, 0.5, 1]) this.text(metricOf().tick(this.high * share, 1), this.w - 39, Math.min(box.y + box.h - 6, Math.max(box.y + 6, box.y + box.h * (1 - share))), "left");
  }
  read(x, y) {
    const { box } = this;
    if (!box || x < box.x || x >= box.x + box.w || y < box.y || y >= box.y + box.h) return this.leave();
    const columns = this.cells.firstTask.length, rows = this.cells.first.length;
    this.cell(Math.floor((x - box.x) / box.w * columns), Math.floor((1 - (y - box.y) / box.h) * rows));
  }
  cell(i, j) {
    const map = this.cells, { box, over } = this, columns = map.firstTask.length, rows = map.first.length;
    this.at = [i, j] = [Math.max(0, Math.min(columns - 1, i)), Math.max(0, Math.min(rows - 1, j))];
    const to = (a, b) => a === b ? `${a}` : `${a}–${b}`, value = map[state.metric][i][j], run = this.spec.run();
    over.clearRect(0, 0, this.w, this.h);
    Object.assign(over, { strokeStyle: color("--ink"), lineWidth: 2 });
    const x = box.x + box.w * i / columns, y = box.y + box.h * (1 - (j + 1) / rows), rect = this.plot.getBoundingClientRect();
    over.strokeRect(x, y, box.w / columns, box.h / rows);
    tip.show(rect.left + x + box.w / columns, rect.top + y, `task ${to(map.firstTask[i], map.lastTask[i])}, position ${to(map.first[j], map.last[j])}`,
      [{ ...look(run), name: run.name, text: value === null ? "no example" : metricOf().text(value) }]);
  }
}
const mapSpec = {
  run: () => withTasks().find(run => run.path === state.map) || withTasks()[0],
  title: () => `${metricOf().name} by task and position`, note: () => withTasks().length > 1 ? mapSpec.run().name : "", height: 330,
};
