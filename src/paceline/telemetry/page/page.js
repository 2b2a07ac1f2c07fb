// The live page: reads the status and the history each second, and changes only what has changed.
// Every text from the server is set as text, never as HTML.

const SHOWN = 60; // cards at first; the others on request
const EVENTS = 50;
const RUNS = 20;
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

const formats = [0, 1, 2].map((digits) => new Intl.NumberFormat("en", { maximumFractionDigits: digits }));
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const number = (value, digits = 0) => formats[digits].format(value);
const amount = (value) => number(value, value < 10 && value % 1 ? 1 : 0);
const brief = (value) => (value < 100_000 ? amount(value) : short.format(value).toLowerCase());
const percent = (share) => `${Math.round(share * 100)} %`;
const plural = (count, one, many) => `${number(count)} ${count === 1 ? one : many}`;

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "unknown";
  if (seconds < 10) return `${number(seconds, 1)} s`;
  if (seconds < 120) return `${Math.ceil(seconds)} s`;
  if (seconds < 7200) return `${Math.ceil(seconds / 60)} min`;
  if (seconds < 172800) return `${number(seconds / 3600, 1)} h`;
  return `${number(seconds / 86400, 1)} days`;
}

const PROVIDERS = {
  openai: "OpenAI", anthropic: "Anthropic", gemini: "Google", vertex: "Google", azure: "Azure", groq: "Groq", mistral: "Mistral",
  cohere: "Cohere", xai: "xAI", deepseek: "DeepSeek", together: "Together", fireworks: "Fireworks", openrouter: "OpenRouter",
  cerebras: "Cerebras", perplexity: "Perplexity", bedrock: "AWS", github: "GitHub",
};
function provider(name) {
  const [known] = name.split(/[/@]/);
  return Object.hasOwn(PROVIDERS, known) ? PROVIDERS[known] : "the provider";
}

const ago = (seconds) => (seconds < 1.5 ? "just now" : `${duration(Math.round(seconds))} ago`);

// Where a limit comes from: `source` is a kind, and where a table states it, the table with its date and the tier.
function source(quota, name) {
  if (!quota.source) return "";
  const whose = provider(name), [kind, detail = ""] = quota.source.split(/: (.*)/s);
  const read = quota.stated_ago_s === null || quota.stated_ago_s === undefined ? "" : ago(quota.stated_ago_s);
  const [, date, tier] = detail.match(/\((\d{4}[\d-]*)\)(?:, (.*))?$/) ?? [];
  const table = [date && `as of ${date}`, tier].filter(Boolean).join(", ");
  if (kind === "given") return `from your configuration${read && `, seen in ${whose}'s headers ${read}`}`;
  if (kind === "published") return `published by ${whose}${table && `, ${table}`}${read && `, seen in its headers ${read}`}`;
  if (kind === "assumed") return detail === "no table" ? `assumed: no table has ${whose}'s limits` : `assumed until an answer states it${table && ` (${table})`}`;
  if (detail === "measured") return `measured: ${whose} states no limit`;
  return `from ${whose}'s ${read ? `headers, ${read}` : "answers"}`;
}

const REFUSALS = {
  rate: "too fast (429)", growth: "traffic grew too fast (429)", capacity: "servers full (503, 529)", money: "no money left",
  never_fits: "larger than the limit",
};

const UNFINISHED = { cut_off: "cut off", declined: "declined", blocked: "blocked", empty: "empty", paused: "paused" };

// How many requests of a run failed, and of what.
function failed(run) {
  const named = Object.entries(run.errors ?? {}).map(([what, count]) => `${number(count)} ${what}`);
  return named.length ? `${number(run.failed)}: ${named.join(", ")}` : number(run.failed);
}

// The refusals so far; null where they are not known.
function refused(pool) {
  if (!pool.counts) return pool.quotas?.find((quota) => quota.unit === "requests")?.refused ?? null;
  return Object.entries(pool.counts).reduce((sum, [what, count]) => sum + (what.startsWith("refused_") ? count : 0), 0);
}

const waits = (pool) => pool.waiting ?? pool.processes?.waiting ?? 0;

// The state of a pool: `text` follows its name and "is" in the headline, and stands below it in its card.
function state(name, pool) {
  const waiting = pool.waiting ? `${number(pool.waiting)} wait` : pool.processes?.waiting ? plural(pool.processes.waiting, "process waits", "processes wait") : "nothing waits";
  const last = pool.waiting && pool.eta_s !== null && pool.eta_s !== undefined ? `, the last one goes in about ${duration(pool.eta_s)}` : "";
  const as = (rank, kind, badge, text) => ({ rank, kind, badge, text });
  if (pool.stopped) return as(5, "halted", "stopped", `stopped: ${pool.stopped}`);
  // First: a silent pool pauses itself for each request, and no answer has asked for that.
  if (pool.binds === "no answer") return as(4, "halted", "no answers", `without answers, one request goes at a time: ${waiting}`);
  if (pool.cool_down_s) return as(4, "halted", "paused", `paused for ${duration(pool.cool_down_s)} ${pool.paused}: ${waiting}`);
  if (pool.store?.state === "lost") return as(4, "halted", "store lost", `without its store: ${waiting}`);
  if (waits(pool)) {
    const quota = (pool.quotas ?? []).find((one) => one.quota === pool.binds) ?? (pool.processes && scarcest(pool)); // a store does not know what binds
    const limit = quota && (isSlots(quota) ? `${amount(quota.limit)} in flight` : quota.quota);
    return as(3, "limited", "at its limit", `${limit ? `at its limit of ${limit}` : pool.binds === "store" ? "asking its store" : "sending"}: ${waiting}${last}`);
  }
  if ((pool.quotas ?? []).some((quota) => isSlots(quota) && quota.remaining < 1)) return as(1, "free", "all in use", "using all its slots: nothing waits");
  if (pool.in_flight) return as(1, "free", "below its limit", "below its limit: every request goes at once");
  if ((pool.quotas ?? []).some((quota) => speedOf(name, quota.quota) > 0)) return as(1, "free", "below its limit", "below its limit: nothing waits");
  return as(0, "idle", "not in use", "not in use: nothing waits");
}

const scarcest = (pool) => [...(pool.quotas ?? [])].sort((a, b) => used(b) - used(a))[0];
const isSlots = (quota) => quota.rule === "slots" || quota.unit === "concurrency";

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
  const [area, stroke, limit] = svg.children;
  stroke.setAttribute("d", line);
  area.setAttribute("d", line && `${line}L${last.toFixed(1)} 48L${first.toFixed(1)} 48Z`);
  limit?.setAttribute("d", `M0 ${(46 - 44 / most).toFixed(1)}H300`);
}

// The present speed of a quota, as a share of its limit; undefined where it is not known.
const speedOf = (name, quota) => history.get(name)?.speed[quota]?.at(-1) ?? undefined;

// Of a pool, the quota that is used most, or that binds: its name, how much of it is used, and whether that is a speed.
function fullest(name, pool) {
  let most = null;
  for (const quota of pool.quotas ?? []) {
    const speed = speedOf(name, quota.quota), slow = !(quota.period_s > 0 && quota.period_s <= 60);
    if (speed === undefined && !slow) continue;
    const share = speed ?? used(quota), binds = pool.binds === quota.quota;
    if (!most || binds || (share > most.share && !most.binds)) most = { quota, share, binds, speed: speed !== undefined };
  }
  return most;
}

const used = (quota) => (quota.limit > 0 ? Math.min(Math.max(1 - quota.remaining / quota.limit, 0), 1) : 0);

function draw(card) {
  const columns = history.get(card.name), pool = status.pools[card.name];
  if (!columns || !pool) return;
  const level = card.querySelector("svg.level"), queue = card.querySelector("svg.queue");
  const [one, other] = card.querySelectorAll("figcaption"), span = duration(seconds(columns.t));
  const most = fullest(card.name, pool), name = most?.quota.quota;
  const values = !most ? [] : most.speed ? columns.speed[name] : (columns.quotas[name] ?? []).map((left) => (left === null ? null : 1 - left));
  path(level, columns.t, values, Math.max(1.1, ...values));
  const what = !most ? "Speed" : most.speed ? `Speed, of ${name}` : `Used of ${name}`;
  label(level, most ? `${what}: now ${percent(most.share)}` : "no speed yet");
  set(one, `${most && !most.speed ? "Used" : "Speed"}, last ${span}`);
  const highest = Math.max(1, ...columns.waiting);
  path(queue, columns.t, columns.waiting, highest);
  label(queue, `now ${number(columns.waiting.at(-1) ?? 0)} waiting, at most ${number(highest)} in the last minutes`);
  set(other, `Waiting, up to ${number(Math.max(0, ...columns.waiting))}`);
}

// A card.

function card(name) {
  let found = cards.get(name);
  if (!found) {
    found = at("pool-template").content.firstElementChild.cloneNode(true);
    found.name = name;
    set(found.querySelector("h3"), name);
    found.parts = [".badge", ".why", ".quotas", ".sources", "dl", ".lanes", ".processes", ".cache", ".refusals"].map((part) => found.querySelector(part));
    cards.set(name, found);
    watcher.observe(found);
  }
  return found;
}

function learned(quota) {
  const parts = [];
  const more = quota.learned ?? {};
  if (more.stated_limit) parts.push(`the provider states ${amount(more.stated_limit)}`);
  if (more.holds) parts.push(`the provider holds ${amount(more.holds)} at once`);
  if (more.ceiling) parts.push(`used up to ${percent(more.ceiling)} after refusals`);
  if (more.headroom_s) parts.push(`${number(more.headroom_s, 1)} s of it kept unused`);
  if (more.rule) parts.push(more.rule);
  return parts;
}

const PERIODS = { 1: "a second", 60: "a minute" };

// What is used of a quota, what is left, and when it is back.
function numbers(name, quota) {
  const slots = isSlots(quota);
  const speed = speedOf(name, quota.quota);
  const share = speed ?? used(quota);
  const each = PERIODS[quota.period_s] ?? `in ${duration(quota.period_s)}`;
  const text = slots ? `${amount(quota.limit - quota.remaining)} of ${amount(quota.limit)} in flight`
    : speed !== undefined ? `${brief(speed * quota.limit)} of ${brief(quota.limit)} ${each}`
    : `${brief(Math.max(quota.limit - quota.remaining, 0))} of ${brief(quota.limit)} used`;
  const left = `${brief(Math.max(quota.remaining, 0))} left`;
  const back = slots ? `${amount(Math.max(quota.remaining, 0))} free`
    : quota.resets_at ? `${left} until ${when(quota.resets_at)}`
    : quota.reset_s >= 0.5 ? `${left} now, full again after ${duration(quota.reset_s)} without requests`
    : quota.remaining / quota.limit >= 0.995 ? "all left" : left;
  const fast = speed > 1.03 ? "above the limit for a moment: some was saved up" : "";
  return { share, text, about: [fast, back, ...learned(quota)].filter(Boolean).join(" · ") };
}

function when(at) {
  const date = new Date(at);
  const day = date.toDateString() === new Date().toDateString() ? "" : `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })}, `;
  return `${day}${date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" })}`;
}

// Of quotas from one source, what headers have stated last; null for several sources, which are told one by one.
function commonSource(quotas) {
  if (quotas.some((quota) => quota.source !== quotas[0].source)) return null;
  return [...quotas].sort((a, b) => (a.stated_ago_s ?? Infinity) - (b.stated_ago_s ?? Infinity))[0];
}

function fillQuotas(node, sources, name, pool) {
  const quotas = pool.quotas ?? [], common = commonSource(quotas), from = common ? source(common, name) : "";
  show(sources, from !== "");
  set(sources, `${quotas.length > 1 ? "Limits" : "The limit is"} ${from}`);
  while (node.children.length > quotas.length) node.lastElementChild.remove();
  quotas.forEach((quota, i) => {
    if (!node.children[i]) {
      const made = at("quota-template").content.firstElementChild.cloneNode(true);
      made.parts = [".name", ".used", ".meter", ".about"].map((part) => made.querySelector(part));
      node.append(made);
    }
    const row = node.children[i], [title, right, meter, below] = row.parts;
    const { share, text, about } = numbers(name, quota);
    const binds = pool.waiting > 0 && pool.binds === quota.quota;
    if (row.binds !== binds) row.classList.toggle("binds", (row.binds = binds));
    set(title, quota.quota);
    set(right, text);
    const shown = Math.round(Math.min(share, 1) * 1000) / 10;
    if (meter.shown !== shown) {
      meter.shown = shown;
      meter.setAttribute("aria-valuenow", shown);
      meter.firstElementChild.style.width = `${shown}%`;
    }
    label(meter, `used of ${quota.quota}`);
    set(below, [about, common ? "" : source(quota, name)].filter(Boolean).join(" · "));
  });
}

function fillNumbers(list, pairs) {
  while (list.children.length > pairs.length) list.lastElementChild.remove();
  pairs.forEach((pair, i) => {
    if (!list.children[i]) {
      const made = document.createElement("div");
      made.append(document.createElement("dt"), ...pair.slice(1).map(() => document.createElement("dd")));
      list.append(made);
    }
    pair.forEach((text, j) => set(list.children[i].children[j], text));
  });
}

// A table of the first rows, with the number of the others.
function table(node, list, cells, rest) {
  const shown = list.slice(0, LANES).map(cells);
  if (rest) shown.push(rest);
  show(node, list.length > 0);
  rows(node.querySelector("tbody"), shown, (row) => row);
}

function fill(name, pool, now) {
  const node = card(name);
  if (node.className !== now.kind) node.className = now.kind;
  const [badge, why, quotas, sources, list, lanes, processes, cache, refusals] = node.parts;
  set(badge, now.badge);
  set(why, now.text.charAt(0).toUpperCase() + now.text.slice(1));
  fillQuotas(quotas, sources, name, pool);
  const pairs = [];
  if (pool.waiting !== undefined) pairs.push(["Waiting", number(pool.waiting)], ["In flight", number(pool.in_flight ?? 0)]);
  if (pool.counts) pairs.push(["Sent so far", brief(pool.counts.granted ?? 0)]);
  if (refused(pool) !== null) pairs.push(["Refused", number(refused(pool))]);
  for (const [state, label] of Object.entries(UNFINISHED)) {
    if (pool.finishes?.[state]) pairs.push([`Answers ${label}`, number(pool.finishes[state])]);
  }
  if (pool.wait_s) pairs.push(["Mean wait", duration(pool.wait_s.mean)], ["Longest wait", duration(pool.wait_s.longest)]);
  if (pool.store) pairs.push(["Processes", number(pool.store.peers ?? 1)]);
  fillNumbers(list, pairs);
  const waited = pool.lanes_waited_s ?? {};
  const waiting = Object.entries(pool.lanes ?? {}).sort((a, b) => b[1] - a[1]);
  const others = waiting.slice(LANES);
  table(lanes, waiting, ([lane, count]) => [lane, number(count), waited[lane] === undefined ? "" : duration(waited[lane])],
    others.length && [plural(others.length, "other", "others"), number(others.reduce((sum, [, count]) => sum + count, 0)), duration(Math.max(...others.map(([lane]) => waited[lane] ?? 0)))]);
  const peers = pool.processes?.each ?? [], more = (pool.processes?.count ?? 0) - Math.min(peers.length, LANES);
  table(processes, peers, (one) => [one.name, `${one.state === "alive" && one.waits ? "waits" : one.state === "idle" ? "idle or ended" : one.state}, ${ago(one.seen_ago_s)}`, percent(one.part)], more > 0 && [plural(more, "other", "others"), "", ""]);
  show(cache, Boolean(pool.cache));
  if (pool.cache) set(cache, cacheText(pool.cache));
  const found = Object.entries(pool.counts ?? {}).filter(([what]) => what.startsWith("refused_"));
  show(refusals, found.length > 0);
  if (found.length) set(refusals, `Refused by ${provider(name)}: ${found.map(([what, count]) => `${number(count)} × ${REFUSALS[what.slice(8)] ?? what.slice(8)}`).join(", ")}`);
  return node;
}

function cacheText(cache) {
  const read = cache.input_tokens ? percent(cache.read_tokens / cache.input_tokens) : "0 %";
  const order = cache.overtook ? `The order by it saved ${brief(cache.saved_tokens)} tokens: ${plural(cache.overtook, "request", "requests")} went first` : "The order by it has changed nothing yet";
  return `Prompt cache: ${read} of the input came from it. ${order}.`;
}

// What needs a person: the last trouble of each server, with what to do.

const TROUBLES = 20;

function renderTrouble() {
  const found = (status.answers ?? []).filter((row) => row.remedy).sort((a, b) => a.last_ago_s - b.last_ago_s).slice(0, TROUBLES);
  const lines = found.map((row) => `${row.pool} at ${row.upstream}: ${row.remedy} (${row.status ? `status ${row.status}, ` : ""}${plural(row.count, "time", "times")}, ${ago(row.last_ago_s)})`);
  show(at("trouble-section"), lines.length > 0);
  listed(at("trouble"), lines);
}

function listed(list, lines) {
  while (list.children.length > lines.length) list.lastElementChild.remove();
  lines.forEach((text, i) => set(list.children[i] ?? list.appendChild(document.createElement("li")), text));
}

// Plans.

const WINDOWS = 40;
const SESSIONS = 10;

const shut = (row) => (row.state === undefined ? row.status === "rejected" : row.state === "shut" || row.state === "probing");
const windowName = (row) => row.window.replace(row.scope ? /(\d+)([dhm])(?:_\w+)?/ : /(\d+)([dhm])\b/, "$1 $2") + (row.scope ? `, ${row.scope}` : "");
const share = (value) => (value === null || value === undefined ? "–" : percent(value));

function ends(row) {
  if (row.ends_s !== null && row.ends_s <= 0) return row.ends_at ? `${when(row.ends_at)}, past` : "past";
  if (!row.ends_at) return row.ends_s === null ? "not stated" : `in ${duration(row.ends_s)}`;
  return row.ends_s < 86400 ? `${when(row.ends_at)}, in ${duration(row.ends_s)}` : when(row.ends_at);
}

function left(row) {
  const test = row.test_s === null || row.test_s === undefined ? "" : `, the next test in ${duration(row.test_s)}`;
  if (shut(row)) return row.waiting ? `used up: ${plural(row.waiting, "request waits", "requests wait")}${test}` : "used up";
  if (row.state === "held" && row.waiting) return `${plural(row.waiting, "request waits", "requests wait")} for ${duration(row.test_s)}, as [plans] says`;
  if (row.requests_left === null || row.requests_left === undefined) return "";
  return `about ${plural(row.requests_left, "request", "requests")} like these`;
}

// Who has used what went through here, by the account's first window that is not about one model.
function sessionText(row) {
  const parts = row.sessions.slice(0, SESSIONS).map((one) => {
    const name = one.session ? `${one.session} (${one.program})` : "others";
    const agents = one.subagents ? `, ${plural(one.subagents, "subagent", "subagents")} of it ${share(one.subagents_own)}` : "";
    return `${name} ${share(one.own)}${agents}`;
  });
  const more = row.sessions.length - parts.length;
  return `${row.account}, of ${windowName(row)} by session: ${parts.join("; ")}${more > 0 ? `; ${number(more)} more` : ""}`;
}

function renderPlans() {
  const plans = (status.plans ?? []).slice(0, WINDOWS);
  show(at("plans-section"), plans.length > 0);
  rows(at("plans"), plans, (row) => [row.account, windowName(row), share(row.used), share(row.own), ends(row), left(row)]);
  const first = new Map();
  for (const row of plans) if (!row.scope && (row.sessions ?? []).some((one) => one.session && (one.own || one.subagents_own)) && !first.has(row.account)) first.set(row.account, row);
  listed(at("sessions"), [...first.values()].map(sessionText));
}

// Teams.

const TEAMS = 40;

function renderTeams() {
  const teams = Object.entries(status.teams ?? {}).sort((a, b) => b[1].usd - a[1].usd || b[1].requests - a[1].requests).slice(0, TEAMS);
  show(at("teams-section"), teams.length > 0);
  rows(at("teams"), teams, ([name, sums]) => [name === "-" ? "no team" : name, number(sums.requests), number(sums.input_tokens), number(sums.output_tokens), number(sums.usd, 2)]);
}

// The page.

function render() {
  const wanted = at("filter").value.trim().toLowerCase();
  const every = Object.entries(status.pools)
    .map(([name, pool]) => [name, pool, state(name, pool)])
    .sort((a, b) => b[2].rank - a[2].rank || waits(b[1]) - waits(a[1]) || a[0].localeCompare(b[0]));
  const list = every.filter(([name]) => name.toLowerCase().includes(wanted));
  const shown = all ? list : list.slice(0, SHOWN);
  const focused = document.activeElement;
  const nodes = shown.map(([name, pool, now]) => fill(name, pool, now));
  const pools = at("pools");
  nodes.forEach((node, i) => { if (pools.children[i] !== node) pools.insertBefore(node, pools.children[i] ?? null); });
  while (pools.children.length > nodes.length) pools.lastElementChild.remove();
  for (const node of visible) draw(node);
  forget();
  if (focused !== document.activeElement) focused?.focus?.();
  show(at("more"), list.length > shown.length);
  set(at("more"), `Show all ${number(list.length)} pools`);
  show(at("nothing"), every.length === 0);
  renderTrouble();
  renderPlans();
  renderTeams();
  headline(every);
  fillNumbers(at("answers"), answers(every));
  show(at("unpaced-section"), (status.unpaced ?? []).length > 0);
  rows(at("unpaced"), status.unpaced ?? [], (row) => [row.host, row.kind, number(row.count), row.remedy]);
  show(at("runs-section"), (status.runs ?? []).length > 0);
  rows(at("runs"), (status.runs ?? []).slice(0, RUNS), (run) => [
    run.input, `${number(run.done)} of ${run.about ? "about " : ""}${number(run.requests)}`, failed(run), number(run.refused), number(run.per_min),
    run.left_s === null ? "" : duration(run.left_s), Object.entries(run.states).filter(([, count]) => count).map(([what, count]) => `${number(count)} ${what}`).join(", "),
  ]);
}

// Drop what is kept of pools that are gone.
function forget() {
  for (const [name, node] of cards) if (!(name in status.pools)) { watcher.unobserve(node); visible.delete(node); cards.delete(name); }
  for (const name of history.keys()) if (!(name in status.pools)) history.delete(name);
}

function headline(list) {
  const [name, , now] = list[0] ?? ["", null, { kind: "free", rank: 0 }];
  const used = (status.plans ?? []).find((row) => shut(row) && row.waiting);
  const text = used && now.rank < 5 ? `${used.account}: ${windowName(used)} used up, ${plural(used.waiting, "request waits", "requests wait")}${used.ends_at ? ` until ${when(used.ends_at)}` : ""}`
    : now.rank >= 3 ? `${name} is ${now.text}` : "Nothing waits: every request goes at once";
  const node = at("headline"), same = `${name} ${now.kind}` === kind;
  node.setAttribute("aria-live", same ? "off" : "polite"); // numbers that change each second are not read out
  kind = `${name} ${now.kind}`;
  set(node, text);
  document.title = now.rank >= 3 ? `${now.badge}: ${name} - paceline` : "paceline";
  const held = list.filter(([, , one]) => one.rank >= 3).length;
  set(at("summary"), [`${plural(list.length, "pool", "pools")}, ${number(held)} at a limit or halted`, ...(status.problems ?? [])].join(". "));
}

// The four questions of a glance, each with its answer and a note.
function answers(list) {
  const found = [];
  const speeds = list.map(([name, pool]) => [name, fullest(name, pool)]).filter(([, most]) => most).sort((a, b) => b[1].share - a[1].share);
  const [name, most] = speeds[0] ?? [];
  const full = speeds.filter(([, one]) => one.share >= 0.95).length;
  found.push(["Speed, of what is allowed", most ? percent(Math.min(most.share, 1)) : "–",
    most ? `${numbers(name, most.quota).text} (${most.quota.unit.replace("_", " ")}), ${name}${full > 1 ? `, and ${number(full - 1)} more at the limit` : ""}` : "known in a few seconds"]);
  const refusals = list.map(([, pool]) => refused(pool)).filter((count) => count !== null);
  if (refusals.length) found.push(["Refused by providers", number(refusals.reduce((sum, count) => sum + count, 0)), recent()]);
  const waiting = list.reduce((sum, [, pool]) => sum + waits(pool), 0);
  let longest = null;
  for (const [pool, { lanes_waited_s }] of list) for (const [lane, s] of Object.entries(lanes_waited_s ?? {})) if (!longest || s > longest.s) longest = { s, lane, pool };
  const stored = list.some(([, pool]) => pool.processes);
  found.push([stored ? "Processes that wait" : "Waiting", number(waiting), longest ? `${duration(longest.s)} at most: ${longest.lane}, ${longest.pool}` : waiting ? "" : "nothing waits"]);
  if (stored) {
    const alive = Math.max(0, ...list.map(([, pool]) => pool.processes?.alive ?? 0)), silent = Math.max(0, ...list.map(([, pool]) => pool.processes?.silent ?? 0));
    found.push(["Processes alive", number(alive), silent ? `${number(silent)} silent: their parts are kept for a while` : "all report"]);
  } else {
    const caches = list.map(([, pool]) => pool.cache).filter(Boolean);
    const sum = (what) => caches.reduce((total, cache) => total + (cache[what] ?? 0), 0);
    found.push(["Tokens saved by the order of caches", caches.length ? brief(sum("saved_tokens")) : "–",
      caches.length ? `${percent(sum("read_tokens") / Math.max(sum("input_tokens"), 1))} of the input came from prompt caches` : "no answer has reported cached tokens"]);
  }
  return found;
}

// The refusals that the history shows.
function recent() {
  let count = 0, from = newest;
  for (const { t, refused } of history.values()) {
    for (let i = 1; i < t.length; i++) count += Math.max(refused[i] - refused[i - 1], 0);
    from = Math.min(from, t[0] ?? from);
  }
  return `${number(count)} in the last ${duration(Math.max(Math.round(newest - from), 1))}`;
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
    for (const table of ["quotas", "speed"]) {
      for (const [quota, values] of Object.entries(columns[table])) (kept[table][quota] ??= new Array(before).fill(null)).push(...values);
      for (const values of Object.values(kept[table])) while (values.length < kept.t.length) values.push(null);
    }
    const over = kept.t.length - page.keep_s / page.step_s;
    if (over > 0) for (const values of [kept.t, kept.waiting, kept.in_flight, kept.granted, kept.refused, ...Object.values(kept.quotas), ...Object.values(kept.speed)]) values.splice(0, over);
  }
  newest = page.time;
  if (page.events.length) { events = [...events, ...page.events].slice(-200); renderEvents(); }
}

// Reading.

// `paceline exec` prints the address with a key that may read this page; the key leaves the address bar at once.
if (location.hash.startsWith("#pk-")) {
  sessionStorage.setItem("paceline-key", location.hash.slice(1));
  window.history.replaceState(null, "", location.pathname + location.search);
}

const headers = () => { const key = sessionStorage.getItem("paceline-key"); return key ? { authorization: `Bearer ${key}` } : {}; };

async function read(url) {
  const answer = await fetch(url, { headers: headers(), signal: AbortSignal.timeout(10000), cache: "no-store" })
    .catch(() => { throw new Error("No answer from the server"); });
  if (answer.status === 401 || answer.status === 403) throw new Error("key");
  if (answer.ok) return answer.json();
  const { error } = await answer.json().catch(() => ({}));
  throw new Error(answer.status === 503 && typeof error === "string" ? error : `The server answers ${answer.status}`);
}

let since = 0;
let timer = 0;
let reading = false;
let readAt = null; // when the status was read last
async function update() {
  if (reading) return;
  reading = true;
  clearTimeout(timer);
  try {
    const [page, now] = await Promise.all([read(`history?since=${since}`), read("status?queue=0")]);
    since = page.time;
    remember(page);
    status = now;
    const started = performance.now();
    render();
    window.lastRender = performance.now() - started;
    readAt = new Date();
    failures = 0;
    say("");
    show(at("login"), false);
  } catch (error) {
    if (error.message === "key") {
      set(at("login-error"), headers().authorization ? "This key is wrong, or may not read the status." : "");
      set(at("headline"), "A key is needed");
      show(at("login"), true);
    } else {
      failures += 1;
      say(error.message);
    }
  }
  reading = false;
  timer = setTimeout(update, document.hidden ? 10000 : Math.min(1000 * 2 ** Math.min(failures, 4), 15000));
}

// Say that what is shown is old, and why; an empty reason: it is not.
function say(why) {
  document.body.classList.toggle("old", why !== "");
  const old = readAt ? `what is shown is from ${readAt.toLocaleTimeString("en-GB")}` : "nothing could be read yet";
  set(at("connection"), why && `${why}: ${old}. Trying again …`);
  if (why) document.title = "no answer - paceline";
}

document.addEventListener("visibilitychange", () => { if (!document.hidden && readAt) update(); });
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
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
nameTheme();
update();
