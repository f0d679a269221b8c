// The playground: each chosen metric is asked again when a text changes. Metrics that cost money wait for the button.

import { element, safeName, textNodes } from "/static/elements.js";
import { drawReasons, errorList, errorRanges, heatSection, markedBox, part } from "/static/output_card.js";
import { request } from "/static/page.js";

const byId = (id) => document.getElementById(id);
const FIELDS = ["output", "source", "references", "instruction", "task"];
const PAUSE = 350;
const EXAMPLE = {
  source: "The museum opened in 1924 and was closed for two years after the fire of 1967. Entry is free on Sundays.",
  output: "The museum opened in 1942 and is free on Sundays. It has never been closed.",
  references: "Opened in 1924, the museum closed for two years after a fire in 1967; entry is free on Sundays.",
  instruction: "Summarize the text.",
  task: "summarization",
};

/** Whether the scores are below the texts. */
const isNarrow = () => matchMedia("(max-width: 800px)").matches;

let metrics = [];
let limit = 50000;
let answers = new Map();
/** The metrics that do not fit the texts, with the reasons, and the texts that this is about. */
let misfits = {};
let judged = null;
/** Each metric's label with its box, by the name of the metric. */
const choices = new Map();
/** Whether the metrics that fit are ticked as the texts change: until the user ticks some, or the address names them. */
let followsTexts = true;
let pending = null;
let timer = null;

function readTexts() {
  return {
    output: byId("output").value,
    source: byId("source").value,
    instruction: byId("instruction").value,
    task: byId("task").value,
    references: byId("references").value.split("\n").map((line) => line.trim()).filter(Boolean),
  };
}

const boxOf = (metric) => choices.get(metric.label).querySelector("input");
const chosenMetrics = () => metrics.filter((metric) => boxOf(metric).checked);

/** Ask which metrics fit the texts, if these have changed. */
async function findMisfits(texts, signal) {
  if (judged === JSON.stringify(texts)) return;
  ({ misfits } = await request("/api/misfits", { method: "POST", body: texts, signal }));
  judged = JSON.stringify(texts);
  drawMetrics();
}

/** The metrics that fit first, then the others below their reasons. */
function drawMetrics() {
  if (followsTexts) for (const metric of metrics) boxOf(metric).checked = !misfits[metric.label];
  const reasons = new Set(metrics.map((metric) => misfits[metric.label] ?? "").sort());
  byId("metrics").replaceChildren(...[...reasons].map((reason) => element("div", { role: "group", "aria-label": safeName(reason || "fit the texts") },
    reason ? element("p", { class: "reason" }, textNodes(reason)) : null,
    element("div", { class: "choices" }, metrics.filter((metric) => (misfits[metric.label] ?? "") === reason).map((metric) => choices.get(metric.label))))));
  drawChoice();
}

function drawChoice() {
  byId("chosen").textContent = `: ${chosenMetrics().length} of ${metrics.length}`;
  byId("tick-fitting").hidden = followsTexts;
}

function drawSize(texts) {
  const size = Object.values(texts).flat().reduce((sum, text) => sum + text.length, 0);
  byId("size").textContent = `${size.toLocaleString("en")} of ${limit.toLocaleString("en")} characters`;
  byId("size").classList.toggle("message", size > limit);
  return size <= limit;
}

async function scoreAll({ paid }) {
  pending?.abort();
  pending = new AbortController();
  const { signal } = pending;
  const texts = readTexts();
  const fits = drawSize(texts);
  if (fits) {
    try {
      await findMisfits(texts, signal);
    } catch (error) {
      if (error.name === "AbortError") return;
      showProblem(error);
    }
  }
  const chosen = chosenMetrics();
  for (const [label, answer] of answers) {
    const metric = chosen.find((one) => one.label === label);
    if (!metric || !texts.output || !(metric.paid && !paid)) answers.delete(label);
    else answer.stale = true;
  }
  drawAnswers();
  if (!texts.output || !fits) return;
  byId("results").setAttribute("aria-busy", "true");
  const able = chosen.filter((metric) => !metric.needs.some((need) => !texts[need].length) && (paid || !metric.paid));
  // The quick ones first; those with models wait for each other on the server.
  await Promise.all([false, true].map(async (model) => {
    for (const metric of able.filter((one) => one.model === model)) {
      if (signal.aborted) return;
      try {
        answers.set(metric.label, await request("/api/score", { method: "POST", body: { ...texts, metric: metric.label }, signal }));
        byId("problem").hidden = true;
      } catch (error) {
        if (error.name === "AbortError") return;
        showProblem(error);
      }
      if (!signal.aborted) drawAnswers();
    }
  }));
  if (!signal.aborted) byId("results").setAttribute("aria-busy", "false");
}

function showProblem(error) {
  byId("problem").textContent = safeName(error.message);
  byId("problem").hidden = false;
}

function drawAnswers() {
  const texts = readTexts();
  const chosen = chosenMetrics();
  byId("scores").hidden = !chosen.length || !texts.output;
  byId("scores").tBodies[0].replaceChildren(...chosen.map(drawScore));
  const parts = [];
  const given = chosen.map((metric) => ({ by: metric.label, ...answers.get(metric.label) }));
  const errors = given.flatMap((answer) => answer.errors ?? []).map((error, index) => ({ ...error, number: index + 1 }));
  if (errors.length) {
    parts.push(part("Errors", markedBox(texts.output, errorRanges(errors, "output")), errorList(errors)));
    const inSource = errorRanges(errors, "source");
    if (inSource.length) parts.push(part("In the source", markedBox(texts.source, inSource)));
  }
  // A failure stands in the table of scores.
  parts.push(...drawReasons({ said: given.map(({ by, explanation }) => ({ by, explanation })) }));
  const tokens = Object.fromEntries(chosen.filter((metric) => answers.get(metric.label)?.readings?.length).map((metric) => [metric.label, answers.get(metric.label).readings]));
  const heat = heatSection(tokens);
  if (heat.length) parts.push(part("Words by how unlikely they are", ...heat));
  byId("findings").replaceChildren(...parts);
}

function drawScore(metric) {
  const answer = answers.get(metric.label);
  const wait = misfits[metric.label] ?? (metric.paid ? "press Score" : "…");
  const value = !answer ? element("td", { class: "wait", colspan: 1 }, wait)
    : answer.failure ? element("td", {}, safeName(answer.failure))
      : element("td", { class: "number", title: `${answer.seconds} s` }, `${answer.value.toFixed(answer.decimals)}${answer.stale ? " (of the earlier text)" : ""}`);
  const bound = (number, otherwise) => (number === null ? otherwise : String(number));
  const better = { true: "higher", false: "lower" }[metric.higher] ?? "neither";
  const parts = answer && !answer.failure && Object.keys(answer.parts ?? {}).length
    ? element("div", { class: "soft parts" }, Object.entries(answer.parts).slice(0, 12).map(([name, number]) => `${safeName(name)} ${Number(number.toPrecision(3))}`).join(" · ")) : null;
  return element("tr", {}, element("td", {}, safeName(metric.label), parts), value,
    element("td", { class: "soft range" }, `${bound(metric.low, "−∞")} to ${bound(metric.high, "∞")}`), element("td", { class: "soft" }, better));
}

function later() {
  clearTimeout(timer);
  timer = setTimeout(() => scoreAll({ paid: false }), PAUSE);
}

function keepChoice() {
  followsTexts = false;
  drawChoice();
  const query = new URLSearchParams(chosenMetrics().map((metric) => ["metric", metric.label]));
  history.replaceState(null, "", `${location.pathname}?${query}`);
  scoreAll({ paid: false });
}

/** An output of the viewer, if the address names one. */
async function loadOutput(query) {
  if (!query.has("item")) return;
  const { output } = await request(`/api/output?${new URLSearchParams({ run: query.get("run") ?? "0", item: query.get("item"), of: query.get("of") ?? "" })}`);
  byId("output").value = output.output ?? "";
  byId("source").value = output.source ?? "";
  byId("instruction").value = output.instruction ?? "";
  byId("task").value = output.task ?? "";
  byId("references").value = output.references.map((text) => text.replace(/\s*\n\s*/g, " ")).join("\n");
}

async function start() {
  const query = new URLSearchParams(location.search);
  try {
    const answer = await request("/api/metrics");
    metrics = answer.metrics;
    limit = answer.characters;
    await loadOutput(query);
  } catch (error) {
    showProblem(error);
  }
  const named = query.getAll("metric");
  followsTexts = !named.length;
  for (const metric of metrics) {
    const box = element("input", { type: "checkbox", value: metric.label, onchange: keepChoice });
    box.checked = named.includes(metric.label);
    const title = metric.paid ? "asks an LLM" : metric.model ? "runs a model" : undefined;
    choices.set(metric.label, element("label", { title }, box, safeName(metric.label)));
  }
  if (isNarrow()) byId("choice").open = false;
  byId("tick-fitting").addEventListener("click", () => {
    followsTexts = true;
    history.replaceState(null, "", location.pathname);
    drawMetrics();
    scoreAll({ paid: false });
  });
  for (const id of FIELDS) byId(id).addEventListener("input", later);
  byId("texts").addEventListener("submit", (event) => {
    event.preventDefault();
    scoreAll({ paid: true });
    if (isNarrow()) byId("results").scrollIntoView();
  });
  const fill = (texts) => { for (const id of FIELDS) byId(id).value = texts[id] ?? ""; scoreAll({ paid: false }); };
  byId("example").addEventListener("click", () => fill(EXAMPLE));
  byId("clear").addEventListener("click", () => fill({}));
  scoreAll({ paid: false });
}

start();
