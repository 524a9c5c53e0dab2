// The console's only script: takes updates from the stream, draws charts and the heat map, and remembers theme and time zone.
// It never evaluates text, and HTML comes from the console's own server, which escapes every name.
"use strict";
(() => {
  const root = document.documentElement;
  const main = document.getElementById("main");
  const parser = new DOMParser();
  const remembered = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
  const remember = (name, value) => { try { localStorage.setItem(name, value); } catch { /* for this page only */ } };
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  // -- updates: changes what differs, so that focus, selection, scroll and opened details stay

  function sameKind(a, b) {
    return a.nodeType === b.nodeType && a.nodeName === b.nodeName
      && (a.nodeType !== 1 || (a.getAttribute("data-key") === b.getAttribute("data-key") && a.id === b.id));
  }

  function morph(from, to) {
    if (from.nodeType === 3) { if (from.data !== to.data) from.data = to.data; return; }
    if (from.nodeType !== 1 || from.hasAttribute("data-static")) return;
    for (const { name, value } of [...to.attributes]) if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    for (const { name } of [...from.attributes]) {
      const isOpened = from.nodeName === "DETAILS" && name === "open";
      if (!to.hasAttribute(name) && !isOpened) from.removeAttribute(name);
    }
    if (from.hasAttribute("data-keep")) return;
    const byKey = new Map();
    for (const child of from.children) { const key = child.getAttribute("data-key"); if (key !== null) byKey.set(key, child); }
    let at = from.firstChild;
    for (const child of [...to.childNodes]) {
      const key = child.nodeType === 1 ? child.getAttribute("data-key") : null;
      const known = key === null ? null : byKey.get(key);
      if (known && known !== at && known.nodeName === child.nodeName) { from.insertBefore(known, at); at = known; }
      if (at && sameKind(at, child)) { const next = at.nextSibling; morph(at, child); at = next; }
      else from.insertBefore(document.importNode(child, true), at);
    }
    while (at) { const next = at.nextSibling; at.remove(); at = next; }
  }

  // Moving an element takes the focus of the keyboard from it.
  function replaceMain(page) {
    const focused = document.activeElement;
    morph(main, page.getElementById("main"));
    if (focused !== document.activeElement && main.contains(focused)) focused.focus({ preventScroll: true });
    shownAt = performance.now();
    refresh();
  }

  function show(html) {
    replaceMain(parser.parseFromString(`<main id="main" tabindex="-1">${html}</main>`, "text/html"));
  }

  const RETRY_MS = 5000;
  let stream = null;
  let retry = 0;
  let heardAt = Date.now();
  let isGone = false; // what the page shows has ended
  function follow() {
    clearTimeout(retry);
    if (stream) stream.close();
    const query = new URLSearchParams({ path: location.pathname, query: location.search.slice(1) });
    const own = new EventSource(`/events?${query}`);
    stream = own;
    own.addEventListener("page", (event) => { heardAt = Date.now(); isGone = false; show(JSON.parse(event.data)); live(); });
    own.addEventListener("gone", () => { heardAt = Date.now(); isGone = true; live(); });
    own.addEventListener("signed-out", () => location.reload());
    own.onopen = () => { heardAt = Date.now(); live(); };
    own.onerror = () => { live(); if (own === stream && own.readyState === EventSource.CLOSED) followLater(); };
  }

  // A browser ends a stream for good at any response but 200, such as that of a proxy while the console is started again.
  function followLater() {
    clearTimeout(retry);
    retry = setTimeout(async () => {
      try {
        const response = await fetch(location.href, { redirect: "manual" });
        if (response.type === "opaqueredirect") { location.reload(); return; } // to sign in
      } catch { followLater(); return; }
      follow();
    }, RETRY_MS);
  }

  function live() {
    const element = document.getElementById("live");
    const silent_s = Math.round((Date.now() - heardAt) / 1000);
    const isSilent = silent_s > 15;
    element.classList.toggle("lost", isSilent || isGone);
    const ended = location.pathname === "/switchovers" ? "no longer here" : "this flow has ended";
    const text = isSilent ? `no update for ${silent_s} s` : isGone ? ended : "live";
    const span = document.getElementById("live-word");
    if (span.textContent !== text) span.textContent = text;
  }

  // Opens a link without a new page: the URL changes, and the part that changes is replaced.
  let swaps = 0;
  async function swap(url) {
    swaps += 1;
    const own = swaps;
    let text = null;
    try {
      const response = await fetch(url, { headers: { Accept: "text/html" } });
      if (response.ok && !response.redirected) text = await response.text();
    } catch { /* the browser says what is wrong */ }
    if (own !== swaps) return; // another link was opened meanwhile
    if (text === null) { location.assign(url); return; }
    history.replaceState(null, "", url);
    replaceMain(parser.parseFromString(text, "text/html"));
    follow();
  }

  document.addEventListener("click", (event) => {
    const anchor = event.target.closest("a[data-swap]");
    if (!anchor || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    swap(anchor.href);
  });

  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest("input, textarea");
    const filter = document.getElementById("filter");
    if (event.key === "/" && !isTyping && filter) { event.preventDefault(); filter.focus(); filter.select(); }
    if (event.key === "Escape" && isTyping) isTyping.blur();
  });

  // -- times

  let isLocal = remembered("zone") === "local";
  const forms = {
    time: { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" },
    date: { month: "short", day: "2-digit", hour: "2-digit", minute: "2-digit", hourCycle: "h23" },
  };
  function times() {
    for (const element of document.querySelectorAll("time[datetime]")) {
      const options = { ...forms[element.dataset.form], timeZone: isLocal ? undefined : "UTC" };
      const text = new Date(element.dateTime).toLocaleString("en-GB", options) + (isLocal ? "" : " UTC");
      if (element.textContent !== text) element.textContent = text;
    }
    const button = document.getElementById("zone");
    button.textContent = isLocal ? "Local" : "UTC";
    button.setAttribute("aria-pressed", String(isLocal));
  }
  document.getElementById("zone").addEventListener("click", () => {
    isLocal = !isLocal;
    remember("zone", isLocal ? "local" : "utc");
    dropCharts();
    refresh();
  });

  document.getElementById("theme").addEventListener("click", () => {
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    remember("theme", root.dataset.theme);
    dropCharts();
    refresh();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { dropCharts(); refresh(); });

  // -- ages, which grow while no update arrives, and commands to copy

  let shownAt = performance.now();
  function ages() {
    const passed_s = (performance.now() - shownAt) / 1000;
    for (const element of document.querySelectorAll("[data-age]")) {
      const seconds = Math.floor(Number(element.dataset.age) + passed_s);
      const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
      const first = Math.max(0, parts.findIndex(([size]) => seconds >= size || size === 1));
      const [size, unit] = parts[first];
      const rest = parts[first + 1];
      const left = rest ? Math.floor((seconds % size) / rest[0]) : 0;
      const text = `${Math.floor(seconds / size)} ${unit}${left ? ` ${left} ${rest[1]}` : ""}`;
      if (element.textContent !== text) element.textContent = text;
    }
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
    } catch { // Only pages of this machine and of HTTPS may write there.
      getSelection().selectAllChildren(button.previousElementSibling);
    }
  });

  // -- charts

  const SPAN_MIN_S = 300; // of a history that has just begun: its axis has whole minutes
  const charts = new Map();
  function dropCharts() { for (const { plot } of charts.values()) plot.destroy(); charts.clear(); }

  function figure(value) {
    if (value === null || value === undefined) return "–";
    for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (value >= size) return `${(value / size).toPrecision(3).replace(/\.0+$/, "")} ${unit}`;
    }
    return value >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toPrecision(2);
  }

  function days([at]) { return at.length ? (at[at.length - 1] - at[0]) / 86400 : 0; }

  function plotInto(element, data) {
    const muted = colour("--muted");
    const line = colour("--line");
    const font = "11px Inter, system-ui, sans-serif";
    const tip = document.createElement("div");
    tip.className = "chart-tip";
    const options = {
      width: element.clientWidth, height: element.clientHeight,
      cursor: { points: { size: 7 }, drag: { x: false, y: false } }, legend: { show: false },
      scales: { x: { time: true, range: (_, from, to) => (from === null ? [from, to] : [Math.min(from, to - SPAN_MIN_S), to]) }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
      tzDate: (at) => (isLocal ? new Date(at * 1000) : uPlot.tzDate(new Date(at * 1000), "Etc/UTC")),
      axes: [
        { stroke: muted, font, grid: { show: false }, ticks: { stroke: line, size: 4 }, size: 26, values: days(data) > 2 ? "{MMM} {DD}" : "{HH}:{mm}" },
        { stroke: muted, font, grid: { stroke: line, width: 1 }, ticks: { show: false }, size: 48, space: 34, values: (_, all) => all.map(figure) },
      ],
      series: [{}, { stroke: colour("--accent"), width: 1.6, fill: colour("--accent-soft"), spanGaps: false, points: { show: false } }],
      hooks: { setCursor: [(self) => {
        const index = self.cursor.idx;
        tip.textContent = index === null || index === undefined ? "" : figure(self.data[1][index]);
      }] },
    };
    const plot = new uPlot(options, data, element);
    plot.over.append(tip);
    return plot;
  }

  function drawCharts() {
    const holder = document.querySelector("[data-chart]");
    const all = holder ? JSON.parse(holder.dataset.chart) : [[]];
    if (!all[0].length || typeof uPlot === "undefined") { dropCharts(); return; }
    for (const element of holder.querySelectorAll(".chart")) {
      const data = [all[0], all[Number(element.dataset.series)]];
      const known = charts.get(element.id);
      const isLong = days(data) > 2;
      if (known && known.isLong !== isLong) { known.plot.destroy(); charts.delete(element.id); }
      if (known && known.element === element && known.isLong === isLong) known.plot.setData(data);
      else charts.set(element.id, { element, isLong, plot: plotInto(element, data) });
    }
  }

  // -- heat map: one canvas, drawn from a string with one character for each partition

  const palettes = {
    state: ["--cell-broken", "--cell-warning", "--cell-unknown", "--cell-waiting", "--cell-fine"],
    lag: ["--lag-0", "--lag-1", "--lag-2", "--lag-3", "--lag-4", "--lag-5", "--lag-6"],
    guarantee: ["--cell-warning", "--cell-fine"],
    "write mode": ["--cell-unknown", "--lag-2", "--cell-fine"],
    batches: ["--cell-unknown", "--cell-fine", "--lag-2", "--lag-4"],
  };
  let heat = null;

  function layout(width, topics, count) {
    // Topics with a name of their own row while they are few and large; one dense field for thousands of partitions.
    const size = count > 4000 ? 9 : count > 1000 ? 12 : count > 300 ? 16 : 20;
    const gap = size > 10 ? 2 : 1;
    const isNamed = topics.length <= 60;
    const step = size + gap;
    const cells = [];
    const names = [];
    let left = 0; // of the topic that is laid out
    let top = 0;
    let lowest = 0;
    for (const [topic, number, partitions] of topics) {
      const isShort = isNamed && number * step <= width;
      const block = Math.max(number * step, 7 * topic.length) + 28;
      if (isNamed && left && (!isShort || left + block - 28 > width)) { left = 0; top = lowest; }
      if (isNamed) names.push([topic, left, top + 13]);
      let x = isNamed ? left : cells.length ? cells[cells.length - 1].x + step : 0;
      let y = isNamed ? top + 20 : top;
      for (let index = 0; index < number; index += 1) {
        if (x + size > width) { x = 0; y += step; }
        cells.push({ x, y, topic, partition: partitions ? partitions[index] : index });
        x += step;
      }
      if (isNamed) {
        lowest = Math.max(lowest, y + step + 10);
        left = isShort ? left + block : 0;
        if (!isShort) top = lowest;
      } else top = y;
    }
    const height = cells.length ? cells.reduce((most, cell) => Math.max(most, cell.y), 0) + step : 1;
    return { cells, names, size, gap, height };
  }

  // The cell above or below another one: the nearest of the next row.
  function neighbour(index, direction) {
    const from = heat.cells[index];
    let best = index;
    let distance = Infinity;
    heat.cells.forEach((cell, at) => {
      const down = (cell.y - from.y) * direction;
      if (down <= 0) return;
      const away = down * 4 + Math.abs(cell.x - from.x);
      if (away < distance) { distance = away; best = at; }
    });
    return best;
  }

  function drawHeat() {
    const holder = document.getElementById("heat");
    if (!holder) { heat = null; return; }
    const canvas = document.getElementById("heat-canvas");
    const topics = JSON.parse(holder.dataset.topics);
    const states = holder.dataset.cells;
    const width = holder.clientWidth;
    const signature = `${width}|${holder.dataset.topics}`;
    if (!heat || heat.signature !== signature || heat.canvas !== canvas) {
      const kept = heat && heat.canvas === canvas ? heat.cells[heat.at] : null;
      heat = { ...layout(width, topics, states.length), signature, canvas, at: -1 };
      // The place of a partition may be new; what a person has chosen stays the same partition.
      if (kept) heat.at = heat.cells.findIndex((cell) => cell.topic === kept.topic && cell.partition === kept.partition);
      showTip();
    }
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.max(1, Math.round(heat.height * scale));
    const style = canvas.style;
    style.height = `${heat.height}px`;
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    const measure = holder.dataset.measure;
    const colours = palettes[measure].map(colour);
    const ink = colour("--surface");
    context.font = "600 12px Inter, system-ui, sans-serif";
    context.fillStyle = colour("--soft");
    for (const [name, x, y] of heat.names) context.fillText(name.length > 80 ? `${name.slice(0, 79)}…` : name, x, y);
    // Colour by colour, and small cells as rectangles: ten thousand changes of colour and rounded paths take longer than a frame.
    colours.forEach((fill, state) => {
      context.fillStyle = fill;
      heat.cells.forEach((cell, index) => {
        if (states.charCodeAt(index) !== 48 + state) return;
        if (heat.size > 10) {
          context.beginPath();
          context.roundRect(cell.x, cell.y, heat.size, heat.size, 3);
          context.fill();
        } else context.fillRect(cell.x, cell.y, heat.size, heat.size);
        if (measure === "state" && state < 2 && heat.size > 8) mark(context, cell, heat.size, state, ink);
      });
    });
    const chosen = heat.cells.findIndex((cell) =>
      cell.topic === holder.dataset.chosenTopic && String(cell.partition) === holder.dataset.chosenPartition);
    for (const [index, name] of [[chosen, "--ink"], [heat.at, "--accent"]]) {
      const cell = heat.cells[index];
      if (!cell) continue;
      context.strokeStyle = colour(name);
      context.lineWidth = 2;
      context.strokeRect(cell.x - 1, cell.y - 1, heat.size + 2, heat.size + 2);
    }
  }

  // A cross for stopped, a bar for stalled: the map is legible without its colours.
  function mark(context, { x, y }, size, state, ink) {
    const inset = size * 0.3;
    context.strokeStyle = ink;
    context.lineWidth = Math.max(1.2, size / 9);
    context.beginPath();
    if (state === 0) {
      context.moveTo(x + inset, y + inset); context.lineTo(x + size - inset, y + size - inset);
      context.moveTo(x + size - inset, y + inset); context.lineTo(x + inset, y + size - inset);
    } else {
      context.moveTo(x + size / 2, y + inset * 0.8); context.lineTo(x + size / 2, y + size - inset * 0.8);
    }
    context.stroke();
  }

  function cellAt(event) {
    const box = heat.canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top;
    const reach = heat.size + heat.gap;
    return heat.cells.findIndex((cell) => x >= cell.x && x < cell.x + reach && y >= cell.y && y < cell.y + reach);
  }

  function point(index) {
    if (!heat || index === heat.at) return;
    heat.at = index;
    showTip();
    drawHeat();
  }

  function showTip() {
    const tip = document.getElementById("heat-tip");
    const cell = heat.cells[heat.at];
    const name = cell ? `${cell.topic}-${cell.partition}` : "";
    if (tip.textContent !== name) tip.textContent = name;
    if (cell) { tip.style.left = `${Math.min(cell.x, heat.canvas.clientWidth - 120)}px`; tip.style.top = `${cell.y + heat.size + 6}px`; }
  }

  function open(index) {
    const cell = heat && heat.cells[index];
    if (!cell) return;
    const url = new URL(location.href);
    url.searchParams.set("topic", cell.topic);
    url.searchParams.set("partition", String(cell.partition));
    swap(url.href);
  }

  main.addEventListener("pointermove", (event) => { if (heat && event.target === heat.canvas) point(cellAt(event)); });
  main.addEventListener("pointerout", (event) => { if (heat && event.target === heat.canvas) point(-1); });
  main.addEventListener("click", (event) => { if (heat && event.target === heat.canvas) open(cellAt(event)); });
  main.addEventListener("keydown", (event) => {
    if (!heat || event.target !== heat.canvas) return;
    const last = heat.cells.length - 1;
    const from = Math.max(0, heat.at);
    const steps = {
      ArrowRight: () => Math.min(last, from + 1), ArrowLeft: () => Math.max(0, from - 1),
      ArrowDown: () => neighbour(from, 1), ArrowUp: () => neighbour(from, -1), Home: () => 0, End: () => last,
    };
    if (event.key in steps && last >= 0) {
      event.preventDefault();
      point(heat.at < 0 ? 0 : steps[event.key]());
    } else if (event.key === "Enter") open(heat.at);
  });

  // -- what is newest is on the right: it is shown first where there is no room for a week

  let scrolled = null;
  function showNewest() {
    const holder = document.querySelector("[data-newest]");
    if (holder && holder !== scrolled) holder.scrollLeft = holder.scrollWidth;
    scrolled = holder;
  }

  // --

  function refresh() { times(); ages(); drawCharts(); drawHeat(); showNewest(); }

  let resizing = 0;
  window.addEventListener("resize", () => {
    cancelAnimationFrame(resizing);
    resizing = requestAnimationFrame(() => { dropCharts(); refresh(); });
  });
  refresh();
  if (document.body.dataset.path in { "/": 1, "/flow": 1, "/partitions": 1, "/groups": 1, "/jobs": 1, "/history": 1, "/switchovers": 1 }) {
    follow();
    setInterval(() => { live(); ages(); }, 1000);
  } else document.getElementById("live").hidden = true; // such a page is not updated
})();
