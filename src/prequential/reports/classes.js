// What the page shows of classes: scores of each, what it is taken for, and how common it is over time.

const withClasses = () => shown().filter(run => run.classScores);
const classRun = () => withClasses().find(run => run.path === state.classes) || withClasses()[0];
const clipped = (text, most = 24) => { const all = [...text]; return all.length > most ? `${all.slice(0, most - 1).join("")}…` : text; };
const labelCell = (tag, label, props = {}) => make(tag, { ...props, title: label }, make("bdi", {}, clipped(label)));

function classTable(run) {
  const { table, many } = run.classScores, text = value => value === null ? "–" : number(value);
  const bar = share => { const node = make("span", { className: "meter" }), fill = make("span"); fill.style.width = `${100 * share}%`; node.append(fill); return node; };
  const rows = table.label.map((label, i) => make("tr", {}, labelCell("th", label, { scope: "row" }),
    make("td", {}, whole(table.support[i])), make("td", {}, percent(table.support[i] / run.examples)),
    make("td", {}, bar(table.recall[i] ?? 0), text(table.recall[i])), make("td", {}, text(table.precision[i])), make("td", {}, text(table.f1[i]))));
  const note = many > table.label.length ? make("caption", {}, `the ${table.label.length} most frequent of ${whole(many)} classes`) : "";
  return make("table", {}, note, make("thead", {}, make("tr", {}, ...["Class", "Support", "Share", "Recall", "Precision", "F1"].map(name => make("th", { scope: "col" }, name)))), make("tbody", {}, ...rows));
}

function confusionTable(run) { // rows: the label; columns: what was predicted for it
  const { label, count } = run.classScores.confusion;
  const rows = count.map((row, i) => {
    const total = row.reduce((a, b) => a + b, 0);
    return make("tr", {}, labelCell("th", label[i], { scope: "row" }), ...row.map((times, j) => {
      const share = total ? times / total : 0;
      const cell = make("td", { className: i === j ? "right" : "", title: `${label[i]} predicted as ${label[j]}: ${whole(times)} times, ${percent(share)}` }, share >= 0.005 ? whole(100 * share) : "");
      cell.style.setProperty("--share", String(Math.round(100 * Math.sqrt(share))));
      return cell;
    }));
  });
  return make("table", { className: "confusion" }, make("caption", {}, "rows: the label; columns: what was predicted, in percent of the row"),
    make("thead", {}, make("tr", {}, make("td"), ...label.map(text => labelCell("th", text, { scope: "col" })))), make("tbody", {}, ...rows));
}

function classes() {
  const run = classRun(), select = byId("class-run");
  byId("classes").hidden = !run;
  if (!run) return;
  byId("class-label").hidden = withClasses().length < 2;
  select.replaceChildren(...withClasses().map(one => make("option", { value: one.path, selected: one === run }, one.name)));
  byId("t-classes").replaceChildren(classTable(run));
  byId("t-confusion").replaceChildren(confusionTable(run));
}

function stacked() { // the shares of labels, one upon the other: lines of their upper edges
  const run = classRun();
  if (!run) return [];
  const { label, x, share } = run.classScores.shares, below = x.map(() => 0);
  const steps = values => [values[0], ...values.flatMap((value, i) => i ? [values[i - 1], value] : []), values[values.length - 1]];
  const at = [0, ...x.slice(0, -1).flatMap(end => [end, end]), x[x.length - 1]];
  return label.map((name, i) => {
    const from = [...below];
    share[i].forEach((value, j) => { below[j] += value; });
    return { name, color: name === "(other)" ? "soft" : i % 10, x: at, low: steps(from), y: steps([...below]), share: share[i], width: 0.6 };
  });
}
const sharesSpec = {
  title: () => "Share of each label over time", note: () => withClasses().length > 1 ? classRun().name : "", height: 260, fixed: true,
  xLabel: "examples", yLabel: "share (%)", yTick: y => percent(y, 0), domain: () => [0, classRun() ? classRun().examples : 1], heights: () => [0, 1.001],
  summary: () => classRun() ? classRun().classScores.shares.label.join(", ") : "",
  under: chart => {
    const { pen } = chart;
    for (const { x, low, y, color: k } of stacked()) {
      Object.assign(pen, { fillStyle: ink(k), globalAlpha: 0.75 });
      pen.beginPath();
      x.forEach((at, i) => pen[i ? "lineTo" : "moveTo"](chart.across(at), chart.up(y[i])));
      for (let i = x.length - 1; i >= 0; i--) pen.lineTo(chart.across(x[i]), chart.up(low[i]));
      pen.fill();
    }
    pen.globalAlpha = 1;
  },
  series: stacked,
  values: at => {
    const run = classRun();
    if (!run) return null;
    const { x } = run.classScores.shares, i = Math.max(0, x.findIndex(end => at <= end));
    const rows = stacked().map(line => ({ color: line.color, name: clipped(line.name), y: NaN, text: percent(line.share[i]) })).reverse();
    return { x: at, heading: `examples ${whole((x[i - 1] || 0) + 1)}–${whole(x[i])} of ${run.name}`, rows };
  },
};
