// The owner's page: links, progress, agreement, attention items and exports, refreshed every few seconds.
import { element, safeName } from "/static/elements.js";
import { request } from "/static/page.js";
import { markedBox, part } from "/static/output_card.js";

const REFRESH = 5000;
const numeric = ["Attention passed", "Mean", "95 % interval", "Rated", "α", "Tasks with two answers"];
const bar = document.getElementById("bar");
const main = document.getElementById("main");
const state = element("span", { class: "soft small end", role: "status" });
bar.append(state);

function cell(text, attributes = {}) {
  return element("td", attributes, text);
}

function ago(time) {
  if (!time) return "";
  const seconds = Math.max(0, Date.now() / 1000 - time);
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  return new Date(time * 1000).toLocaleString();
}

/** `attention` says whether the project has attention items. */
function raterRow(rater, attention) {
  const link = `${location.origin}/?token=${encodeURIComponent(rater.token)}`;
  const copy = element("button", { type: "button", onclick: async () => {
    try {
      await navigator.clipboard.writeText(link);
      copy.textContent = "Copied";
    } catch {
      document.getSelection().selectAllChildren(text);
    }
  } }, "Copy");
  const text = element("code", { class: "name link" }, link);
  return element("tr", {},
    element("th", { scope: "row" }, safeName(rater.name)),
    cell([element("progress", { value: rater.done, max: Math.max(1, rater.total), "aria-label": `Tasks of ${safeName(rater.name)}` }), ` ${rater.done} of ${rater.total}`]),
    attention ? cell(rater.attention ? `${rater.attention[0]} of ${rater.attention[1]}` : "–", { class: "number" }) : null,
    cell(ago(rater.last), { class: "soft" }),
    cell(element("div", { class: "row" }, text, copy)));
}

function agreementRow(row, remarks) {
  return element("tr", {},
    element("th", { scope: "row" }, safeName(row.name)),
    cell(row.alpha === null ? "–" : row.alpha.toFixed(3), { class: "number" }),
    cell(row.scale),
    cell(String(row.tasks), { class: "number" }),
    remarks ? cell(row.failure ?? "", { class: "soft" }) : null);
}

function meanRow(mean) {
  const interval = mean.low === null ? "–" : `${mean.low.toFixed(3)} to ${mean.high.toFixed(3)}`;
  return element("tr", {},
    element("th", { scope: "row" }, safeName(mean.question)),
    cell(safeName(mean.system)),
    cell(mean.value.toFixed(3), { class: "number" }),
    cell(interval, { class: "number" }),
    cell(`${mean.rated} of ${mean.outputs}`, { class: "number" }));
}

function describeErrors(errors) {
  return errors.length ? element("ul", { class: "plain" }, errors.map((error) => element("li", {},
    element("q", { class: "name", dir: "auto" }, safeName(error.text.slice(0, 200))),
    element("span", { class: "soft" }, ` ${safeName(error.aspect)}, ${error.severity}`)))) : "none";
}

const opened = new Set(); // The disputed tasks whose texts are shown.

/** The tasks that raters answer differently: the outputs, and a row per question with a column per rater. */
function drawDisputes({ count, shown }) {
  if (!count) return [element("p", { class: "soft" }, "None: no task that two raters have completed has different answers.")];
  const heading = `${count === 1 ? "One task" : `${count} tasks`} with different answers, the most disputed first${count > shown.length ? `; the first ${shown.length} of them` : ""}. `
    + "Disagreement is the mean distance of two raters’ answers, from 0 to 1.";
  return [element("p", { class: "soft small" }, heading), ...shown.map((own) => {
    const raters = Object.keys(own.answers);
    const remarks = raters.filter((rater) => own.answers[rater].note);
    const value = (answer, name) => name === "errors" && answer.errors ? describeErrors(answer.errors) : safeName(String(answer.values[name]));
    const remember = (event) => (event.target.open ? opened.add(own.task) : opened.delete(own.task));
    return element("details", { class: "dispute", open: opened.has(own.task), ontoggle: remember },
      element("summary", {}, element("strong", {}, own.disagreement.toFixed(2)), ` ${safeName(own.item)} `,
        element("span", { class: "soft" }, own.outputs.map(({ system }) => safeName(system)).join(" or ")),
        element("span", { class: "name soft said" }, safeName(own.said))),
      element("div", { class: own.outputs.length > 1 ? "pair" : undefined }, own.outputs.map(({ system, text }) => part(safeName(system), markedBox(text)))),
      table("Answers", ["", ...raters.map(safeName)], own.disputed.map((name) => element("tr", {},
        element("th", { scope: "row" }, safeName(name)),
        raters.map((rater) => cell(value(own.answers[rater], name)))))),
      remarks.map((rater) => element("p", { class: "name" }, element("strong", {}, safeName(rater)), ": ", safeName(own.answers[rater].note))));
  })];
}

function table(caption, heads, rows) {
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, element("table", {},
    element("caption", { class: "visually-hidden" }, caption),
    element("thead", {}, element("tr", {}, heads.map((head) => element("th", { scope: "col", class: numeric.includes(head) ? "number" : undefined }, head)))),
    element("tbody", {}, rows)));
}

// Made once: drawing the rest again must not take away what somebody types.
const head = element("div", { class: "overview" });
const tail = element("div", { class: "overview" });
const name = element("input", { type: "text", id: "new-rater", maxlength: 100, required: true, autocomplete: "off" });
const refusal = element("p", { class: "message bad", role: "alert", hidden: true });
const form = element("form", { class: "overview", onsubmit: addRater },
  element("div", { class: "row add" },
    element("label", { class: "above", for: "new-rater" }, "Add a rater", name),
    element("button", {}, "Add")),
  refusal);

async function addRater(event) {
  event.preventDefault();
  try {
    await request("/api/raters", { method: "POST", body: { name: name.value.trim() } });
    name.value = "";
    refusal.hidden = true;
  } catch (error) {
    refusal.textContent = error.message;
    refusal.hidden = false;
  }
  await refresh();
}

function draw(overview) {
  const picks = { random: "at random", items: "by whole items at random", system: "equally by system", disagreement: "where metrics disagree" };
  const done = overview.raters.reduce((sum, rater) => sum + rater.done, 0);
  const total = overview.raters.reduce((sum, rater) => sum + rater.total, 0);
  head.replaceChildren(
    element("p", {}, `${safeName(overview.about)} `, element("span", { class: "soft" },
      `${overview.tasks} tasks${overview.pick ? `, picked ${picks[overview.pick] ?? safeName(overview.pick)}` : ""}${overview.informative ? ", those whose rating tells most first" : ""}${overview.attention ? `, and ${overview.attention} attention items` : ""}; ${done} of ${total} answers done. Everything is in `,
      element("code", { class: "name" }, safeName(overview.folder)), ".")),
    element("h2", {}, "Raters"),
    table("Raters", ["Rater", "Done", ...(overview.attention ? ["Attention passed"] : []), "Last click", "Personal link"],
      overview.raters.map((rater) => raterRow(rater, overview.attention))));
  const remarks = overview.agreement.some((row) => row.failure);
  const means = !overview.means.length ? [] : [
    element("h2", {}, overview.means_title),
    element("p", { class: "soft small" }, overview.means_note),
    table(overview.means_title, ["Question", "System", "Mean", "95 % interval", "Rated"], overview.means.map(meanRow)),
  ];
  tail.replaceChildren(
    ...means,
    element("h2", {}, "Agreement (Krippendorff’s α)"),
    element("p", { class: "soft small" }, overview.alpha),
    table("Agreement", ["Question", "α", "Scale", "Tasks with two answers", ...(remarks ? ["Remark"] : [])],
      overview.agreement.map((row) => agreementRow(row, remarks))),
    element("h2", {}, "Disputed tasks"),
    ...drawDisputes(overview.disputes),
    element("h2", {}, "Export"),
    element("p", { class: "row" },
      element("a", { class: "button primary", href: "/export/answers.jsonl", download: "" }, "Answers (.jsonl)"),
      overview.disputes.count ? element("a", { class: "button", href: "/export/disputes.jsonl", download: "" }, "Disputed tasks (.jsonl)") : null,
      !overview.label_studio ? null : element("a", { class: "button", href: "/export/label-studio.json", download: "" }, "Label Studio (.json)"),
      !overview.label_studio ? null : element("a", { class: "button", href: "/export/label-studio.xml", download: "" }, "Its labeling configuration (.xml)")));
  if (!form.isConnected) main.replaceChildren(head, form, tail);
}

let shown = "";
async function refresh() {
  try {
    const overview = await request("/api/overview");
    const text = JSON.stringify(overview);
    // Drawing again would take away the focus and the selection.
    if (text !== shown) {
      shown = text;
      draw(overview);
    }
    state.textContent = "";
  } catch (error) {
    state.textContent = error.message;
  }
}

refresh();
setInterval(() => { if (!document.hidden) refresh(); }, REFRESH);
