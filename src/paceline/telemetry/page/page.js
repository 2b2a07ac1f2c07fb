// The live page: reads the status and the history each second, and changes only what has changed.
// Every text from the server is set as text, never as HTML.

const SHOWN = 60; // cards at first; the others on request
const EVENTS = 50;
const LANES = 6;
const WINDOW_S = [60, 300]; // seconds in the pictures, at least and at most

const at = (id) => document.getElementById(id);
const cards = new Map(); // by the name of a pool
const history = new Map(); // by the name of a pool: its columns
let newest = 0;
let events = [];
let status = { pools: {} };
let all = false;
let failures = 0;
let kind = "";

// Words.

const formats = [0, 1].map((digits) => new Intl.NumberFormat("en", { maximumFractionDigits: digits }));
const number = (value, digits = 0) => formats[digits].format(value);
const amount = (value) => number(value, value < 10 && value % 1 ? 1 : 0);

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "unknown";
  if (seconds < 10) return `${number(seconds, 1)} s`;
  if (seconds < 120) return `${Math.ceil(seconds)} s`;
  if (seconds < 7200) return `${Math.ceil(seconds / 60)} min`;
  if (seconds < 172800) return `${number(seconds / 3600, 1)} h`;
  return `${number(seconds / 86400, 1)} days`;
}

function state(pool) {
  const waiting = pool.waiting ? `${number(pool.waiting)} wait` : "nothing waits";
  const last = pool.waiting && pool.eta_s !== null && pool.eta_s !== undefined ? `, the last one about ${duration(pool.eta_s)}` : "";
  const paused = duration(pool.cool_down_s), binds = pool.binds ?? "its queue";
  if (pool.stopped) return { rank: 4, kind: "halted", badge: "stopped", text: `is stopped: ${pool.stopped}`, why: pool.stopped };
  if (pool.cool_down_s) return { rank: 3, kind: "halted", badge: "paused", text: `is paused by the provider for ${paused}: ${waiting}`, why: `For ${paused}, by the provider: ${waiting}` };
  if (pool.store?.state === "lost") return { rank: 3, kind: "halted", badge: "store lost", text: `has lost its store: ${waiting}`, why: `Without its store: ${waiting}` };
  if (pool.waiting) return { rank: 2, kind: "limited", badge: "limited", text: `is limited by ${binds}: ${waiting}${last}`, why: `By ${binds}: ${waiting}${last}` };
  return { rank: pool.in_flight ? 1 : 0, kind: "free", badge: pool.in_flight ? "busy" : "idle", text: "nothing waits", why: "Nothing waits" };
}

// Small changes of the document.

// What was last set is kept on the node: to read it from the document takes longer.
const set = (node, text) => { if (node.said !== text) { node.said = text; node.textContent = text; } };
const show = (node, shown) => { if (node.hidden === shown) node.hidden = !shown; };
const label = (node, text) => { if (node.labelled !== text) { node.labelled = text; node.setAttribute("aria-label", text); } };

function rows(body, list, cells) {
  while (body.rows.length > list.length) body.deleteRow(-1);
  list.forEach((item, i) => {
    const row = body.rows[i] ?? body.insertRow();
    cells(item).forEach((text, j) => set(row.cells[j] ?? row.insertCell(), text));
  });
}

// Pictures.

const visible = new Set();
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const card = entry.target;
    if (entry.isIntersecting) { visible.add(card); draw(card); } else visible.delete(card);
  }
});

const seconds = (times) => Math.min(Math.max(newest - times[0], WINDOW_S[0]), WINDOW_S[1]);

function path(svg, times, values, most) {
  const span = seconds(times), start = newest - span;
  let line = "", first = null, last = null;
  for (let i = 0; i < times.length; i++) {
    if (times[i] < start || values[i] === null || values[i] === undefined) continue;
    const x = ((times[i] - start) / span) * 300, y = 46 - (values[i] / most) * 44;
    line += `${line ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    first ??= x; last = x;
  }
  const [area, stroke] = svg.children;
  stroke.setAttribute("d", line);
  area.setAttribute("d", line && `${line}L${last.toFixed(1)} 48L${first.toFixed(1)} 48Z`);
}

function draw(card) {
  const columns = history.get(card.name), pool = status.pools[card.name];
  if (!columns || !pool) return;
  const names = Object.keys(columns.quotas);
  const lowest = names.map((name) => [columns.quotas[name].at(-1) ?? 1, name]).sort((a, b) => a[0] - b[0])[0]?.[1];
  const quota = names.includes(pool.binds) ? pool.binds : lowest;
  const left = columns.quotas[quota] ?? [];
  const level = card.querySelector("svg.level"), queue = card.querySelector("svg.queue");
  path(level, columns.t, left, 1);
  label(level, `${quota ?? "no quota"}: now ${Math.round((left.at(-1) ?? 0) * 100)} % left`);
  const most = Math.max(1, ...columns.waiting);
  path(queue, columns.t, columns.waiting, most);
  label(queue, `now ${number(columns.waiting.at(-1) ?? 0)} waiting, at most ${number(most)} in the last minutes`);
  const [one, other] = card.querySelectorAll("figcaption");
  set(one, quota ? `Left of ${quota}` : "Left");
  set(other, `Waiting, last ${duration(seconds(columns.t))}`);
}

// A card.

function card(name) {
  let found = cards.get(name);
  if (!found) {
    found = at("pool-template").content.firstElementChild.cloneNode(true);
    found.name = name;
    set(found.querySelector("h3"), name);
    cards.set(name, found);
    watcher.observe(found);
  }
  return found;
}

function perMinute(name) {
  const columns = history.get(name);
  if (!columns || columns.t.length < 2) return null;
  const i = Math.max(0, columns.t.findIndex((t) => t >= columns.t.at(-1) - 60));
  const seconds = columns.t.at(-1) - columns.t[i];
  return seconds > 0 ? ((columns.granted.at(-1) - columns.granted[i]) / seconds) * 60 : null;
}

function learned(quota) {
  const parts = [];
  const more = quota.learned ?? {};
  if (more.stated_limit) parts.push(`the provider states ${amount(more.stated_limit)}`);
  if (more.holds) parts.push(`holds ${amount(more.holds)} at once`);
  if (more.ceiling) parts.push(`used up to ${Math.round(more.ceiling * 100)} %`);
  if (more.headroom_s) parts.push(`${more.headroom_s} s unused`);
  if (more.rule) parts.push(more.rule);
  return parts;
}

function fillQuotas(node, pool) {
  const quotas = pool.quotas ?? [];
  while (node.children.length > quotas.length) node.lastElementChild.remove();
  quotas.forEach((quota, i) => {
    if (!node.children[i]) node.append(at("quota-template").content.firstElementChild.cloneNode(true));
    const row = node.children[i];
    const share = Math.min(Math.max(quota.remaining / quota.limit, 0), 1);
    row.classList.toggle("binds", pool.waiting > 0 && pool.binds === quota.quota);
    set(row.querySelector(".name"), quota.quota);
    set(row.querySelector(".left"), `${amount(quota.remaining)} of ${amount(quota.limit)} left`);
    const meter = row.querySelector(".meter");
    const percent = Math.round(share * 1000) / 10;
    if (meter.percent !== percent) {
      meter.percent = percent;
      meter.setAttribute("aria-valuenow", percent);
      meter.firstElementChild.style.width = `${percent}%`;
    }
    label(meter, `${quota.quota}: left`);
    const full = quota.resets_at ? `restarts at ${quota.resets_at}` : quota.reset_s >= 0.5 ? `full in ${duration(quota.reset_s)}` : share >= 0.995 ? "full" : "";
    set(row.querySelector(".about"), [full, quota.source, ...learned(quota)].filter(Boolean).join(" · "));
  });
}

function fillNumbers(list, pairs) {
  while (list.children.length > pairs.length) list.lastElementChild.remove();
  pairs.forEach(([name, value], i) => {
    if (!list.children[i]) {
      const pair = document.createElement("div");
      pair.append(document.createElement("dt"), document.createElement("dd"));
      list.append(pair);
    }
    set(list.children[i].firstElementChild, name);
    set(list.children[i].lastElementChild, value);
  });
}

function fill(name, pool, now) {
  const node = card(name);
  if (node.className !== now.kind) node.className = now.kind;
  set(node.querySelector(".badge"), now.badge);
  set(node.querySelector(".why"), now.why);
  fillQuotas(node.querySelector(".quotas"), pool);
  const rate = perMinute(name);
  const pairs = [
    ["Waiting", number(pool.waiting)],
    ["In flight", number(pool.in_flight)],
    ["Granted", number(pool.counts?.granted ?? 0)],
    ["In a minute", rate === null ? "–" : number(rate)],
    ["Wait, mean", duration(pool.wait_s?.mean ?? 0)],
    ["Wait, longest", duration(pool.wait_s?.longest ?? 0)],
  ];
  if (pool.waiting) pairs.push(["Queue done in", duration(pool.eta_s)]);
  if (pool.store) pairs.push(["Processes", number(pool.store.peers ?? 1)]);
  fillNumbers(node.querySelector("dl"), pairs);
  const lanes = Object.entries(pool.lanes ?? {}).sort((a, b) => b[1] - a[1]);
  const rest = lanes.slice(LANES);
  const shown = lanes.slice(0, LANES).map(([lane, waiting]) => [lane, number(waiting)]);
  if (rest.length) shown.push([`${number(rest.length)} others`, number(rest.reduce((sum, [, waiting]) => sum + waiting, 0))]);
  show(node.querySelector(".lanes"), lanes.length > 0);
  rows(node.querySelector(".lanes tbody"), shown, (row) => row);
  const refusals = Object.entries(pool.counts ?? {}).filter(([what]) => what.startsWith("refused_"));
  const text = refusals.map(([what, count]) => `${number(count)} × ${what.slice(8).replace("_", " ")}`).join(", ");
  show(node.querySelector(".refusals"), refusals.length > 0);
  set(node.querySelector(".refusals"), `Refused by the provider: ${text}`);
  return node;
}

// The page.

function render() {
  const wanted = at("filter").value.trim().toLowerCase();
  const list = Object.entries(status.pools)
    .filter(([name]) => name.toLowerCase().includes(wanted))
    .map(([name, pool]) => [name, pool, state(pool)])
    .sort((a, b) => b[2].rank - a[2].rank || b[1].waiting - a[1].waiting || a[0].localeCompare(b[0]));
  const shown = all ? list : list.slice(0, SHOWN);
  const focused = document.activeElement;
  const nodes = shown.map(([name, pool, now]) => fill(name, pool, now));
  const pools = at("pools");
  nodes.forEach((node, i) => { if (pools.children[i] !== node) pools.insertBefore(node, pools.children[i] ?? null); });
  while (pools.children.length > nodes.length) pools.lastElementChild.remove();
  for (const node of visible) draw(node);
  for (const name of cards.keys()) if (!(name in status.pools)) { watcher.unobserve(cards.get(name)); visible.delete(cards.get(name)); cards.delete(name); }
  if (focused !== document.activeElement) focused?.focus?.();
  show(at("more"), list.length > shown.length);
  set(at("more"), `Show all ${number(list.length)} pools`);
  show(at("nothing"), Object.keys(status.pools).length === 0);
  headline();
  show(at("unpaced-section"), (status.unpaced ?? []).length > 0);
  rows(at("unpaced"), status.unpaced ?? [], (row) => [row.host, row.kind, number(row.count), row.remedy]);
}

function headline() {
  const list = Object.entries(status.pools).map(([name, pool]) => [name, pool, state(pool)]);
  list.sort((a, b) => b[2].rank - a[2].rank || b[1].waiting - a[1].waiting);
  const [name, , now] = list[0] ?? ["", null, { kind: "free", rank: 0 }];
  const text = now.rank >= 2 ? `${name} ${now.text}` : "Not limited: nothing waits";
  const node = at("headline"), same = `${name} ${now.kind}` === kind;
  node.setAttribute("aria-live", same ? "off" : "polite"); // numbers that change each second are not read out
  kind = `${name} ${now.kind}`;
  set(node, text);
  document.title = now.rank >= 2 ? `${now.badge}: ${name} - paceline` : "paceline";
  const limited = list.filter(([, , one]) => one.rank >= 2).length;
  const waiting = list.reduce((sum, [, pool]) => sum + pool.waiting, 0), flying = list.reduce((sum, [, pool]) => sum + pool.in_flight, 0);
  set(at("summary"), `${number(list.length)} pools, ${number(limited)} of them limited; ${number(waiting)} requests wait, ${number(flying)} are in flight`);
}

function renderEvents() {
  const list = at("events");
  const items = events.slice(-EVENTS).reverse();
  show(at("no-events"), items.length === 0);
  list.replaceChildren(...items.map((event) => {
    const item = document.createElement("li");
    const time = document.createElement("time");
    time.textContent = new Date(event.t * 1000).toLocaleTimeString("en-GB");
    time.dateTime = new Date(event.t * 1000).toISOString();
    const level = document.createElement("span");
    level.className = event.level;
    level.textContent = event.level;
    const text = document.createElement("span");
    text.textContent = event.text;
    item.append(time, level, text);
    return item;
  }));
}

function remember(page) {
  for (const [name, columns] of Object.entries(page.pools)) {
    const kept = history.get(name);
    if (!kept) { history.set(name, columns); continue; }
    const before = kept.t.length;
    for (const key of ["t", "waiting", "in_flight", "granted", "refused"]) kept[key].push(...columns[key]);
    for (const [quota, values] of Object.entries(columns.quotas)) (kept.quotas[quota] ??= new Array(before).fill(null)).push(...values);
    for (const values of Object.values(kept.quotas)) while (values.length < kept.t.length) values.push(null);
    const over = kept.t.length - page.keep_s / page.step_s;
    if (over > 0) for (const values of [kept.t, kept.waiting, kept.in_flight, kept.granted, kept.refused, ...Object.values(kept.quotas)]) values.splice(0, over);
  }
  newest = page.time;
  if (page.events.length) { events = [...events, ...page.events].slice(-200); renderEvents(); }
}

// Reading.

const headers = () => { const key = sessionStorage.getItem("paceline-key"); return key ? { authorization: `Bearer ${key}` } : {}; };

async function read(url) {
  const answer = await fetch(url, { headers: headers(), signal: AbortSignal.timeout(10000), cache: "no-store" });
  if (answer.status === 401 || answer.status === 403) throw new Error("key");
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  return answer.json();
}

let since = 0;
async function update() {
  try {
    const [page, now] = await Promise.all([read(`history?since=${since}`), read("status?queue=0")]);
    since = page.time;
    remember(page);
    status = now;
    const started = performance.now();
    render();
    window.lastRender = performance.now() - started;
    failures = 0;
    set(at("connection"), "");
    show(at("login"), false);
  } catch (error) {
    if (error.message === "key") {
      set(at("login-error"), headers().authorization ? "This key is wrong, or may not read the status." : "");
      set(at("headline"), "A key is needed");
      show(at("login"), true);
    } else {
      failures += 1;
      set(at("connection"), "No answer from the server: what is shown is old. Trying again …");
    }
  }
  setTimeout(update, document.hidden ? 10000 : Math.min(1000 * 2 ** Math.min(failures, 4), 15000));
}

at("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("paceline-key", at("key").value.trim());
});
at("filter").addEventListener("input", render);
at("more").addEventListener("click", () => { all = true; render(); });

const dark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const nameTheme = () => set(at("theme"), dark() ? "Light" : "Dark");
const stored = localStorage.getItem("paceline-theme");
if (stored === "dark" || stored === "light") document.documentElement.dataset.theme = stored;
at("theme").addEventListener("click", () => {
  const next = dark() ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("paceline-theme", next);
  nameTheme();
});
nameTheme();
update();
