// The page of the service: sign in, the list of tenants, and one tenant, kept up to date by server-sent events.

const KEPT = "prequential-token"; // in the session of this tab only
const REFRESH = 1000, POLL = 2000, OVERVIEW = 5000, HEARTBEAT = 5000; // milliseconds
const MOST_TENANTS = 200, MOST_RECENT = 50;
const FATES = { waiting: "… waiting", right: "✓ right", wrong: "✗ wrong", expired: "– expired" };
const FIELDS = [["Bytes on disk", data => `${short(data.state.bytes)}B`], ["Engine", data => data.state.engine], ["Labels that came first and wait", data => whole(data.state.labels_waiting)],
  ["Expired predictions", data => whole(data.state.expired)], ["Labels without a prediction to score", data => whole(data.figures.unscored)], ["Rows that wait to be learned", data => whole(data.log_lag)],
  ["Columns", data => data.state.schema ? JSON.stringify(data.state.schema.columns ?? data.state.schema) : null], ["Settings", data => JSON.stringify(data.tenant.settings)],
  ["Quotas", data => JSON.stringify(data.tenant.quotas)], ["Notes", data => (data.state.notes || []).join(" · ")]];

class Refused extends Error { constructor(status, message) { super(message); this.status = status; } }

let session = new AbortController(); // ended when another token or another tenant is looked at
let dirty = false, heard = false, asked = 0, wait = 0;

const headers = () => ({ Authorization: `Bearer ${state.token}` });
async function get(path) {
  const answer = await fetch(path, { headers: headers(), cache: "no-store", signal: session.signal, credentials: "omit" });
  if (answer.ok) return answer.json();
  let message = `the service answered ${answer.status}`;
  try { message = (await answer.json()).error.message; } catch { /* not ours then */ }
  throw new Refused(answer.status, message);
}
function keep(token) { try { if (token) sessionStorage.setItem(KEPT, token); else sessionStorage.removeItem(KEPT); } catch { /* not kept then */ } }
function kept() { try { return sessionStorage.getItem(KEPT) || ""; } catch { return ""; } }

// Which part of the page is seen.

function say(text) { byId("message").textContent = text; byId("message").hidden = !text; }
function live(text, off = false) { byId("live").hidden = !text; if (byId("live").textContent !== text) byId("live").textContent = text; byId("live").classList.toggle("off", off); }
function part(id) { for (const one of ["sign-in", "tenants", "tenant"]) byId(one).hidden = one !== id; byId("out").hidden = id === "sign-in"; }
function title(text, about = "") { byId("title").textContent = text; byId("about").textContent = about; document.title = `${text} · prequential service`; }

function signIn(message = "") {
  session.abort(); session = new AbortController();
  Object.assign(state, { token: "", admin: false, tenants: [], name: "", data: null });
  keep(""); live(""); say(message); title("Sign in"); part("sign-in"); byId("back").hidden = true; byId("token").value = "";
}

async function enter(token) {
  session.abort(); session = new AbortController();
  state.token = token;
  try {
    if (!/^[\x21-\x7e]+$/.test(token)) throw new Refused(401, "the token is missing or wrong");
    const found = await get("page/tenants");
    Object.assign(state, { admin: found.admin, tenants: found.tenants, health: found.health });
  } catch (error) {
    if (error.name === "AbortError") return;
    if (error.status === 401) return signIn("The token is wrong. Nothing is shown without one.");
    part("sign-in"); title("Sign in"); return say(error.status ? `${error.message}.` : "The service cannot be reached. Is it running?");
  }
  keep(token); say(""); route();
}

function route() { // the address says which tenant is looked at
  if (!state.token) return;
  let wanted = "";
  try { wanted = decodeURIComponent(location.hash.slice(1)); } catch { /* no name then */ }
  const known = state.tenants.some(one => one.name === wanted);
  session.abort(); session = new AbortController();
  Object.assign(state, { name: known ? wanted : state.admin ? "" : state.tenants[0].name, data: null });
  labelsLink.zoom = latencyLink.zoom = null; byId("reset").hidden = true;
  byId("back").hidden = !state.admin || !state.name;
  dirty = true; heard = false; wait = 0; byId("announce").textContent = "";
  say(wanted && !known ? `There is no tenant ${clip(wanted, 63)} that this token may see.` : "");
  if (state.name) { title(state.name, "loading …"); part("tenant"); byId("tenant").hidden = true; listen(session.signal); } else { title("Tenants"); part("tenants"); showTenants(); }
  byId("title").focus({ preventScroll: true });
}

// Newer data.

async function listen(signal) { // server-sent events by fetch: an EventSource could not send the token
  while (!signal.aborted) {
    try {
      const answer = await fetch(`v1/${state.name}/events`, { headers: headers(), signal, credentials: "omit" });
      if (!answer.ok) throw new Refused(answer.status, "");
      heard = true; dirty = true;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ;) {
        const { value, done } = await reader.read();
        if (done) break;
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        for (const one of parts) {
          if (one.startsWith(":")) continue;
          dirty = true;
          if (one.startsWith("event: alarm\n")) byId("announce").textContent = "Drift alarm: errors have become more frequent.";
        }
      }
    } catch { /* tried again below; meanwhile the page asks every two seconds */ }
    if (signal.aborted) return;
    heard = false;
    await new Promise(done => setTimeout(done, 3000));
  }
}

async function refresh() {
  const { signal } = session, { name } = state;
  try {
    if (name) {
      dirty = false;
      const data = await get(`page/tenants/${name}`);
      if (signal.aborted) return;
      state.data = data; show();
    } else {
      const found = await get("page/tenants");
      if (signal.aborted) return;
      Object.assign(state, { tenants: found.tenants, health: found.health });
      showTenants();
    }
    live("live"); wait = 0;
    say(state.admin && state.health && state.health.status !== "ok" ? `The service says: ${state.health.status}.` : "");
  } catch (error) {
    if (signal.aborted) return;
    if (error.status === 401) return signIn("The token is not valid any more. Sign in with another one.");
    wait = Math.min(15000, 2 * wait + 1000); dirty = true;
    live(error.status ? `waiting · ${error.message}` : "not connected, trying again", true);
  }
}

async function loop() {
  const now = performance.now(), every = !state.name ? OVERVIEW : heard ? (dirty ? REFRESH : HEARTBEAT) : POLL;
  if (state.token && !document.hidden && !byId("sign-in").offsetParent && (now - asked > Math.max(every, wait) || (state.name && !state.data && !wait))) { asked = now; await refresh(); }
  setTimeout(loop, 200);
}

// The list of tenants.

function showTenants() {
  const found = state.tenants.filter(one => one.name.includes(state.filter.trim().toLowerCase()));
  byId("about").textContent = state.tenants.length === 1 ? "1 tenant" : `${whole(state.tenants.length)} tenants`;
  byId("filter-head").hidden = state.tenants.length < 9;
  byId("no-tenants").hidden = state.tenants.length > 0; byId("t-tenants").hidden = !state.tenants.length;
  byId("make-tenant").textContent = `curl -X PUT ${address()}v1/tickets -H "Authorization: Bearer $ADMIN_TOKEN"`;
  if (byId("t-tenants").contains(document.activeElement)) return; // the focus stays where it is
  const told = (value, text) => value === null || value === undefined ? "–" : text(value);
  const columns = [["Accuracy", one => told(one.accuracy, value => percent(value))], ["Log-loss", one => told(one.nats, value => number(value))], ["Labels learned", one => told(one.position, whole)],
    ["Waiting", one => told(one.pending, whole)], ["Alarms", one => told(one.alarms, whole)]];
  const rows = found.slice(0, MOST_TENANTS).map(one => make("tr", {},
    make("th", { scope: "row" }, make("a", { href: `#${one.name}` }, one.name), make("small", {}, one.open ? "" : " on disk")),
    ...columns.map(([name, text], i) => make("td", { className: i ? "" : "lead", "data-name": name }, text(one)))));
  byId("t-tenants").replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Tenant"), ...columns.map(([name]) => make("th", { scope: "col" }, name)))), make("tbody", {}, ...rows)));
  if (found.length > MOST_TENANTS) byId("t-tenants").append(make("p", { className: "hint" }, `and ${whole(found.length - MOST_TENANTS)} more: type a part of the name`));
}

// One tenant.

function quantile({ bounds, counts: inside }, q) { // the bound below which this share lies
  let left = q * inside.reduce((a, b) => a + b, 0);
  if (!left) return null;
  for (let i = 0; i < bounds.length; i++) { left -= inside[i]; if (left <= 0) return bounds[i]; }
  return Infinity;
}
const below = value => value === null || value === undefined ? "–" : value === Infinity ? "> 30 d" : `≤ ${interval(value)}`;

function headline() {
  const { figures, latency: times, state: at } = state.data;
  const tile = (name, text, more, warn) => make("div", { className: "tile" }, make("span", {}, name), make("b", { className: warn ? "warn" : "" }, text), make("span", {}, more || ""));
  const told = (value, text) => value === null ? "–" : text(value), behind = state.data.log_lag;
  byId("headline").replaceChildren(make("div", { className: "tiles" },
    tile("Accuracy", told(figures.accuracy, value => percent(value)), figures.scored ? `of ${whole(figures.scored)} labels` : "no label yet"),
    tile("Log-loss", told(figures.nats, value => number(value)), "nats a label"),
    tile("Learned", whole(figures.position), `labels of ${whole(at.labels)} ${at.labels === 1 ? "class" : "classes"}`),
    tile("Waiting", whole(figures.pending), behind ? `${whole(behind)} rows to learn` : "predictions without a label"),
    tile("Label delay", below(quantile(figures.label_delay, 0.5)), `99 % ${below(quantile(figures.label_delay, 0.99))}`),
    tile("Latency", times ? below(times.p50) : "–", times ? `99 % ${below(times.p99)}` : "since the start"),
    tile("Drift alarms", whole(figures.alarms), figures.alarms ? `latest at ${whole(series().alarms[series().alarms.length - 1].position)} labels` : "none", figures.alarms > 0)));
}

const address = () => new URL(".", location.href.split("#")[0]).href;
const quoted = value => `'${JSON.stringify(value).replaceAll("'", "'\\''")}'`; // for a shell
function firstSteps() { // what a newcomer may want to do next
  const { figures, recent, tenant } = state.data, url = `${address()}v1/${tenant.name}`, key = '-H "Authorization: Bearer $TOKEN"';
  const waiting = recent.find(one => one.fate === "waiting"), started = recent.length > 0 || figures.position > 0;
  byId("first").hidden = figures.position > 0 || (started && !waiting);
  if (byId("first").hidden) return;
  const label = id => `curl ${url}/labels ${key} -d ${quoted({ id, y: "billing" })}`;
  byId("h-first").textContent = started ? "No labels yet" : "No predictions yet";
  byId("first-text").textContent = started ? "Predictions wait for their labels. Give the label of the newest one, and a point of the curves appears:"
    : "Ask for a prediction, and give its label when you know it. Use columns of your own: the first row decides how all rows are read.";
  byId("first-command").textContent = started ? label(waiting.id) : `TOKEN=…  # of ${tenant.name}\ncurl ${url}/predict ${key} -d ${quoted({ id: "a7", x: { amount: 3.2, shop: "north" } })}\n${label("a7")}`;
}

function classTable() {
  const { classes, more_classes: more, figures } = state.data, colors = named().length;
  const rows = classes.map((one, k) => make("tr", {},
    make("th", { scope: "row" }, make("span", { className: `swatch ${k < colors ? `k${k}` : "ksoft"}` }), words(one.label, 40)),
    ...[whole(one.count), percent(one.count / figures.scored), percent(one.recall)].map(text => make("td", {}, text))));
  const heads = ["Label", "Came", "Share", "Recall"].map(text => make("th", { scope: "col" }, text));
  byId("t-classes").replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows)));
  if (more) byId("t-classes").append(make("p", { className: "hint" }, `and ${whole(more)} more labels`));
}

function alarmList() {
  const all = [...series().alarms].reverse();
  byId("no-alarms").hidden = all.length > 0;
  byId("l-alarms").replaceChildren(...all.slice(0, 10).map(alarm => make("li", {}, `At ${whole(alarm.position)} labels: ${alarm.what} `, make("small", {}, moment(alarm.time)))));
}

function recentTable() {
  const host = byId("t-recent"), selected = getSelection();
  if (selected && !selected.isCollapsed && host.contains(selected.anchorNode)) return; // somebody is copying
  const all = state.data.recent, found = all.filter(one => state.fate === "all" || one.fate === state.fate), none = () => make("span", { className: "none" }, "–");
  const text = value => value === null || value === undefined ? none() : words(value, 60);
  const columns = [["Asked", "", one => moment(one.time)], ["Id", "id", one => text(one.id)], ["Predicted", "", one => text(one.predicted)],
    ["Probability", "number", one => one.predicted === null ? none() : percent(one.p)], ["Label", "", one => text(one.label)],
    ["Fate", "", one => make("span", { className: `fate ${one.fate in FATES ? one.fate : ""}` }, FATES[one.fate] || one.fate)],
    ["Delay", "number", one => Number.isFinite(one.delay) ? interval(one.delay) : none()]];
  const rows = found.slice(0, MOST_RECENT).map(one => make("tr", {}, ...columns.map(([name, kind, show]) => make("td", { className: kind, "data-name": name }, show(one)))));
  if (!rows.length) rows.push(make("tr", {}, make("td", { colSpan: columns.length, className: "none" }, all.length ? `none of the latest ${whole(all.length)}` : "no prediction with an id yet")));
  host.replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...columns.map(([name, kind]) => make("th", { scope: "col", className: kind }, name)))), make("tbody", {}, ...rows)));
}

function facts() {
  byId("l-facts").replaceChildren(...FIELDS.map(([name, read]) => [name, read(state.data)]).filter(([, value]) => value).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

function show() {
  const { figures } = state.data;
  byId("tenant").hidden = false;
  byId("about").textContent = [`${whole(figures.position)} labels learned`, `${whole(figures.pending)} predictions wait`].join(" · ");
  byId("curves-hint").textContent = figures.scored ? "A prediction is scored by the label that comes for it, as it was made. Dashed red lines: drift alarms. Drag across a picture to zoom in." : "Curves begin with the first label.";
  headline(); firstSteps(); classTable(); alarmList(); recentTable(); facts();
  byId("curves").hidden = !figures.scored && !state.data.latency; byId("balance").hidden = !state.data.classes.length;
  byId("alarms").hidden = !figures.scored; byId("recent").hidden = !state.data.recent.length && !figures.scored;
  if (byId("tip").hidden) charts.forEach(chart => chart.draw()); // else somebody is reading values
}

function start() {
  theme(keptTheme());
  for (const [id, spec] of [["f-accuracy", accuracySpec], ["f-nats", natsSpec], ["f-delay", delaySpec], ["f-latency", latencySpec], ["f-balance", balanceSpec]]) {
    const chart = new Chart(byId(id), spec), draw = chart.draw.bind(chart);
    chart.draw = () => { if (state.data) draw(); }; // there is nothing to draw before
    charts.push(chart);
  }
  labelsLink.changed = latencyLink.changed = () => { byId("reset").hidden = !labelsLink.zoom && !latencyLink.zoom; };
  byId("reset").onclick = () => { charts[0].zoomTo(null); charts[3].zoomTo(null); };
  choice("axis", [["labels", "By labels"], ["time", "By time"]], state.axis, axis => { state.axis = axis; labelsLink.zoom = latencyLink.zoom = null; byId("reset").hidden = true; redraw(); });
  choice("fate", [["all", "All"], ["waiting", "Waiting"], ["right", "Right"], ["wrong", "Wrong"], ["expired", "Expired"]], state.fate, fate => { state.fate = fate; if (state.data) recentTable(); });
  byId("sign-in").onsubmit = event => { event.preventDefault(); enter(byId("token").value.trim()); };
  byId("out").onclick = () => { history.replaceState(null, "", location.pathname); signIn(); byId("token").focus(); };
  byId("filter").oninput = event => { state.filter = event.target.value; showTenants(); };
  for (const button of document.querySelectorAll("[data-copy]")) button.onclick = async () => {
    const code = byId(button.dataset.copy);
    try { await navigator.clipboard.writeText(code.textContent); button.textContent = "Copied"; } catch { getSelection().selectAllChildren(code); button.textContent = "Selected"; }
  };
  document.addEventListener("pointerdown", event => { if (!event.target.closest(".plot")) charts.forEach(chart => chart.leave()); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("hashchange", route);
  const token = kept();
  if (token) enter(token); else signIn();
  loop();
}
start();
