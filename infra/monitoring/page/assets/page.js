// Draws what /state.json tells each second. Everything from the server is put in as text, never as markup.
"use strict";

const POLL_MS = 1000, WAIT_MS = 5000, STALE_S = 10;
const byId = (id) => document.getElementById(id);
const key = takeKey();
let paused = false, last = null, answeredAt = Date.now() / 1000;

// The key comes behind the address's # and leaves it at once; this tab keeps it.
function takeKey() {
  const found = /^#key=([0-9a-f]+)$/.exec(location.hash);
  if (found) {
    sessionStorage.setItem("key", found[1]);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("key") || "";
}

function element(name, text, kind) {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function put(parent, children) {
  const held = document.activeElement;
  parent.replaceChildren(...children);
  if (held && held.isConnected && held !== document.activeElement) held.focus();
}

function putRows(id, rows) {
  const body = byId(id);
  const heads = [...body.closest("table").querySelectorAll("th")].map((one) => one.textContent);
  put(body, rows.map((cells) => {
    const made = document.createElement("tr");
    cells.forEach(([text, kind], column) => {
      const cell = element("td", text, kind);
      cell.dataset.label = heads[column];
      made.append(cell);
    });
    return made;
  }));
}

const known = (value) => value !== null && value !== undefined;
const whole = (value) => (known(value) ? Math.round(value).toLocaleString("en") : "–");
const percent = (value) => (known(value) ? `${(100 * value).toFixed(value > 0.99 ? 2 : 1)} %` : "–");

function milliseconds(value) {
  if (!known(value)) return "–";
  return `${value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)} ms`;
}

function duration(seconds) {
  if (!known(seconds)) return "–";
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return `${(seconds / size).toFixed(1)} ${unit}`;
  }
  return `${Math.max(0, seconds).toFixed(0)} s`;
}

const clock = (seconds) => (known(seconds) ? new Date(1000 * seconds).toLocaleTimeString("en-GB") : "–");
const newest = (values) => (values || []).findLast(known);

// Charts --------------------------------------------------------------------------------------------------

const DASH = [6, 3];
const CHARTS = {
  latency: {
    series: [
      ["median", "--first"], ["99th percentile", "--first", DASH],
      ["predicted median", "--second"], ["predicted 99th percentile", "--second", DASH],
    ],
    show: milliseconds, unit: " ms",
    data: (s) => uPlot.join([ // the telemetry's seconds are not those of the looks at the agent's metrics
      [s.latency.at_s, s.latency.median_ms, s.latency.p99_ms],
      [s.rates.at_s, s.rates.predicted_median_ms, s.rates.predicted_p99_ms],
    ]),
  },
  error: {
    series: [["median", "--first"], ["90th percentile", "--second", DASH]], show: milliseconds, unit: " ms",
    data: (s) => [s.rates.at_s, s.rates.error_median_ms, s.rates.error_p90_ms],
  },
  shares: {
    series: [["moved", "--second"], ["in time", "--first", DASH]], show: percent, unit: " %", times: 100, range: [0, 1],
    data: (s) => [s.rates.at_s, s.rates.moved, s.rates.in_time],
  },
  batches: {
    series: [["batches per second", "--first"]], show: whole, unit: "",
    data: (s) => [s.rates.at_s, s.rates.batches_per_s],
  },
};
const drawn = {};
const dark = matchMedia("(prefers-color-scheme: dark)");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function chart(id) {
  const { series, show, unit, times, range } = CHARTS[id], place = byId(id);
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const value = (_, number) => show(number);
  return new uPlot({
    width: place.clientWidth, height: 160, legend: { live: true },
    cursor: { drag: { x: false, y: false }, sync: { key: "time" } },
    scales: { y: { range: range || ((_, low, high) => [0, Math.max(high * 1.1, 1e-3)]) } },
    axes: [
      { ...axis, values: (_, ticks) => ticks.map(clock), space: 75 },
      { ...axis, size: 60, values: (_, ticks) => ticks.map((one) => `${+((times || 1) * one).toPrecision(3)}${unit}`) },
    ],
    series: [
      { label: "time", value: (_, at) => clock(at) },
      ...series.map(([label, stroke, dash]) => ({
        label, stroke: colour(stroke), width: 2, dash, value, points: { show: false },
      })),
    ],
  }, [[], ...series.map(() => [])], place);
}

function drawCharts(state) {
  const end = state.time, begin = end - Number(byId("span").value);
  for (const [id, { series, show, data }] of Object.entries(CHARTS)) {
    const plot = (drawn[id] ??= chart(id));
    const columns = data(state);
    plot.batch(() => {
      plot.setData(columns, false);
      plot.setScale("x", { min: begin, max: end });
    });
    const said = series.map(([label], n) => `${label} ${show(newest(columns[n + 1]))}`).join(", ");
    byId(id).setAttribute("aria-label", `Chart of the last minutes; now: ${said}`);
  }
}

function forgetCharts() {
  for (const id of Object.keys(drawn)) {
    drawn[id].destroy();
    delete drawn[id];
  }
  if (last) drawCharts(last);
}

// Text ----------------------------------------------------------------------------------------------------

function drawNow(state) {
  const rates = state.rates, served = state.served;
  const said = [
    ["Version served", served ? `${served.version}` : "none"],
    ["Its age", served ? duration(served.age_s) : "–"],
    ["Latency, median", milliseconds(newest(state.latency.median_ms))],
    ["Latency, 99th percentile", milliseconds(newest(state.latency.p99_ms))],
    ["Predicted, median", milliseconds(newest(rates.predicted_median_ms))],
    ["Prediction off by, median", milliseconds(newest(rates.error_median_ms))],
    ["Packets moved", percent(newest(rates.moved))],
    ["Batches in time", percent(newest(rates.in_time))],
    ["Batches per second", whole(newest(rates.batches_per_s))],
  ];
  put(byId("now"), said.map(([name, value]) => {
    const pair = document.createElement("div");
    pair.append(element("dt", name), element("dd", value));
    return pair;
  }));
  const steps = (state.judged.do || []).map((step) => element("li", step));
  const list = document.createElement("ol");
  list.append(...steps);
  const causes = (state.judged.parts || []).filter((one) => one.part === "first");
  put(byId("todo"), [
    ...causes.map((one) => element("p", `First: ${one.line}`, "bad")),
    ...(steps.length ? [element("strong", "To do"), list] : []),
  ]);
  byId("sender").textContent = state.sender ? ` from ${state.sender}` : "";
}

function drawParts(state) {
  const said = (state.judged.parts || []);
  const lines = (name) => said.filter((one) => one.part.split(",")[0] === name);
  const ours = new Set(state.parts.map((one) => one.name));
  const rows = state.parts.map((part) => {
    const judged = lines(part.name);
    const well = part.up && judged.every((one) => one.well);
    const word = !part.pid ? "gone" : !part.up ? "silent" : well ? "well" : "unwell";
    return [
      [part.name, "short"], [word, well ? "good" : "bad"], [duration(part.age_s), "short"],
      [known(part.restarts) ? whole(part.restarts) : "–", "number"],
      // What was said of a part that has gone since is not shown.
      [(part.up || judged.some((one) => !one.well)) && judged.map((one) => one.line).join("; ") || "not judged yet"],
    ];
  });
  for (const one of said.filter((one) => !ours.has(one.part.split(",")[0]) && one.part !== "first")) {
    rows.push([
      [one.part, "short"], [one.well ? "well" : "unwell", one.well ? "good" : "bad"], ["–"], ["–", "number"],
      [one.line],
    ]);
  }
  putRows("parts", rows);
  byId("judged").textContent = known(state.judged_ago_s)
    ? `Judged by \`swiftqueue status\` ${duration(state.judged_ago_s)} ago; the keeper says each second who answers.`
    : "The first judgement is under way.";
}

function drawVerdict(state) {
  const gone = state.parts.filter((one) => !one.up).map((one) => one.name);
  const unwell = (state.judged.parts || []).filter((one) => !one.well && one.part !== "first");
  const names = [...new Set([...gone, ...unwell.map((one) => one.part)])];
  const verdict = byId("verdict");
  verdict.className = names.length ? "bad" : state.alerts.length ? "warn" : "good";
  verdict.textContent = names.length
    ? `Not well: ${names.join(", ")}`
    : state.alerts.length ? `All parts are well; ${state.alerts.length === 1 ? "1 alert fires" : `${state.alerts.length} alerts fire`}` : "All parts are well";
}

const NO_PROMETHEUS =
  "Prometheus does not run, so nothing can fire: apt-get install prometheus (docs/OPERATIONS.md says how).";
const OUTCOMES = { pushed: "good", served: "good", failed: "bad" };

function drawLists(state) {
  put(byId("alerts"), state.alerts.length
    ? state.alerts.map((line) => element("li", line, "warn"))
    : [element("li", state.prometheus ? "No alert fires." : NO_PROMETHEUS, "quiet")]);
  putRows("senders", state.senders.map((one) => [
    [one.name, "short"], [`${duration(one.stored_ago_s)} ago`, "short"], [whole(one.sends), "number"],
    [whole(one.acks), "number"], [one.problem || whole(one.missing), one.missing || one.problem ? "number bad" : "number"],
  ]));
  putRows("rounds", state.rounds.map((one) => [
    [whole(one.number), "number"], [one.outcome, OUTCOMES[one.outcome] || ""],
    [known(one.version) ? `${one.version}` : "–", "number"], [clock(one.triggered), "short"],
    [duration(one.took_s), "number"], [[one.reason, one.rolled_back].filter(Boolean).join("; ")],
  ]));
  putRows("switches", state.switches.map((one) => [
    [known(one.time) ? new Date(1000 * one.time).toLocaleString("en-GB") : "–", "short"], [one.action, "short"],
    [`${one.version}`, "number"], [one.outcome, OUTCOMES[one.outcome] || ""], [one.reason],
  ]));
  byId("problems-section").hidden = !state.problems.length;
  put(byId("problems"), state.problems.map((line) => element("li", line, "warn")));
}

function draw(state) {
  drawVerdict(state);
  drawNow(state);
  drawCharts(state);
  drawParts(state);
  drawLists(state);
}

// Asking --------------------------------------------------------------------------------------------------

function say(text) {
  byId("verdict").className = "bad";
  byId("verdict").textContent = text;
}

async function ask() {
  try {
    const answer = await fetch("state.json", {
      headers: { Authorization: `Bearer ${key}` }, cache: "no-store", signal: AbortSignal.timeout(WAIT_MS),
    });
    if (answer.status === 401) {
      say("This page wants its key: open the address that `swiftqueue monitor page` prints.");
      return;
    }
    const state = await answer.json();
    answeredAt = Date.now() / 1000;
    if (!known(state.time)) return; // the first look is under way
    last = state;
    draw(state);
  } catch (error) {
    if (Date.now() / 1000 - answeredAt > STALE_S) say("The page's server does not answer: swiftqueue status");
  }
}

async function poll() {
  if (!paused && !document.hidden && key) await ask();
  byId("age").textContent = last ? `${paused ? "paused at" : "as of"} ${clock(last.time)}` : "";
  setTimeout(poll, POLL_MS);
}

byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  byId("pause").textContent = paused ? "Go on" : "Pause";
});
byId("span").addEventListener("change", () => last && drawCharts(last));
dark.addEventListener("change", forgetCharts);
addEventListener("resize", () => {
  for (const id of Object.keys(drawn)) drawn[id].setSize({ width: byId(id).clientWidth, height: 160 });
});
if (!key) say("This page wants its key: open the address that `swiftqueue monitor page` prints.");
poll();
