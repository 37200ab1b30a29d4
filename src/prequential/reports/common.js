// What all pages share, whatever they show: ranges of axes, buttons of which one is pressed, colors, redrawing.

function duration(seconds) {
  if (seconds < 10) return `${number(seconds, 1)} s`;
  const total = Math.round(seconds), h = Math.floor(total / 3600), m = Math.floor(total / 60) % 60, two = n => String(n).padStart(2, "0");
  return h ? `${h} h ${two(m)} min` : m ? `${m} min ${two(total % 60)} s` : `${total} s`;
}

function spread(values, refs, zoomed, most) {
  const within = zoomed ? values : [...values, ...refs];
  if (!within.length) return [0, 1];
  let low = Infinity, high = -Infinity;
  for (const value of within) { low = Math.min(low, value); high = Math.max(high, value); }
  if (most && high > most) high = Math.max(most, low * 1.2); // one run gone wild must not hide the others
  if (low < 0.4 * high && low >= 0) low = 0; else low -= 0.08 * (high - low) || 0.02;
  return [low, high + (0.06 * (high - low) || 0.02)];
}
const shareHeights = (values, refs, zoomed) => { const [low, high] = spread(values, refs, zoomed); return [Math.max(0, low), Math.min(1.005, high)]; };
function nearest(xs, x, log) {
  let best = 0;
  const far = i => Math.abs(log ? Math.log(xs[i] / x) : xs[i] - x);
  for (let i = 1; i < xs.length; i++) if (far(i) < far(best)) best = i;
  return best;
}

function choice(id, options, chosen, pick) { // buttons of which one is pressed
  const host = byId(id);
  const press = value => [...host.children].forEach((button, i) => button.setAttribute("aria-pressed", String(options[i][0] === value)));
  host.replaceChildren(...options.map(([value, text]) => make("button", { type: "button", onclick: () => { pick(value); press(value); } }, text)));
  press(chosen);
}

const charts = [];
const redraw = () => { tip.hide(); charts.forEach(chart => chart.draw()); };

const THEMES = { auto: ["◐ Auto", "as the system"], light: ["○ Light", "light"], dark: ["● Dark", "dark"] };
function theme(name) {
  const root = document.documentElement;
  if (name === "auto") delete root.dataset.theme; else root.dataset.theme = name;
  byId("theme").textContent = THEMES[name][0];
  byId("theme").setAttribute("aria-label", `Colors: ${THEMES[name][1]}`);
  byId("theme").onclick = () => { const names = Object.keys(THEMES); theme(names[(names.indexOf(name) + 1) % 3]); redraw(); };
  try { localStorage.setItem("prequential-theme", name); } catch { /* not kept then */ }
}
function keptTheme() { try { const kept = localStorage.getItem("prequential-theme"); return kept in THEMES ? kept : "auto"; } catch { return "auto"; } }
