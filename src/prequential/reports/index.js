// The index of many runs: sort, filter, fold by a setting, and pick those that the figures compare.

const SEEDS = "Seeds", EACH = "Nothing", LEARNER = "Learner", FOLDER = "Folder"; // ways to fold runs into rows
const FEW_PICKS = 6; // rows that are picked at first where there are many
const index = { text: "", sort: "Accuracy", down: true, by: SEEDS, picked: null };
const INDEX_COLUMNS = [ // heading, value of a run, text, whether a range is shown
  ["Accuracy", run => run.accuracy, value => percent(value), true],
  ["Majority", run => run.majority, value => percent(value)],
  ["Last label", run => run.lastLabel, value => percent(value)],
  ["Kappa", run => run.kappa, value => number(value)],
  ["Kappa T", run => run.kappaT, value => number(value)],
  ["Log-loss", run => run.loss, value => number(value), true],
  ["Examples", run => run.examples, whole],
  ["Time", run => run.seconds, duration],
  ["Begun", run => run.when, value => new Date(1000 * value).toISOString().slice(0, 10)],
];
const settingOf = (run, name) => run.differing[state.data.differing.indexOf(name)];
const foldable = () => state.data.differing.filter(name => !["seed", "stream", "learner"].includes(name));
const folderOf = run => run.path.split("/").slice(0, -1).join("/") || ".";

function foldedName(run) { // runs with the same name are folded
  switch (index.by) {
    case SEEDS: return run.seedless;
    case EACH: return run.path;
    case LEARNER: return run.learner;
    case FOLDER: return folderOf(run);
    default: return `${run.learner}, ${index.by} ${settingOf(run, index.by)}`;
  }
}

function fold(data) { // gives each run the number of its group, by which the figures draw it
  if (!data.index) return;
  for (const run of data.runs) run.seedless ??= data.groups[run.group];
  const names = data.runs.map(foldedName);
  data.groups = [...new Set(names)];
  data.runs.forEach((run, i) => { run.group = data.groups.indexOf(names[i]); run.name = index.by === EACH ? run.path : `${names[i]}, seed ${run.seed}`; });
}

const runsOrSeeds = count => `${count} ${state.data.index && index.by !== SEEDS ? "runs" : "seeds"}`; // what a row or a line stands for
const rowKey = run => JSON.stringify([state.data.groups[run.group], run.stream]);
const isPicked = run => !state.data.index || index.picked.has(rowKey(run));

function indexRows() {
  const rows = new Map();
  for (const run of state.data.runs) rows.set(rowKey(run), [...(rows.get(rowKey(run)) || []), run]);
  const mean = (runs, get) => { const values = runs.map(get).filter(value => value !== null && value !== undefined); return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null; };
  return [...rows].map(([key, runs]) => ({ key, runs, name: state.data.groups[runs[0].group], stream: state.data.streams[runs[0].stream], values: Object.fromEntries(INDEX_COLUMNS.map(([heading, get]) => [heading, mean(runs, get)])) }));
}

function matches(row) { // every word is part of a name, a path, or of setting=value
  const texts = row.runs.map(run => [row.name, row.stream, run.path, run.state, ...Object.entries(run.settings).map(([name, value]) => `${name}=${value}`)].join("\n").toLowerCase());
  return index.text.toLowerCase().split(/\s+/).every(word => texts.some(text => text.includes(word)));
}

function sorted(rows) {
  const by = row => index.sort === "Run" ? row.name : index.sort === "Stream" ? row.stream : row.values[index.sort];
  const order = (a, b) => typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  return [...rows].sort((a, b) => {
    const [x, y] = [by(a), by(b)];
    if (x === null || y === null) return (x === null) - (y === null); // what is not known comes last, however it is sorted
    return (index.down ? -1 : 1) * order(x, y);
  });
}

function pickSome() { // at first, and when runs are folded anew: the best few of the first stream
  const best = indexRows().filter(row => row.values.Accuracy !== null).sort((a, b) => b.values.Accuracy - a.values.Accuracy);
  const some = best.filter(row => row.runs[0].stream === state.stream);
  index.picked = new Set((some.length ? some : best).slice(0, FEW_PICKS).map(row => row.key));
}

function pick(row, on) {
  if (on) index.picked.add(row.key); else index.picked.delete(row.key);
  if (on) state.stream = row.runs[0].stream; // the figures show one stream at a time
  examples.zoom = null;
  show(state.data);
}

function indexRow(row, manyStreams) {
  const box = make("input", { type: "checkbox", checked: index.picked.has(row.key), "aria-label": `compare ${row.name}` });
  box.onchange = () => pick(row, box.checked);
  const states = [...new Set(row.runs.map(run => run.failure ? "failed" : run.state))].filter(text => text !== "finished");
  const note = [row.runs.length > 1 ? `${row.runs.length} runs` : "", ...states].filter(Boolean).join(", ");
  const cells = INDEX_COLUMNS.map(([heading, get, text, wide]) => {
    const value = row.values[heading], cell = make("td", {}, value === null ? "–" : text(value));
    const values = row.runs.map(get).filter(one => one !== null && one !== undefined);
    if (wide && values.length > 1) cell.append(make("small", {}, `${text(Math.min(...values)).replace(" %", "")}–${text(Math.max(...values)).replace(" %", "")}`));
    return cell;
  });
  const worse = row.values.Accuracy !== null && row.values["Last label"] !== null && row.values.Accuracy <= Math.max(row.values.Majority, row.values["Last label"]);
  if (worse) { cells[0].classList.add("worse"); cells[0].title = "no better than the majority class or the last label"; }
  return make("tr", { className: index.picked.has(row.key) ? "picked" : "" }, make("td", { className: "pick" }, box),
    make("th", { scope: "row" }, row.name, make("small", {}, note && ` ${note}`)), ...cells, ...(manyStreams ? [make("td", { className: "words" }, row.stream)] : []));
}

function indexTable() {
  const all = indexRows(), rows = sorted(all.filter(matches)), manyStreams = state.data.streams.length > 1;
  const heading = name => {
    const arrow = index.sort === name ? (index.down ? " ↓" : " ↑") : "";
    const button = make("button", { type: "button", className: "sort" }, `${name}${arrow}`);
    button.onclick = () => { index.down = index.sort === name ? !index.down : !["Run", "Stream", "Log-loss", "Time"].includes(name); index.sort = name; indexTable(); byId("t-index").querySelectorAll("button.sort")[names.indexOf(name)].focus(); };
    return make("th", { scope: "col", className: name === "Stream" ? "words" : "", "aria-sort": index.sort === name ? (index.down ? "descending" : "ascending") : "none" }, button);
  };
  const names = ["Run", ...INDEX_COLUMNS.map(([name]) => name), ...(manyStreams ? ["Stream"] : [])];
  byId("t-index").replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, make("td", { className: "pick" }), ...names.map(heading))), make("tbody", {}, ...rows.map(row => indexRow(row, manyStreams)))));
  byId("index-count").textContent = `${rows.length === all.length ? "" : `${rows.length} of `}${all.length} rows, ${state.data.runs.length} runs, ${index.picked.size} picked`;
}

function indexSection() {
  byId("index").hidden = !state.data.index;
  if (!state.data.index) return;
  const ways = [SEEDS, EACH, LEARNER, FOLDER, ...foldable()], select = byId("index-by");
  if (select.children.length !== ways.length) select.replaceChildren(...ways.map(way => make("option", { value: way, selected: way === index.by }, way)));
  indexTable();
}

function startIndex() {
  byId("index-text").oninput = event => { index.text = event.target.value.trim(); indexTable(); };
  byId("index-by").onchange = event => { index.by = event.target.value; fold(state.data); state.hidden.clear(); pickSome(); show(state.data); };
  byId("index-all").onclick = () => { index.picked = new Set([...index.picked, ...indexRows().filter(matches).map(row => row.key)]); show(state.data); };
  byId("index-none").onclick = () => { index.picked.clear(); show(state.data); };
}
