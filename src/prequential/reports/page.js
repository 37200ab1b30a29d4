// The page around the figures: numbers, legend, tables, colors, and newer data while a run goes on.

const POLL = 2000; // milliseconds
const COLUMNS = [ // heading, value, text, whether more is better (null: neither)
  ["Average accuracy", run => run.accuracy, value => percent(value), true],
  ["Balanced", run => run.balanced, value => percent(value), true],
  ["Kappa", run => run.kappa, value => number(value), true],
  ["Kappa T", run => run.kappaT, value => number(value), true],
  ["Log-loss", run => run.loss, value => number(value), false],
  ["Bits", run => run.bits, whole, false],
  ["Of uniform", run => run.compression, value => percent(value), false],
  ["Latest", run => run.last?.accuracy, value => percent(value), true],
  ["Calibration", run => run.calibrationError, value => percent(value), false],
  ["Examples", run => run.examples, whole, null],
  ["Time", run => run.seconds, duration, null],
  ["MACs", run => run.macs, scientific, null],
];

function scientific(value) {
  if (value < 1e4) return whole(value);
  const power = Math.floor(Math.log10(value)), digits = [...String(power)].map(digit => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("");
  return `${number(value / 10 ** power, 1)} × 10${digits}`;
}
const swatch = run => make("span", { className: `swatch k${look(run).color} d${look(run).dash}` });

function windows() { // round numbers of examples from a five-hundredth of the stream on
  const most = longest(), gap = Math.max(20, ...streamRuns().map(run => 2 * run.gap));
  const found = [];
  for (let power = 10; power <= most; power *= 10) {
    for (const size of [power, 2 * power, 5 * power]) if (size >= Math.max(gap, most / 500) && size <= most / 4) found.push(size);
  }
  if (!found.length) found.push(Math.max(1, Math.ceil(most / 4)));
  const select = byId("window");
  if (!found.includes(state.window)) state.window = found.find(size => size >= Math.max(100, most / 100)) || found[found.length - 1];
  select.replaceChildren(...found.map(size => make("option", { value: String(size), selected: size === state.window }, `${whole(size)} examples`)));
}

function headline(runs) {
  const host = byId("headline");
  if (runs.length === 1) {
    const [run] = runs, tile = (name, text, more) => make("div", { className: "tile" }, make("span", {}, name), make("b", {}, text), make("span", {}, more || ""));
    const told = (value, text) => value === null || value === undefined ? "–" : text(value);
    host.replaceChildren(make("div", { className: "tiles" },
      tile("Average accuracy", percent(run.accuracy), run.majority !== null ? `majority ${percent(run.majority)}, last label ${percent(run.lastLabel)}` : run.classes ? `chance ${percent(1 / run.classes)}` : ""),
      tile("Kappa", told(run.kappa, number), run.kappaT === null ? "" : `against last label ${number(run.kappaT)}`),
      tile("Balanced accuracy", told(run.balanced, percent), run.f1 === null ? "" : `macro F1 ${number(run.f1)}`),
      tile("Log-loss", told(run.loss, number), run.classes ? `nats; uniform ${number(Math.log(run.classes))}` : "nats an example"),
      tile("Description length", told(run.bits, value => short(value)), run.compression === null ? "bits" : `bits; ${percent(run.compression)} of uniform`),
      tile(run.last.what.replace("last", "Last"), percent(run.last.accuracy), run.last.loss === null ? "" : `${number(run.last.loss)} nats`),
      tile("Examples", whole(run.examples), run.length && run.length > run.examples ? `of ${whole(run.length)}` : run.tasks ? `${whole(run.tasks)} tasks` : "all"),
      tile("Time", told(run.seconds, duration), run.seconds ? `${whole(run.examples / run.seconds)} examples/s` : "known at the first save"),
      tile("MACs", told(run.macs, scientific), run.macs === null ? "not counted" : `${scientific(run.macs / run.examples)} an example`)));
    return;
  }
  host.replaceChildren(make("div", { className: "board" }, table(runs, true), referenceNote(runs)));
}

function referenceNote(runs) { // what the runs have to be better than
  const some = runs.filter(run => run.majority !== null), mean = get => some.reduce((sum, run) => sum + get(run), 0) / some.length;
  return make("p", { className: "hint" }, some.length ? `To compare: majority class ${percent(mean(run => run.majority))}, last label ${percent(mean(run => run.lastLabel))}. Best of each column in color.` : "");
}

function table(runs, groups) { // one row a run, or one a group of seeds with its range
  const lists = groups ? [...new Set(runs.map(run => run.group))].map(group => runs.filter(run => run.group === group)) : runs.map(run => [run]);
  const mean = (list, get) => { const values = list.map(get).filter(value => value !== null && value !== undefined); return values.length === list.length ? values.reduce((a, b) => a + b, 0) / values.length : null; };
  const latest = [...new Set(runs.map(run => run.last?.what))];
  const columns = COLUMNS, name = heading => heading !== "Latest" ? heading : latest.length === 1 ? latest[0].replace("last", "Last") : "Last part";
  const body = lists.map(list => {
    const cells = columns.map(([heading, get, text, more], i) => {
      const fair = lists.filter(other => other.every(run => run.loss !== null)); // an oracle, that no loss was charged, wins nothing
      const value = mean(list, get), all = fair.map(other => mean(other, get)).filter(other => other !== null);
      const alike = heading !== "Bits" || new Set(runs.map(run => run.examples)).size === 1; // fewer examples, fewer bits
      const best = more !== null && alike && value !== null && fair.includes(list) && all.length > 1 && value === all.reduce((a, b) => (more ? Math.max : Math.min)(a, b));
      const cell = make("td", { className: `${best ? "best" : ""}${i ? "" : " lead"}`, "data-name": name(heading) }, value === null ? "–" : text(value));
      if (list.length > 1 && value !== null && ["Average accuracy", "Log-loss"].includes(heading)) {
        const values = list.map(get);
        cell.append(make("small", {}, `${text(Math.min(...values)).replace(" %", "")}–${text(Math.max(...values)).replace(" %", "")}`));
      }
      return cell;
    });
    const title = groups ? state.data.groups[list[0].group] : list[0].name;
    const note = list.length > 1 ? runsOrSeeds(list.length) : list[0].state === "finished" ? "" : `unfinished${list[0].length ? `, ${percent(list[0].examples / list[0].length, 0)} done` : ""}`;
    return make("tr", {}, make("th", { scope: "row" }, swatch(list[0]), title, make("small", {}, note && ` ${note}`)), ...cells);
  });
  return make("table", {}, make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Run"), ...columns.map(([heading]) => make("th", { scope: "col" }, name(heading))))), make("tbody", {}, ...body));
}

function legend(runs) {
  const groups = [...new Set(runs.map(run => run.group))], host = byId("legend"), key = JSON.stringify(groups.map(group => state.data.groups[group]));
  host.hidden = groups.length < 2;
  if (host.dataset.key === key) return; // keeps the focus while newer data come in
  host.dataset.key = key;
  host.replaceChildren(...groups.map(group => {
    const run = runs.find(one => one.group === group);
    const button = make("button", { type: "button", "aria-pressed": String(!state.hidden.has(group)) }, swatch(run), state.data.groups[group]);
    button.onclick = () => {
      if (!state.hidden.delete(group)) state.hidden.add(group);
      button.setAttribute("aria-pressed", String(!state.hidden.has(group)));
      sections(); redraw();
    };
    return button;
  }));
}

function sections() { // those that make no sense for what is shown are left out
  byId("inside").hidden = !withTasks().length;
  classes();
  const select = byId("map-run"), some = withTasks();
  byId("map-label").hidden = some.length < 2;
  select.replaceChildren(...some.map(run => make("option", { value: run.path, selected: run.path === state.map }, run.name)));
  for (const id of ["length", "calibration", "curves"]) byId(id).hidden = !streamRuns().length;
  byId("bits").hidden = classesOf() < 2;
}

function settingsTable(runs) {
  const names = state.data.differing.map((name, i) => [name, i]).filter(([, i]) => runs.some(run => run.differing[i] !== runs[0].differing[i]));
  byId("settings").hidden = runs.length < 2 || !names.length;
  byId("t-settings").replaceChildren(make("table", {},
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Run"), ...names.map(([name]) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, ...runs.map(run => make("tr", {}, make("th", { scope: "row" }, run.x ? swatch(run) : "", run.name), ...names.map(([, i]) => make("td", {}, run.differing[i])))))));
}

function reproduce(runs) {
  const host = byId("t-reproduce"), open = new Set([...host.querySelectorAll("details[open]")].map(node => node.dataset.path));
  if (host.contains(document.activeElement) && document.documentElement.dataset.live === "yes") return; // somebody is reading
  const pairs = object => Object.entries(object).filter(([, value]) => value !== "").map(([name, value]) => `${name} ${value}`).join(" · ");
  host.replaceChildren(...runs.map(run => {
    const copy = make("button", { type: "button", className: "quiet" }, "Copy");
    copy.onclick = async () => {
      try { await navigator.clipboard.writeText(run.command); copy.textContent = "Copied"; } catch { getSelection().selectAllChildren(code); copy.textContent = "Selected"; }
    };
    const code = make("pre", {}, run.command || "the command was not recorded");
    const facts = [["Directory", run.path], ["Versions", pairs(run.versions)], ["Data fingerprint", run.fingerprint || "–"], ["Computed on", pairs(run.computed)], ["Settings", pairs(run.settings)]];
    const node = make("details", { open: runs.length === 1 || open.has(run.path) }, make("summary", {}, run.name, make("small", {}, run.failure ? `failed: ${run.failure}` : run.state)),
      make("div", { className: "inner" }, make("div", { className: "command" }, code, run.command ? copy : ""), make("dl", {}, ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]))));
    node.dataset.path = run.path;
    return node;
  }));
}

function show(data) {
  const fresh = state.data !== data;
  state.data = data;
  if (fresh) { data.runs.forEach(decode); fold(data); }
  if (data.index && !index.picked) pickSome();
  if (state.stream >= data.streams.length) state.stream = 0;
  const inStream = data.runs.filter(run => run.stream === state.stream), runs = streamRuns();
  byId("title").textContent = data.streams[state.stream] || "";
  byId("streams").hidden = data.streams.length < 2;
  choice("streams", data.streams.map((name, i) => [i, name]), state.stream, i => { state.stream = i; examples.zoom = null; show(state.data); });
  const message = byId("message");
  message.textContent = data.problem || (runs.length ? "" : data.index ? "Pick runs in the index to compare them." : "No example has been recorded yet. The first ones can be read when 1,024 are done or the run has been saved once.");
  message.hidden = !message.textContent;
  byId("main").hidden = !inStream.length && !data.index;
  for (const node of byId("main").children) if (!["reproduce", "index", "index-message"].includes(node.id)) node.hidden = !runs.length;
  indexSection();
  settingsTable(inStream.filter(isPicked)); reproduce(inStream.filter(isPicked));
  if (!runs.length) { byId("about").textContent = ""; byId("settings").hidden = true; return; }
  const same = get => { const all = [...new Set(runs.map(get))]; return all.length === 1 ? all[0] : null; };
  const tasks = same(run => run.tasks), count = same(run => run.examples), classes = same(run => run.classes);
  byId("about").textContent = [
    runs.length === 1 ? runs[0].name : `${runs.length} runs`,
    count === null ? `up to ${whole(longest())} examples` : `${whole(count)} examples`, classes && `${classes} classes`, tasks ? `${whole(tasks)} tasks` : null,
  ].filter(Boolean).join(" · ");
  headline(runs); legend(runs); windows(); sections();
  byId("numbers").hidden = !runs.some(run => seeds(run) > 1); // else the headline says it all
  byId("t-numbers").replaceChildren(table(runs, false));
  zoomButtons(); redraw();
}

function zoomButtons() {
  const first = charts[0], buttons = byId("zoom").children;
  if (!buttons.length) {
    byId("zoom").append(...[["−", "Zoom out", () => first.scale(2)], ["+", "Zoom in", () => first.scale(0.5)], ["Reset", "Reset zoom", () => first.zoomTo(null)]]
      .map(([text, label, does]) => make("button", { type: "button", "aria-label": label, title: label, onclick: does }, text)));
  }
  buttons[0].disabled = buttons[2].disabled = !examples.zoom;
}

async function poll(version) {
  const live = byId("live");
  try {
    const answer = await fetch(`data.json?version=${encodeURIComponent(version)}`, { cache: "no-store" });
    if (answer.status === 200) { const data = await answer.json(); version = data.version; show(data); }
    const runs = state.data.runs, done = runs.filter(run => run.state === "finished").length, [run] = runs;
    live.textContent = runs.length > 1 ? `live · ${done} of ${runs.length} finished` : done ? "finished" : run.length && run.examples ? `live · ${percent(run.examples / run.length, 0)}` : "live";
    live.classList.remove("off");
  } catch { live.textContent = "not connected"; live.classList.add("off"); }
  setTimeout(() => poll(version), POLL);
}

function start() {
  theme(keptTheme());
  for (const [id, Kind, spec] of [["f-accuracy", Chart, curveSpec("accuracy")], ["f-loss", Chart, curveSpec("loss")], ["f-few", Chart, fewSpec], ["f-map", HeatMap, mapSpec],
    ["f-tasks", Chart, tasksSpec], ["f-bits", Chart, bitsSpec], ["f-calibration", Chart, calibrationSpec], ["f-shares", Chart, sharesSpec]]) charts.push(new Kind(byId(id), spec));
  examples.changed = zoomButtons;
  choice("scale", [[false, "Linear"], [true, "Log"]], state.log, log => { state.log = log; if (examples.zoom && log) examples.zoom[0] = Math.max(1, examples.zoom[0]); redraw(); });
  choice("metric", [["accuracy", "Accuracy"], ["loss", "Log-loss"]], state.metric, metric => { state.metric = metric; redraw(); });
  choice("bits", [["total", "In all"], ["saved", "Saved"]], state.bits, bits => { state.bits = bits; redraw(); });
  byId("window").onchange = event => { state.window = Number(event.target.value); redraw(); };
  byId("class-run").onchange = event => { state.classes = event.target.value; classes(); redraw(); };
  startIndex();
  byId("map-run").onchange = event => { state.map = event.target.value; redraw(); };
  document.addEventListener("pointerdown", event => { if (!event.target.closest(".plot")) charts.forEach(chart => chart.leave()); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const data = JSON.parse(byId("data").textContent);
  show(data);
  if (document.documentElement.dataset.live === "yes") { byId("live").hidden = false; poll(data.version ?? ""); }
}
start();
