// The owner's page: links, progress, agreement, attention items and exports, refreshed every few seconds.
import { element, safeName } from "/static/elements.js";
import { request } from "/static/page.js";

const REFRESH = 5000;
const numeric = ["Attention passed", "α", "Tasks with two answers"];
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

function raterRow(rater) {
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
    cell(rater.attention ? `${rater.attention[0]} of ${rater.attention[1]}` : "–", { class: "number" }),
    cell(ago(rater.last), { class: "soft" }),
    cell(element("div", { class: "row" }, text, copy)));
}

function agreementRow(row) {
  return element("tr", {},
    element("th", { scope: "row" }, safeName(row.name)),
    cell(row.alpha === null ? "–" : row.alpha.toFixed(3), { class: "number" }),
    cell(row.scale),
    cell(String(row.tasks), { class: "number" }),
    cell(row.failure ?? "", { class: "soft" }));
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
      `${overview.tasks} tasks${overview.pick ? `, picked ${picks[overview.pick] ?? safeName(overview.pick)}` : ""}${overview.attention ? `, and ${overview.attention} attention items` : ""}; ${done} of ${total} answers done. Everything is in `,
      element("code", { class: "name" }, safeName(overview.folder)), ".")),
    element("h2", {}, "Raters"),
    table("Raters", ["Rater", "Done", "Attention passed", "Last click", "Personal link"], overview.raters.map(raterRow)));
  tail.replaceChildren(
    element("h2", {}, "Agreement (Krippendorff’s α)"),
    table("Agreement", ["Question", "α", "Scale", "Tasks with two answers", "Remark"], overview.agreement.map(agreementRow)),
    element("h2", {}, "Export"),
    element("p", { class: "row" },
      element("a", { class: "button primary", href: "/export/answers.jsonl", download: "" }, "Answers (.jsonl)"),
      overview.kind === "questionnaire" ? null : element("a", { class: "button", href: "/export/label-studio.json", download: "" }, "Label Studio (.json)"),
      overview.kind === "questionnaire" ? null : element("a", { class: "button", href: "/export/label-studio.xml", download: "" }, "Its labeling configuration (.xml)")));
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
