// The page of a rater: one task at a time. Every click is kept here until the server has acknowledged it.
import { element, safeName, textNodes } from "/static/elements.js";
import { isShortcut, request } from "/static/page.js";
import { ClickQueue } from "/static/clicks.js";
import { judgeTask, reviewTask, textPart } from "/static/questions.js";

const bar = document.getElementById("bar");
const main = document.getElementById("main");
const heading = bar.querySelector("h1");

let project; // What /api/project says.
let queue;
let position = 0;
let task = null; // What /api/tasks/… says, with the answer as this page shows it.
let view = null; // { update(answer), keys(event) } of the shown task.
let complete = new Set();
let canUndo = false;
let ordering = Promise.resolve(); // Until a new order of the tasks is here.

// ---- The bar

const progressText = element("span", {});
const progressBar = element("progress", { value: 0, max: 1, "aria-label": "Tasks done" });
const saved = element("span", { class: "saved", role: "status" });
const undoButton = element("button", { type: "button", disabled: true, onclick: undo, title: "Take back the last click (Z)" }, "Undo");
const guideButton = element("button", { type: "button", class: "plain", onclick: () => guide.showModal(), title: "Guidelines (G)" }, "Guidelines");
const helpButton = element("button", { type: "button", class: "plain keyboard", onclick: () => help.showModal(), title: "Keys (?)" }, "Keys");
bar.append(
  element("span", { class: "end row" }, progressText, progressBar, saved, undoButton, guideButton, helpButton),
);

const keyLine = ([key, text]) => [element("dt", {}, element("kbd", {}, key)), element("dd", {}, text)];
const help = element("dialog", { "aria-labelledby": "help-title" },
  element("h2", { id: "help-title" }, "Keys"),
  element("dl", { class: "keys" }, ...[
    ["Enter or →", "next task"],
    ["←", "previous task"],
    ["U", "first task that is not done"],
    ["Z", "undo"],
    ["S", "cannot judge this"],
    ["N", "write a remark"],
    ["G", "guidelines"],
  ].map(keyLine)),
  element("form", { method: "dialog" }, element("button", { class: "primary" }, "Close")),
);
const guide = element("dialog", { "aria-labelledby": "guide-title" });
document.body.append(help, guide);

/** An element of the owner's guidelines, or a text in one. */
function drawGuideline(node) {
  if (typeof node === "string") return textNodes(node);
  const link = node.href ? { href: node.href, target: "_blank", rel: "noopener noreferrer" } : {};
  return element(node.tag, link, node.children.map(drawGuideline));
}

/** What raters should know: what the owner wrote, then the questions with the meanings of their answers. */
function fillGuide() {
  const { schema, guidelines } = project;
  const defined = (entries) => element("dl", {}, entries.map(([name, meaning]) => [element("dt", {}, name), element("dd", {}, meaning)]));
  const asked = [...schema.questions, ...(schema.each_error ? [schema.each_error] : [])];
  guide.replaceChildren(element("div", {},
    element("h2", { id: "guide-title", tabindex: -1, autofocus: true }, "Guidelines"),
    guidelines.length ? element("div", { class: "own" }, guidelines.map(drawGuideline)) : null,
    asked.map((question) => [
      element("h3", {}, question.text),
      question.choices.some((choice) => choice.meaning) ? defined(question.choices.map((choice) => [choice.label, choice.meaning])) : null,
    ]),
    schema.aspects ? [
      element("h3", {}, "Errors to mark"),
      element("p", { class: "soft" }, `Each error is ${schema.severities.join(", ").replace(/, ([^,]*)$/, " or $1")}.`),
      defined(Object.entries(schema.aspects).map(([name, meaning]) => [safeName(name), meaning])),
    ] : null,
    element("form", { method: "dialog" }, element("button", { class: "primary" }, "Close"))));
}

function showProgress() {
  const total = project.tasks.length;
  progressText.textContent = `${complete.size} of ${total} done`;
  progressBar.max = Math.max(1, total);
  progressBar.value = complete.size;
  undoButton.disabled = !canUndo && queue.pending === 0;
}

function showSaved(state, detail) {
  saved.className = `saved ${state}`;
  saved.textContent = { saved: "Saved", saving: "Saving …", waiting: detail ?? "Not saved yet; trying again …", refused: detail }[state];
}

// ---- Clicks

function send(kind, content) {
  apply(task.answer, kind, content);
  // Only the server knows what is undone; a task that is complete here counts at once.
  queue.add({ task: task.id, kind, content });
  refreshView();
}

/** Apply a click to an answer as the server will. */
function apply(answer, kind, content) {
  if (["set", "mark", "done"].includes(kind)) answer.skipped = false;
  if (kind === "set" && content.value === null) delete answer.values[content.name];
  else if (kind === "set") answer.values[content.name] = content.value;
  else if (kind === "mark") {
    const place = answer.marks.findIndex((mark) => mark.id === content.id);
    if (place < 0) answer.marks.push(content);
    else answer.marks[place] = content;
  } else if (kind === "unmark") answer.marks = answer.marks.filter((mark) => mark.id !== content.id);
  else if (kind === "note") answer.note = content.text;
  else if (kind === "done") answer.done = content.value;
  else if (kind === "skip") answer.skipped = content.value;
}

function acknowledged(answer) {
  complete = new Set(answer.complete);
  canUndo = answer.can_undo;
  if (task && answer.task === task.id && !queue.hasPending(task.id)) {
    task.answer = answer.answer;
    refreshView();
  }
  showProgress();
  if (project) markPositions();
  if (project && answer.ordered !== project.ordered) ordering = reorder();
}

/** The open tasks have a new order: the first of them is the next. */
async function reorder() {
  project = await request("/api/project");
  position = project.tasks.findIndex((id) => !complete.has(id)) - 1;
}

async function undo() {
  undoButton.disabled = true;
  await queue.flush();
  queue.addUndo(async (answer) => {
    acknowledged(answer);
    if (answer.task && (!task || answer.task !== task.id)) await open(project.tasks.indexOf(answer.task));
  });
}

// ---- Tasks

async function open(number) {
  position = Math.min(Math.max(0, number), project.tasks.length - 1);
  const id = project.tasks[position];
  view = null; // Until the task is shown, keys answer nothing: they would answer the one before it.
  let loaded;
  try {
    loaded = await request(`/api/tasks/${encodeURIComponent(id)}`);
  } catch (error) {
    showMessage(error.message);
    return;
  }
  if (id !== project.tasks[position]) return; // Another task was opened meanwhile.
  for (const click of queue.clicksOf(id)) apply(loaded.answer, click.kind, click.content);
  task = loaded;
  history.replaceState(null, "", `#${position + 1}`);
  draw();
}

function draw() {
  const { schema } = project;
  const context = [];
  if (task.instruction) context.push(textPart("Instruction", task.instruction));
  const tools = { send: (kind, content) => send(kind, content), task, schema };
  view = schema.kind === "questionnaire" ? reviewTask(tools) : judgeTask(tools);
  if (task.source !== null && !view.showsSource) context.push(textPart("Source", task.source));
  task.references.forEach((text, number) =>
    context.push(textPart(task.references.length > 1 ? `Reference ${number + 1}` : "Reference", text)));
  const note = element("textarea", { rows: 1, id: "note", maxlength: 10000 });
  note.value = task.answer.note;
  note.addEventListener("change", () => send("note", { text: note.value }));
  const skip = element("button", { type: "button", id: "skip", "aria-pressed": "false", onclick: toggleSkip }, "Cannot judge this");
  main.replaceChildren(
    element("h2", { class: "visually-hidden", id: "task-title", tabindex: -1 }, `Task ${position + 1} of ${project.tasks.length}`),
    element("div", { class: context.length ? "task wide" : "task" },
      context.length ? element("section", { class: "context", "aria-label": "What the output was made from" }, ...context) : null,
      element("section", { class: "judge", "aria-label": "The task" }, view.node,
        element("div", { class: "row extras" }, element("label", { class: "note", for: "note" }, "Remark"), note, skip)),
    ),
    element("nav", { class: "steps", "aria-label": "Tasks" },
      element("button", { type: "button", id: "previous", onclick: () => open(position - 1), disabled: position === 0 }, "Previous"),
      positions(),
      element("button", { type: "button", class: "primary", id: "next", onclick: next }, "Next"),
    ),
  );
  refreshView();
  markPositions();
  showProgress();
  window.scrollTo(0, 0);
  document.getElementById("task-title").focus({ preventScroll: true });
}

function positions() {
  const select = element("select", { id: "position", "aria-label": "Go to task", onchange: (event) => open(Number(event.target.value)) });
  project.tasks.forEach((id, number) => select.append(element("option", { value: number }, "")));
  return select;
}

function markPositions() {
  const select = document.getElementById("position");
  if (!select) return;
  project.tasks.forEach((id, number) => {
    const text = `${number + 1} of ${project.tasks.length}${complete.has(id) ? " ✓" : ""}`;
    if (select.options[number].textContent !== text) select.options[number].textContent = text;
  });
  select.value = String(position);
}

function refreshView() {
  if (!view) return;
  view.update(task.answer);
  const skip = document.getElementById("skip");
  skip.setAttribute("aria-pressed", String(task.answer.skipped));
  const note = document.getElementById("note");
  if (document.activeElement !== note) note.value = task.answer.note;
}

function toggleSkip() {
  send("skip", { value: !task.answer.skipped });
}

async function next() {
  await ordering;
  if (position + 1 < project.tasks.length) {
    open(position + 1);
    return;
  }
  const left = project.tasks.findIndex((id) => !complete.has(id));
  if (left >= 0 && left !== position) open(left);
  else finish();
}

async function finish() {
  await queue.flush();
  if (complete.size < project.tasks.length) {
    open(project.tasks.findIndex((id) => !complete.has(id)));
    return;
  }
  main.replaceChildren(
    element("div", { class: "notice finished" },
      element("h2", { tabindex: -1, id: "task-title" }, "You are done"),
      element("p", {}, `All ${project.tasks.length === 1 ? "" : `${project.tasks.length} `}tasks are answered and saved. Thank you! You can close this page.`),
      element("p", { class: "soft" }, "Answers can still be changed: this link stays yours."),
      element("div", { class: "row" },
        element("button", { type: "button", onclick: () => open(0) }, "Go through the answers"),
        element("button", { type: "button", class: "plain", onclick: () => open(position) }, "Back to the last task"))),
  );
  history.replaceState(null, "", location.pathname);
  view = null;
  document.getElementById("task-title").focus();
}

function showMessage(text) {
  main.replaceChildren(element("p", { class: "message bad", role: "alert" }, text));
  view = null;
}

// ---- Keys

document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === "z" && !/^(INPUT|TEXTAREA)$/.test(event.target.tagName)) {
    event.preventDefault();
    undo();
    return;
  }
  // Radio buttons take arrows and the space bar only; all other keys are the page's.
  const onRadio = event.target.type === "radio" && !event.target.form && !event.key.startsWith("Arrow") && !(event.ctrlKey || event.metaKey || event.altKey);
  if (!(isShortcut(event) || onRadio) || !project) return;
  const onButton = /^(BUTTON|A|SUMMARY)$/.test(event.target.tagName);
  if (event.key === "ArrowRight" || (event.key === "Enter" && !onButton)) next();
  else if (event.key === "ArrowLeft" && (position > 0 || !view)) open(view ? position - 1 : position);
  else if (event.key === "z") undo();
  else if (event.key === "?") help.showModal();
  else if (event.key === "g") guide.showModal();
  else if (!view) return;
  else if (event.key === "u") {
    const left = project.tasks.findIndex((id) => !complete.has(id));
    if (left >= 0) open(left);
  } else if (event.key === "s") toggleSkip();
  else if (event.key === "n") document.getElementById("note").focus();
  else if (!view.keys(event)) return;
  event.preventDefault();
});

// ---- Start

async function refresh() {
  if (!project || queue.pending) return;
  try {
    const current = await request("/api/project");
    if (current.rater !== project.rater) {
      location.reload();
      return;
    }
    complete = new Set(current.complete);
    canUndo = current.can_undo;
    if (task) {
      const loaded = await request(`/api/tasks/${encodeURIComponent(task.id)}`);
      if (task.id === loaded.id && !queue.hasPending(task.id)) {
        task.answer = loaded.answer;
        refreshView();
      }
    }
    showProgress();
    markPositions();
  } catch {
    // The next click says that the server does not answer.
  }
}

async function start() {
  try {
    project = await request("/api/project");
  } catch (error) {
    showMessage(error.message);
    return;
  }
  heading.textContent = project.schema.about;
  const own = [
    ...(project.schema.questions.length ? [["1 … 9", "answer the marked question, also to correct it"], ["J, K", "next, previous question"]] : []),
    ...(project.schema.aspects ? [["M", "type words to mark"], ["D", "all errors are marked"]] : []),
  ];
  fillGuide();
  help.querySelector("dl").prepend(...own.map(keyLine).flat());
  document.title = safeName(`${project.schema.about} – ${project.rater}`);
  complete = new Set(project.complete);
  canUndo = project.can_undo;
  queue = new ClickQueue(`${project.id}:${project.rater}`, project.rater, { acknowledged, state: showSaved, refused: () => open(position), changed: refresh });
  if (!project.tasks.length) {
    showMessage("There are no tasks for you in this project.");
    return;
  }
  await queue.resend();
  const asked = Number(location.hash.slice(1)) - 1;
  const left = project.tasks.findIndex((id) => !complete.has(id));
  if (Number.isInteger(asked) && asked >= 0 && asked < project.tasks.length) await open(asked);
  else if (left >= 0) await open(left);
  else await finish();
  showProgress();
  if (project.guidelines.length && !complete.size && !canUndo) guide.showModal(); // The first visit.
}

window.addEventListener("hashchange", () => {
  const asked = Number(location.hash.slice(1)) - 1;
  if (Number.isInteger(asked) && asked !== position) open(asked);
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
window.addEventListener("beforeunload", (event) => { if (queue?.pending) event.preventDefault(); });
start();
