// What each figure of the service's page shows. The service sends at most 256 points a curve, each of several labels.

const state = { token: "", admin: false, tenants: [], name: "", data: null, axis: "labels", fate: "all", filter: "" };
const MOST_COLORS = 8; // labels that have a color of their own

const clip = (text, most = 60) => { const all = [...String(text)]; return all.length > most ? `${all.slice(0, most - 1).join("")}…` : String(text); };
const words = (text, most) => make("bdi", { title: clip(text, 300) }, clip(text, most)); // no text can turn around those beside it

function interval(seconds) { // a time span in its own unit
  if (!Number.isFinite(seconds)) return "–";
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) if (seconds >= size) return `${+(seconds / size).toPrecision(3)} ${unit}`;
  return `${+(1000 * seconds).toPrecision(seconds < 0.01 ? 2 : 3)} ms`;
}
const clock = (seconds, precise = true) => new Date(1000 * seconds).toLocaleTimeString("en-GB", precise ? {} : { hour: "2-digit", minute: "2-digit" });
const day = seconds => new Date(1000 * seconds).toLocaleDateString("en-GB", { day: "numeric", month: "short" });
const moment = seconds => `${new Date(1000 * seconds).toDateString() === new Date().toDateString() ? "" : `${day(seconds)} `}${clock(seconds)}`;

const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 2592000];
function timeTicks(low, high, many) { // at whole minutes, hours, days of the reader's clock
  const rough = (high - low) / Math.max(many, 1), step = TIME_STEPS.find(size => size >= rough) || 2592000;
  const shift = 60 * new Date(1000 * low).getTimezoneOffset(), ticks = [];
  for (let at = Math.ceil((low - shift) / step) * step + shift; at <= high; at += step) ticks.push(at);
  return ticks;
}

// The points of the curves.

const series = () => state.data.series;
const counts = () => series().labels.map(labels => Object.values(labels).reduce((a, b) => a + b, 0));
const byTime = () => state.axis === "time";
const places = () => byTime() ? series().time : series().position;
const alarmPlaces = () => series().alarms.map(alarm => byTime() ? alarm.time : alarm.position);
const windowSize = () => Math.max(100, Math.round(counts().reduce((a, b) => a + b, 0) / 20));

function averages(values) { // over the latest labels, and over all so far
  const count = counts(), size = windowSize(), latest = [], all = [];
  let sum = 0, total = 0, inSum = 0, inTotal = 0, first = 0;
  values.forEach((value, i) => {
    sum += value * count[i]; total += count[i]; inSum += value * count[i]; inTotal += count[i];
    while (inTotal - count[first] >= size) { inSum -= values[first] * count[first]; inTotal -= count[first]; first++; }
    latest.push(inSum / inTotal); all.push(sum / total);
  });
  return { latest, all };
}

function domain(xs) {
  if (!xs.length) return byTime() ? [Date.now() / 1000 - 60, Date.now() / 1000] : [0, 1];
  const low = byTime() ? xs[0] : 0, high = xs[xs.length - 1];
  return high > low ? [low, high] : [low - 1, high + 1];
}

const fromZero = (most = () => 0) => (values, refs, zoomed) => values.length ? spread(values, [0], zoomed, most()) : [0, 1];
const labelsLink = { zoom: null, charts: [] }; // curves over labels zoom together
const overLabels = {
  link: labelsLink, height: 250, domain: () => domain(places()),
  get xLabel() { return byTime() ? "time" : "labels learned"; },
  get ticks() { return byTime() ? timeTicks : undefined; },
  xTick: x => byTime() ? timeTick(x, labelsLink.zoom || domain(places())) : short(x),
  under: chart => {
    const { pen, box } = chart;
    Object.assign(pen, { strokeStyle: color("--bad"), lineWidth: 1.5 });
    for (const at of alarmPlaces()) {
      const p = chart.across(at);
      pen.setLineDash([5, 4]); pen.beginPath(); pen.moveTo(p, box.y); pen.lineTo(p, box.y + box.h); pen.stroke(); pen.setLineDash([]);
    }
  },
};
const timeTick = (x, [low, high]) => high - low > 2 * 86400 ? day(x) : clock(x, high - low < 600);
const withGetters = (base, more) => Object.defineProperties(Object.defineProperties({}, Object.getOwnPropertyDescriptors(base)), Object.getOwnPropertyDescriptors(more));
const heading = i => byTime() ? moment(series().time[i]) : `${whole(series().position[i])} labels`;
const reached = (name, text) => () => { const all = averages(series()[name]).latest; return all.length ? `${text(all[all.length - 1])} lately.` : "No label yet."; };

function averageSpec(name, title, yLabel, text, tick, heights, refs) {
  return withGetters(overLabels, {
    title: () => title, yLabel, yTick: tick, heights, refs, summary: reached(name, text), nothing: "no label has scored a prediction yet",
    note: () => `latest ${whole(windowSize())} labels · dotted: all`,
    series: () => {
      const { latest, all } = averages(series()[name]), x = places();
      return [
        { x, y: series()[name], color: 0, width: 1, alpha: 0.3 }, { x, y: all, color: "soft", dash: 2, width: 1.4 },
        { x, y: latest, color: 0, width: 2.2 },
      ];
    },
    values: x => {
      const xs = places();
      if (!xs.length) return null;
      const i = nearest(xs, x), { latest, all } = averages(series()[name]);
      return { x: xs[i], heading: heading(i), rows: [
        { name: `latest ${whole(windowSize())}`, color: 0, y: latest[i], text: text(latest[i]) },
        { name: "all so far", color: "soft", dash: 2, y: all[i], text: text(all[i]) },
        { name: "here", color: 0, text: text(series()[name][i]) },
      ] };
    },
  });
}

const majority = () => {
  const [most] = state.data.classes, { scored } = state.data.figures;
  return most && scored ? [{ y: most.count / scored, name: "always the most frequent label" }] : [];
};
const accuracySpec = averageSpec("accuracy", "Accuracy", "accuracy (%)", value => percent(value), (y, step) => percent(y, step < 0.0095 ? 1 : 0), shareHeights, majority);
const natsSpec = averageSpec("nats", "Log-loss", "nats a label", value => `${number(value)} nats`, (y, step) => number(y, step < 0.095 ? 2 : 1), fromZero(), () => []);

const delaySpec = withGetters(overLabels, {
  title: () => "Label delay", note: () => "from prediction to label, mean", yLabel: "", yTick: y => y ? interval(y) : "0",
  heights: fromZero(), nothing: "no label has come by the id of a prediction yet",
  summary: () => { const all = series().label_delay.filter(value => value !== null); return all.length ? `${interval(all[all.length - 1])} lately.` : "No label by id yet."; },
  series: () => [{ x: places(), y: series().label_delay.map(value => value ?? NaN), color: 2, width: 2 }],
  values: x => {
    const xs = places();
    if (!xs.length) return null;
    const i = nearest(xs, x), y = series().label_delay[i];
    return { x: xs[i], heading: heading(i), rows: y === null ? [] : [{ name: "label delay", color: 2, y, text: interval(y) }] };
  },
});

const latency = () => state.data.latency || { count: [], time: [], mean: [], slowest: [] };
const latencyPlaces = () => byTime() ? latency().time : latency().count;
const middle = values => [...values].sort((a, b) => a - b)[values.length >> 1]; // one slow start must not hide all else
const latencyLink = { zoom: null, charts: [] };
const latencySpec = {
  link: latencyLink, height: 250, domain: () => domain(latencyPlaces()),
  get xLabel() { return byTime() ? "time" : "predictions since the service started"; },
  get ticks() { return byTime() ? timeTicks : undefined; },
  xTick: x => byTime() ? timeTick(x, latencyLink.zoom || domain(latencyPlaces())) : short(x),
  title: () => "Latency of predictions", note: () => "solid: mean · thin: slowest", yLabel: "", yTick: y => y ? interval(y) : "0",
  heights: fromZero(() => 4 * middle(latency().slowest)), nothing: "no prediction since the service started",
  summary: () => state.data.latency ? `Half of them within ${interval(state.data.latency.p50 ?? NaN)}.` : "",
  series: () => [
    { x: latencyPlaces(), y: latency().slowest, color: 1, width: 1, alpha: 0.75 }, { x: latencyPlaces(), y: latency().mean, color: 0, width: 2.2 },
  ],
  values: x => {
    const xs = latencyPlaces();
    if (!xs.length) return null;
    const i = nearest(xs, x), { mean, slowest } = latency();
    return { x: xs[i], heading: byTime() ? moment(latency().time[i]) : `${whole(latency().count[i])} predictions`,
      rows: [{ name: "mean", color: 0, y: mean[i], text: interval(mean[i]) }, { name: "slowest", color: 1, y: slowest[i], text: interval(slowest[i]) }] };
  },
};

// Class balance: shares of the labels, one above the other. The most frequent ones have a color, by their rank.

const named = () => state.data.classes.slice(0, MOST_COLORS).map(one => one.label);
const wide = () => Math.max(50, counts().reduce((a, b) => a + b, 0) / 30); // labels in a stretch of the picture
function shares() { // where stretches end, and their shares: one list for each label with a color, and one for all others
  const names = named(), lists = [...names, null].map(() => []), x = [], sums = names.map(() => 0), many = counts(), at = places();
  let total = 0;
  series().labels.forEach((labels, i) => {
    names.forEach((name, k) => { sums[k] += Object.hasOwn(labels, name) ? labels[name] : 0; });
    total += many[i];
    if (total < wide() && (i < many.length - 1 || x.length)) return; // what is left over is shown when there is enough of it
    names.forEach((_, k) => lists[k].push(sums[k] / total));
    lists[names.length].push(1 - sums.reduce((a, b) => a + b, 0) / total);
    x.push(at[i]); sums.fill(0); total = 0;
  });
  return { x, lists };
}
const balanceSpec = withGetters(overLabels, {
  height: 330, title: () => "Class balance", note: () => "shares of the labels, most frequent below", yLabel: "share (%)", yTick: y => percent(y, 0),
  heights: () => [0, 1.0001], nothing: "no label yet",
  summary: () => state.data.classes.slice(0, 5).map(one => `${clip(one.label)}: ${whole(one.count)}.`).join(" "),
  under: chart => {
    const { pen } = chart, { x, lists } = shares(), base = x.map(() => 0);
    const from = chart.across(domain(places())[0]), ends = x.map(one => Math.round(chart.across(one)));
    lists.forEach((list, k) => {
      Object.assign(pen, { fillStyle: k < lists.length - 1 ? ink(k) : ink("soft"), globalAlpha: k < lists.length - 1 ? 0.75 : 0.35 });
      list.forEach((share, i) => {
        const left = i ? ends[i - 1] : from, top = Math.round(chart.up(base[i] + share));
        pen.fillRect(left, top, ends[i] - left, Math.round(chart.up(base[i])) - top);
        base[i] += share;
      });
    });
    pen.globalAlpha = 1;
    overLabels.under(chart);
  },
  series: () => [{ x: places(), y: places().map(() => 1), color: "soft", width: 0.5, alpha: 0.5 }],
  values: at => {
    const { x, lists } = shares(), names = [...named().map(name => clip(name, 40)), "all others"];
    if (!x.length) return null;
    const found = x.findIndex(end => end >= at), i = found < 0 ? x.length - 1 : found;
    const rows = lists.map((list, k) => ({ name: names[k], color: k < names.length - 1 ? k : "soft", share: list[i], text: percent(list[i]) }));
    return { x: x[i], heading: `up to ${byTime() ? moment(x[i]) : `${whole(x[i])} labels`}`, rows: rows.filter(row => row.share > 1e-9).reverse() };
  },
});
