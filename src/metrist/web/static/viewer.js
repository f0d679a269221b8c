// The viewer. Its whole state is in the address, so that every view has a link.

import { element, safeName, textNodes } from "/static/elements.js";
import { diffWords, drawContext, drawOutput, drawReasons, heatSection, markedBox, part } from "/static/output_card.js";
import { isShortcut, request } from "/static/page.js";

const byId = (id) => document.getElementById(id);
/** Columns that are shown unless the address names others. */
const DEFAULT_COLUMNS = 6;
const SIBLINGS_SHOWN = 4;
const NOTHING = { total: 0, page: 1, pages: 1, sort: "", descending: false, outputs: [] };

/** Whether an open output takes the place of the list. */
const isNarrow = () => matchMedia("(max-width: 1100px)").matches;

let runs = [];
let state = new URLSearchParams(location.search);
let listed = { ...NOTHING };
let marked = -1;
let openOutput = null;
let listRequest = null;
let detailRequest = null;
let showDifferences = true;

const run = () => runs[Number(state.get("run") ?? 0)] ?? runs[0];
const columnsShown = () => {
  const chosen = state.getAll("column");
  if (chosen.length) return run().columns.filter((column) => chosen.includes(column.name));
  return run().columns.filter((column) => column.kind !== "length").slice(0, DEFAULT_COLUMNS);
};
const format = (value, column) => (value === null || value === undefined ? "n/a" : value.toFixed(column.decimals).replace(/^-(?=[0.]*$)/, ""));
/** The name of a column, which may go on below after a colon. */
const breakName = (name) => safeName(name).split(/(?<=:)/).flatMap((part) => [part, element("wbr", {})]).slice(0, -1);

// ---- State

/** The parameters of the list alone: without the open output and the columns. */
function listQuery(extra = {}) {
  const query = new URLSearchParams(state);
  for (const name of ["item", "of", "column"]) query.delete(name);
  for (const [name, value] of Object.entries(extra)) query.set(name, value);
  return query.toString();
}

/** Change parameters of the address; an empty value removes one. */
function update(changes, { replace = false, keepPage = false } = {}) {
  const next = new URLSearchParams(state);
  for (const [name, value] of Object.entries(changes)) {
    next.delete(name);
    for (const one of [value].flat()) if (one !== "" && one !== null && one !== undefined && one !== false) next.append(name, one === true ? "1" : one);
  }
  if (!keepPage) next.delete("page");
  const before = listQuery();
  const [columns, opened] = [state.getAll("column").join("\n"), `${state.get("item")}\n${state.get("of")}`];
  state = next;
  const address = `${location.pathname}${state.size ? `?${state}` : ""}`;
  history[replace ? "replaceState" : "pushState"](null, "", address);
  if (listQuery() !== before) loadList();
  else if (state.getAll("column").join("\n") !== columns) drawList();
  if (`${state.get("item")}\n${state.get("of")}` !== opened || (state.has("item") && listQuery() !== before)) loadDetail();
  drawFilters();
}

function handleReturn() {
  state = new URLSearchParams(location.search);
  drawFilters();
  loadList();
  loadDetail();
}

// ---- Filters

function fillSelect(id, options, value) {
  const select = byId(id);
  select.replaceChildren(...options.map(([name, label]) => element("option", { value: name }, label)));
  select.value = value;
  if (select.selectedIndex < 0) select.selectedIndex = 0;
}

function sortOptions() {
  const names = run().columns.map((column) => [column.name, safeName(column.name)]);
  const changes = state.get("vs") ? run().columns.map((column) => [`${column.name} change`, safeName(`change of ${column.name}`)]) : [];
  return [...names, ...changes, ["disagreement", "disagreement of metrics"], ["input", "order of the input"]];
}

/** The column that a sort is by: itself or its change. */
const sortedColumn = (sort) => run().columns.find((column) => column.name === sort)
  ?? run().columns.find((column) => `${column.name} change` === sort);

/** Whether the outputs to look at first are those with the highest numbers. */
function highestFirst(sort) {
  const column = sortedColumn(sort);
  return column ? column.higher === false || column.kind === "length" : sort === "disagreement";
}

/** The order that the list has, which the server chooses where the address does not. */
function drawOrder() {
  const { sort, descending } = listed;
  if (!sort) return;
  fillSelect("sort", sortOptions(), sort);
  const higher = sort === "input" ? undefined : sortedColumn(sort)?.higher;
  const ends = sort === "input" ? ["first", "last"] : { true: ["lowest (worst)", "highest (best)"], false: ["lowest (best)", "highest (worst)"] }[higher] ?? ["lowest", "highest"];
  fillSelect("descending", [["", `${ends[0]} first`], ["1", `${ends[1]} first`]], descending ? "1" : "");
}

/** The order in words. */
function describeOrder() {
  const { sort, descending } = listed;
  if (!sort || sort === "input") return descending ? ", last first" : "";
  const higher = sortedColumn(sort)?.higher ?? null;
  const end = higher === null ? (descending ? "highest" : "lowest") : descending === higher ? "best" : "worst";
  return `, ${end} first by ${sort.endsWith(" change") ? "change of " : ""}${sort.replace(/ change$/, "")}`;
}

function drawFilters() {
  const current = run();
  const [number, versus] = [runs.indexOf(current), state.get("vs") ?? ""];
  fillSelect("run", runs.map((one, index) => [String(index), safeName(`${one.name} (${one.size.toLocaleString("en")})`)]), String(number));
  fillSelect("versus", [
    ["", "nothing"],
    ...runs.map((one, index) => [`run:${index}`, safeName(one.name)]).filter((_, index) => index !== number),
    ...(current.systems.length > 1 ? current.systems.map((system) => [`system:${system.name}`, safeName(`system ${system.name}`)]) : []),
  ], versus);
  fillSelect("system", [["", "all"], ...current.systems.map((one) => [one.name, safeName(`${one.name} (${one.size.toLocaleString("en")})`)])], state.get("system") ?? "");
  const any = (names) => [["", "all"], ...names.map((name) => [name, safeName(name)])];
  fillSelect("task", any(current.tasks), state.get("task") ?? "");
  fillSelect("language", any(current.languages), state.get("language") ?? "");
  fillSelect("errors", [["", "all outputs"], ["any", "with errors"], ["none", "without errors"], ...(current.columns.some((column) => column.finds_errors) ? [["unchecked", "not checked"]] : []), ...current.severities.filter(Boolean).map((name) => [name, safeName(name)])], state.get("errors") ?? "");
  fillSelect("aspect", any(current.aspects), state.get("aspect") ?? "");
  const scored = current.columns.filter((column) => column.kind === "metric");
  fillSelect("failed", [["", "all outputs"], ...scored.map((column) => [column.name, safeName(`${column.name} (${column.missing.toLocaleString("en")})`)])], state.get("failed") ?? "");
  byId("run-label").hidden = runs.length < 2;
  byId("versus-label").hidden = byId("versus").options.length < 2;
  byId("task-label").hidden = current.tasks.length < 2;
  byId("language-label").hidden = current.languages.length < 2;
  byId("aspect-label").hidden = current.aspects.length < 2;
  byId("differing-label").hidden = !versus;
  byId("where").value = state.get("in") ?? "output";
  byId("only-picked").checked = state.get("picked") === "1";
  byId("differing").checked = state.get("differing") === "1";
  if (document.activeElement !== byId("text")) byId("text").value = state.get("q") ?? "";
  const ranged = byId("range-column").value;
  const changes = versus ? current.columns.map((column) => [`${column.name} change`, safeName(`change of ${column.name}`)]) : [];
  fillSelect("range-column", [...current.columns.map((column) => [column.name, safeName(column.name)]), ...changes], ranged);
  drawRange();
  drawChips();
  byId("column-list").replaceChildren(...current.columns.map((column) => {
    const box = element("input", { type: "checkbox", onchange: chooseColumns, value: column.name });
    box.checked = columnsShown().includes(column);
    return element("label", {}, box, safeName(column.name));
  }));
  byId("notes").hidden = !current.notes.length;
  byId("note-list").replaceChildren(...current.notes.map((note) => element("li", {}, textNodes(note))));
  drawPicked(current.picked);
  byId("export").href = `/api/export?run=${number}`;
}

function drawRange() {
  const name = byId("range-column").value;
  for (const [id, prefix] of [["low", "min."], ["high", "max."]]) {
    if (document.activeElement !== byId(id)) byId(id).value = state.get(`${prefix}${name}`) ?? "";
  }
  const column = run().columns.find((one) => one.name === name);
  byId("low").placeholder = column ? format(column.low, column) : "";
  byId("high").placeholder = column ? format(column.high, column) : "";
}

function drawChips() {
  const chips = [...state.keys()].filter((name) => /^(min|max)\./.test(name)).map((name) => {
    const words = `${name.slice(4)} ${name.startsWith("min.") ? "≥" : "≤"} ${state.get(name)}`;
    return element("button", { type: "button", "aria-label": `Remove the filter ${safeName(words)}`, onclick: () => update({ [name]: "" }) }, `${safeName(words)} ×`);
  });
  byId("chips").replaceChildren(...chips);
}

function chooseColumns() {
  const chosen = [...byId("column-list").querySelectorAll("input:checked")].map((box) => box.value);
  update({ column: chosen }, { keepPage: true });
}

function drawPicked(count) {
  run().picked = count;
  byId("picked").textContent = count ? `${count.toLocaleString("en")} picked` : "";
  byId("export").hidden = byId("send").hidden = !count;
}

// ---- The list

async function loadList() {
  listRequest?.abort();
  listRequest = new AbortController();
  byId("list").setAttribute("aria-busy", "true");
  try {
    listed = await request(`/api/outputs?${listQuery()}`, { signal: listRequest.signal });
    byId("problem").hidden = true;
  } catch (error) {
    if (error.name === "AbortError") return;
    listed = { ...NOTHING };
    showProblem(error);
  }
  marked = -1;
  drawList();
  byId("list").removeAttribute("aria-busy");
}

function showProblem(error) {
  byId("problem").textContent = safeName(error.message);
  byId("problem").hidden = false;
}

function drawList() {
  const columns = columnsShown();
  const all = run().columns;
  const total = listed.total.toLocaleString("en");
  const count = listed.total === run().size ? `${total} outputs` : `${total} of ${run().size.toLocaleString("en")} outputs`;
  byId("status").textContent = safeName(`${count}${describeOrder()}`);
  byId("pick-all").textContent = `Pick all ${total}`;
  const kept = columns.find((column) => column === sortedColumn(listed.sort)) ?? columns[0];
  const field = contextField();
  byId("shared").hidden = field === "instruction" || !listed.outputs[0]?.instruction;
  byId("shared").replaceChildren("Instruction: ", element("span", { dir: "auto" }, textNodes(listed.outputs[0]?.instruction ?? "")));
  byId("outputs").tHead.replaceChildren(element("tr", {},
    element("th", {}, element("span", { class: "visually-hidden" }, "picked")),
    element("th", {}, "item and system"), element("th", {}, listed.outputs.some((output) => output[field]) ? `${field} and output` : "output"),
    columns.map((column) => headerCell(column, column === kept))));
  byId("outputs").tBodies[0].replaceChildren(...listed.outputs.map((output, index) => drawRow(output, index, columns, all, kept, field)));
  drawPager();
  drawOrder();
}

/** What is shown above each output: its instruction, or its source where all instructions are the same. */
function contextField() {
  const instructions = new Set(listed.outputs.map((output) => output.instruction));
  const items = new Set(listed.outputs.map((output) => output.item));
  return instructions.size > 1 || (items.size === 1 && !instructions.has(null)) ? "instruction" : "source";
}

function headerCell(column, kept) {
  const active = listed.sort === column.name;
  const { descending } = listed;
  const arrow = active ? (descending ? "\u00a0↓" : "\u00a0↑") : "";
  const onclick = () => update({ sort: column.name, descending: active ? !descending : highestFirst(column.name) });
  const hint = { true: "higher is better", false: "lower is better" }[column.higher] ?? "neither side is better";
  return element("th", { class: `number ${kept ? "" : "optional"}`, "aria-sort": active ? (descending ? "descending" : "ascending") : undefined },
    element("button", { type: "button", onclick, title: `${safeName(column.name)}: ${hint}` }, breakName(column.name), arrow));
}

function drawRow(output, index, columns, all, kept, field) {
  const box = element("input", { type: "checkbox", "aria-label": safeName(`pick item ${output.item} of ${output.system}`), onchange: () => pick(output, box.checked) });
  box.checked = output.picked;
  const query = new URLSearchParams(state);
  query.set("item", output.item);
  query.set("of", output.system);
  const link = element("a", { href: `?${query}`, class: "name", title: safeName(output.item.slice(0, 500)), onclick: (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    openRow(index);
  } }, safeName(shorten(output.item)));
  const errors = output.errors ? element("span", { class: `chip ${output.worst === 0 ? "bad" : ""}` }, `${output.errors} ${output.errors === 1 ? "error" : "errors"}`) : null;
  const unchecked = columnsThatFindErrors().filter((column) => output.failures[column.name])
    .map((column) => element("p", { class: "unchecked" }, textNodes(`not checked by ${column.name}: ${output.failures[column.name]}`)));
  const context = output[field] ? element("div", { class: "context-line", dir: "auto" }, textNodes(output[field])) : null;
  const preview = output.preview ? highlight(output.preview) : [element("span", { class: "soft" }, output.preview === null ? "no text" : "empty output")];
  const row = element("tr", {},
    element("td", { class: "pick" }, element("label", {}, box)),
    element("td", { class: "item" }, link, element("div", { class: "system name" }, safeName(output.system))),
    element("td", { class: "preview" }, context, element("div", { class: "clamp", dir: "auto" }, preview), errors, unchecked),
    columns.map((column) => {
      const place = all.indexOf(column);
      const change = output.changes ? changeNode(output.changes[place], column) : null;
      return element("td", { class: `number ${column === kept ? "" : "optional"}`, "data-label": safeName(column.name) },
        element("span", { class: output.numbers[place] === null ? "soft" : undefined, title: output.failures[column.name] ? safeName(output.failures[column.name]) : undefined }, format(output.numbers[place], column)), change);
    }));
  row.classList.toggle("open", output.item === state.get("item") && output.system === state.get("of"));
  row.classList.toggle("marked", index === marked);
  return row;
}

const columnsThatFindErrors = () => run().columns.filter((column) => column.finds_errors);

/** A long name without its middle; both ends stay, since names often differ there. */
function shorten(text, limit = 28) {
  const kept = Math.floor(limit / 2);
  return text.length > limit ? `${text.slice(0, kept)}…${text.slice(1 - kept)}` : text;
}

function changeNode(change, column) {
  if (change === null || change === undefined) return element("span", { class: "change" }, "n/a");
  const better = column.higher === null || change === 0 ? "" : (change > 0) === column.higher ? "better" : "worse";
  const sign = change > 0 ? "+" : "";
  return element("span", { class: `change ${better}` }, `${sign}${change.toFixed(column.decimals)}`, better ? element("span", { class: "visually-hidden" }, ` (${better})`) : null);
}

/** A preview with the words of the search marked. */
function highlight(text) {
  const words = (state.get("in") ?? "output") === "output" ? (state.get("q") ?? "") : "";
  const folded = text.toLowerCase();
  if (!words || folded.length !== text.length) return textNodes(text);
  const nodes = [];
  let end = 0;
  for (let place = folded.indexOf(words.toLowerCase()); place >= 0; place = folded.indexOf(words.toLowerCase(), end)) {
    nodes.push(...textNodes(text.slice(end, place)), element("mark", { class: "hit" }, textNodes(text.slice(place, place + words.length))));
    end = place + words.length;
  }
  return [...nodes, ...textNodes(text.slice(end))];
}

function drawPager() {
  const go = (page) => update({ page: page > 1 ? page : "" }, { keepPage: true });
  byId("pager").replaceChildren(
    element("button", { type: "button", disabled: listed.page <= 1, onclick: () => go(listed.page - 1) }, "Previous"),
    element("span", {}, `page ${listed.page.toLocaleString("en")} of ${listed.pages.toLocaleString("en")}`),
    element("button", { type: "button", disabled: listed.page >= listed.pages, onclick: () => go(listed.page + 1) }, "Next"));
}

// ---- Picks

async function pick(output, picked) {
  try {
    const answer = await request("/api/picks", { method: "POST", body: { run: runs.indexOf(run()), keys: [[output.item, output.system]], picked } });
    drawPicked(answer.picked);
    for (const one of listed.outputs) if (one.item === output.item && one.system === output.system) one.picked = picked;
    if (openOutput && openOutput.output.item === output.item && openOutput.output.system === output.system) {
      openOutput.output.picked = picked;
      byId("pick-this")?.setAttribute("aria-pressed", String(picked));
    }
  } catch (error) {
    showProblem(error);
  }
  drawList();
}

async function pickAll() {
  try {
    const answer = await request("/api/picks", { method: "POST", body: { run: runs.indexOf(run()), query: listQuery(), picked: true } });
    drawPicked(answer.picked);
    await loadList();
  } catch (error) {
    showProblem(error);
  }
}

async function sendToAnnotation() {
  try {
    const answer = await request("/api/annotation", { method: "POST", body: { run: runs.indexOf(run()) } });
    byId("status").textContent = safeName(`${answer.count} outputs are in ${answer.path}. Annotate them: ${answer.command}`);
  } catch (error) {
    showProblem(error);
  }
}

// ---- One output

function openRow(index) {
  const output = listed.outputs[index];
  if (!output) return;
  marked = index;
  update({ item: output.item, of: output.system }, { keepPage: true });
  drawList();
}

function closeOutput() {
  update({ item: "", of: "" }, { keepPage: true });
  drawList();
  const row = byId("outputs").tBodies[0].rows[marked];
  (row?.querySelector("a") ?? byId("list")).focus({ preventScroll: true });
  row?.scrollIntoView({ block: "nearest" });
}

async function loadDetail() {
  detailRequest?.abort();
  const [item, of] = [state.get("item"), state.get("of")];
  if (item === null || of === null) {
    openOutput = null;
    byId("detail").hidden = true;
    byId("layout").classList.remove("split");
    return;
  }
  detailRequest = new AbortController();
  const query = new URLSearchParams(listQuery());
  query.set("item", item);
  query.set("of", of);
  try {
    openOutput = await request(`/api/output?${query}`, { signal: detailRequest.signal });
  } catch (error) {
    if (error.name === "AbortError") return;
    openOutput = null;
    byId("detail").replaceChildren(element("p", { class: "message bad", role: "alert" }, safeName(error.message)), element("button", { type: "button", onclick: closeOutput }, "Close"));
    showDetail();
    return;
  }
  drawDetail();
  showDetail();
  byId("detail").scrollTop = 0;
}

function showDetail() {
  const wasHidden = byId("detail").hidden;
  byId("detail").hidden = false;
  byId("layout").classList.add("split");
  if (wasHidden) byId("detail").focus({ preventScroll: true });
  if (isNarrow()) scrollTo(0, 0);
}

function step(direction) {
  if (openOutput) {
    const next = direction > 0 ? openOutput.after : openOutput.before;
    if (next) {
      marked = listed.outputs.findIndex((one) => one.item === next.item && one.system === next.system);
      update({ item: next.item, of: next.system }, { keepPage: true, replace: true });
      drawList();
    }
    return;
  }
  marked = Math.max(0, Math.min(listed.outputs.length - 1, marked + direction));
  drawList();
  byId("outputs").tBodies[0].rows[marked]?.scrollIntoView({ block: "nearest" });
}

function drawDetail() {
  const { output, other, siblings, position, before, after } = openOutput;
  const name = other && (other.run === run().name ? other.system : `${other.system} in ${other.run}`);
  const parts = [
    detailTools(output, position, before, after),
    element("h2", {}, "item ", element("span", { class: "name" }, safeName(shorten(output.item, 80))), " · ", element("span", { class: "name" }, safeName(output.system))),
    output.instruction ? element("div", { class: "asked" }, part("Instruction", markedBox(output.instruction))) : null,
    ...drawOutput(output, other, { name, differences: showDifferences }),
    ...drawChecks(output),
    part("Scores", scoreTable(output, other)),
    ...drawReasons(withoutChecks(output)),
  ].filter(Boolean);
  const heat = heatSection(output.tokens);
  if (heat.length) parts.push(part("Words by how unlikely they are", ...heat));
  parts.push(...drawContext({ ...output, instruction: null }));
  if (siblings.length) parts.push(siblingSection(output, siblings));
  if (output.extra) {
    parts.push(element("details", {}, element("summary", {}, "Further columns"), element("div", { class: "scroll" }, element("table", {}, element("tbody", {},
      Object.entries(output.extra).map(([name, value]) => element("tr", {}, element("td", {}, safeName(name)), element("td", {}, markedBox(typeof value === "string" ? value : JSON.stringify(value))))))))));
  }
  byId("detail").replaceChildren(...parts);
}

/** Metrics that list errors and list none here: whether they found none or did not look. */
function listChecks(output) {
  // An error that several found has the names of all of them.
  const found = (name) => output.errors.some((error) => `, ${error.by}, `.includes(`, ${name}, `));
  return columnsThatFindErrors().filter((column) => !found(column.name)).map((column) => {
    const { failure, explanation } = output.said.find((one) => one.by === column.name) ?? {};
    return { name: column.name, words: failure ? `${column.name}: not checked: ${failure}` : `${column.name}: no errors${explanation ? `; ${explanation}` : ""}` };
  });
}

function drawChecks(output) {
  if (output.output === null) return [];
  const lines = listChecks(output).map(({ words }) => element("li", {}, textNodes(words)));
  return lines.length ? [element("ul", { class: "checks" }, lines)] : [];
}

/** The output without what `drawChecks` shows of what metrics say. */
function withoutChecks(output) {
  const shown = new Set(output.output === null ? [] : listChecks(output).map(({ name }) => name));
  return { ...output, said: output.said.map((one) => (shown.has(one.by) ? { by: one.by, raw: one.raw } : one)) };
}

function detailTools(output, position, before, after) {
  const place = position ? `${position.toLocaleString("en")} of ${listed.total.toLocaleString("en")}` : "not among those listed";
  const toggle = element("button", { type: "button", "aria-pressed": String(showDifferences), onclick: toggleDifferences }, "Differences");
  return element("div", { class: "row tools" },
    element("div", { class: "row" },
      element("button", { type: "button", disabled: !before, onclick: () => step(-1), "aria-label": "Previous output" }, "‹"),
      element("span", { class: "soft" }, place),
      element("button", { type: "button", disabled: !after, onclick: () => step(1), "aria-label": "Next output" }, "›"),
      element("button", { type: "button", class: "close", onclick: closeOutput }, "Close")),
    element("div", { class: "row" },
      element("button", { type: "button", id: "pick-this", "aria-pressed": String(output.picked), onclick: () => pick(output, !output.picked) }, "Pick"),
      toggle,
      element("a", { class: "button", href: `/play?${new URLSearchParams({ run: String(runs.indexOf(run())), item: output.item, of: output.system })}` }, "Playground"),
      element("button", { type: "button", onclick: (event) => copyLink(event.currentTarget) }, "Copy link")));
}

function toggleDifferences() {
  showDifferences = !showDifferences;
  if (openOutput) drawDetail();
}

async function copyLink(button) {
  try {
    await navigator.clipboard.writeText(location.href);
    button.textContent = "Copied";
  } catch {
    button.textContent = "See the address bar";
  }
}

function scoreTable(output, other) {
  const columns = run().columns;
  const rows = columns.map((column, index) => {
    const value = output.numbers[index];
    const place = other ? other.columns.indexOf(column.name) : -1;
    const theirs = place >= 0 ? other.numbers[place] : null;
    const ratings = column.kind === "rating" ? output.ratings[column.name.slice("people: ".length)] : 0;
    return element("tr", {},
      element("td", { title: column.signature ? safeName(column.signature) : undefined }, safeName(column.name), ratings > 1 ? element("span", { class: "soft" }, ` (${ratings} ratings)`) : null),
      element("td", { class: "number" }, format(value, column)),
      other ? [element("td", { class: "number" }, format(theirs, column)),
        element("td", { class: "number" }, value === null || theirs === null ? "" : changeNode(value - theirs, column))] : []);
  });
  const head = other ? element("thead", {}, element("tr", {}, element("th", {}, ""), element("th", { class: "number" }, "this"), element("th", { class: "number" }, "other"), element("th", { class: "number" }, "change"))) : null;
  return element("div", { class: "scroll" }, element("table", { class: "scores" }, head, element("tbody", {}, rows)));
}

function siblingSection(output, siblings) {
  const columns = run().columns;
  const draw = (sibling) => {
    const ranges = showDifferences && output.output !== null && sibling.output !== null ? diffWords(output.output, sibling.output) : null;
    const numbers = columns.slice(0, DEFAULT_COLUMNS).map((column, index) => `${safeName(column.name)} ${format(sibling.numbers[index], column)}`).join(" · ");
    const query = new URLSearchParams(state);
    query.set("of", sibling.system);
    const link = element("a", { href: `?${query}`, onclick: (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      update({ of: sibling.system }, { keepPage: true });
      drawList();
    } }, safeName(sibling.system));
    return element("article", { class: "sibling" }, element("h3", {}, link), element("p", { class: "numbers" }, numbers),
      sibling.output === null ? element("p", { class: "soft" }, "no text") : markedBox(sibling.output, ranges ? ranges[1] : []));
  };
  const box = element("div", { class: "pair" }, siblings.slice(0, SIBLINGS_SHOWN).map(draw));
  const rest = siblings.slice(SIBLINGS_SHOWN);
  const more = rest.length ? element("button", { type: "button", onclick: () => { box.append(...rest.map(draw)); more.remove(); } }, `Show ${rest.length} more systems`) : null;
  return part("Other systems, with the words that this output does not have", box, more);
}

// ---- Events

function onChange(id, name, read = (field) => field.value) {
  byId(id).addEventListener("change", (event) => update({ [name]: read(event.target) }));
}

function watchFields() {
  byId("sort").addEventListener("change", (event) => update({ sort: event.target.value, descending: highestFirst(event.target.value) }));
  byId("descending").addEventListener("change", (event) => update({ sort: listed.sort, descending: event.target.value }));
  for (const name of ["system", "task", "language", "errors", "aspect", "failed"]) onChange(name, name);
  onChange("only-picked", "picked", (field) => field.checked);
  onChange("differing", "differing", (field) => field.checked);
  byId("where").addEventListener("change", (event) => update({ in: event.target.value === "output" ? "" : event.target.value }));
  byId("run").addEventListener("change", (event) => {
    const names = [...new Set(state.keys())];
    update({ ...Object.fromEntries(names.map((name) => [name, ""])), run: event.target.value === "0" ? "" : event.target.value });
  });
  byId("versus").addEventListener("change", (event) => {
    const sorted = /change$/.test(state.get("sort") ?? "") && !event.target.value;
    update({ vs: event.target.value, differing: "", ...(sorted ? { sort: "" } : {}) });
  });
  byId("range-column").addEventListener("change", drawRange);
  for (const [id, prefix] of [["low", "min."], ["high", "max."]]) {
    byId(id).addEventListener("change", (event) => update({ [`${prefix}${byId("range-column").value}`]: event.target.value }));
  }
  let timer = null;
  byId("text").addEventListener("input", (event) => {
    clearTimeout(timer);
    timer = setTimeout(() => update({ q: event.target.value }, { replace: true }), 150);
  });
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("reset").addEventListener("click", () => {
    const kept = { run: state.get("run"), vs: state.get("vs") };
    const names = [...new Set(state.keys())].filter((name) => !["column"].includes(name));
    byId("text").value = "";
    update({ ...Object.fromEntries(names.map((name) => [name, ""])), ...kept });
  });
  byId("pick-all").addEventListener("click", pickAll);
  byId("send").addEventListener("click", sendToAnnotation);
  document.addEventListener("keydown", handleKey);
  addEventListener("popstate", handleReturn);
  byId("help-button").addEventListener("click", () => byId("help").showModal());
}

function handleKey(event) {
  if (event.key === "Escape" && document.activeElement === byId("text")) byId("text").blur();
  if (!isShortcut(event)) return;
  const keys = {
    j: () => step(1), k: () => step(-1),
    Enter: () => { if (!openOutput && document.activeElement?.tagName !== "BUTTON" && document.activeElement?.tagName !== "A" && document.activeElement?.tagName !== "SUMMARY") openRow(marked); else return true; return false; },
    Escape: () => openOutput !== null || !byId("detail").hidden ? closeOutput() : null,
    x: () => { const output = openOutput?.output ?? listed.outputs[marked]; if (output) pick(output, !output.picked); },
    n: () => { if (listed.page < listed.pages) update({ page: listed.page + 1 }, { keepPage: true }); },
    p: () => { if (listed.page > 1) update({ page: listed.page > 2 ? listed.page - 1 : "" }, { keepPage: true }); },
    d: toggleDifferences,
    "/": () => byId("text").focus(),
    "?": () => byId("help").showModal(),
  };
  const action = keys[event.key];
  if (action && action() !== true) event.preventDefault();
}

async function start() {
  if (isNarrow()) byId("more").open = false;
  try {
    const [answer] = await Promise.all([request("/api/runs"), loadFirst()]);
    runs = answer.runs;
  } catch (error) {
    showProblem(error);
    return;
  }
  watchFields();
  drawFilters();
  drawList();
  byId("list").removeAttribute("aria-busy");
  await loadDetail();
}

/** The first list is requested together with what the page must know about the runs. */
async function loadFirst() {
  try {
    listed = await request(`/api/outputs?${listQuery()}`);
  } catch (error) {
    listed = { ...NOTHING };
    showProblem(error);
  }
}

start();
