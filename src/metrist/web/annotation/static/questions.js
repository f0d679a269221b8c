// Questions with a few answers each: ratings, choices between two outputs, reviews of an analysis.
import { element, safeName } from "/static/elements.js";
import { markedBox, part } from "/static/output_card.js";
import { makeMarking } from "/static/marks.js";

// Together they are the part of a task in which raters answer; marks.js adds errors to mark.

/** A text that the keyboard can scroll. */
const textBox = (text) => markedBox(text, [], { tabindex: 0 });
export const textPart = (title, text) => part(title, textBox(text));
export const outputPart = (title, text) => element("div", { class: "output" }, textPart(title, text));

let numbers = 0;

/** A question as a group of radio buttons; `choose(value)` is called with the answer. */
function makeQuestion(question, choose, { layout = "scale" } = {}) {
  const group = `q${numbers += 1}`;
  const inputs = question.choices.map((choice, number) => {
    const input = element("input", { type: "radio", name: group, value: number, onchange: () => choose(choice.value) });
    return { input, choice, label: element("label", { class: "choice" }, input,
      element("span", { class: "grade" }, choice.label), choice.meaning ? element("span", { class: "meaning" }, choice.meaning) : null) };
  });
  const described = question.choices.some((choice) => choice.meaning.length > 45);
  const node = element("fieldset", { class: `question ${layout} ${described ? "described" : "plain-scale"}` },
    element("legend", {}, question.text),
    element("div", { class: "choices" }, inputs.map(({ label }) => label)));
  return {
    name: question.name,
    node,
    count: inputs.length,
    choose: (number) => { inputs[number].input.checked = true; choose(inputs[number].choice.value); },
    update: (value) => {
      for (const { input, choice, label } of inputs) {
        input.checked = choice.value === value;
        label.classList.toggle("chosen", input.checked);
      }
    },
    mark: (current) => node.classList.toggle("current", current),
  };
}

/**
 * Questions that number keys answer: the current one, which is marked. It is the one that the rater went to, or the first
 * without an answer. Where all are answered keys correct them, beginning with the first, each moving on to the next.
 */
class QuestionList {
  constructor(questions) {
    this.questions = questions;
    this.values = {};
    this.skipped = false;
    this.chosen = null; // The place that the rater went to.
    this.next = 0; // The place that a key corrects where all are answered.
    questions.forEach((question, place) => {
      question.node.addEventListener("focusin", () => this.move(place));
      question.node.addEventListener("change", () => this.advance(place));
    });
  }

  get current() {
    const open = this.questions.findIndex((question) => this.values[question.name] === undefined);
    return this.chosen ?? (open >= 0 ? open : this.next);
  }

  limit(place) {
    return Math.min(Math.max(0, place), this.questions.length - 1);
  }

  move(place) {
    this.chosen = this.limit(place);
    this.mark();
  }

  advance(place) {
    this.chosen = null;
    this.next = this.limit(place + 1);
    this.mark();
  }

  mark() {
    const { current } = this;
    this.questions.forEach((question, place) => question.mark(place === current && !this.skipped));
  }

  update(answer) {
    this.values = answer.values;
    this.skipped = answer.skipped;
    for (const question of this.questions) question.update(this.values[question.name]);
    this.mark();
  }

  keys(event) {
    const number = Number(event.key);
    const { current } = this;
    if (event.key === "j") this.move(current + 1);
    else if (event.key === "k") this.move(current - 1);
    else if (Number.isInteger(number) && number >= 1 && number <= (this.questions[current]?.count ?? 0)) {
      this.questions[current].choose(number - 1);
      this.advance(current);
    } else return false;
    this.questions[this.current]?.node.scrollIntoView({ block: "nearest" });
    return true;
  }
}

/** One output with its grades, or two with choices between them; and the errors to mark in them, if there are any. */
export function judgeTask({ send, task, schema }) {
  const pair = schema.kind === "pairwise";
  const questions = schema.questions.map((question) =>
    makeQuestion(question, (value) => send("set", { name: question.name, value }), { layout: pair ? "sides" : "scale" }));
  const list = new QuestionList(questions);
  const asked = questions.length ? element("div", { class: "questions" }, questions.map((question) => question.node)) : null;
  const outputs = pair
    ? [{ side: "left", title: "Output A", text: task.outputs[0] }, { side: "right", title: "Output B", text: task.outputs[1] }]
    : [{ side: "output", title: "Output", text: task.outputs[0] }];
  if (schema.aspects) {
    const source = pair || task.source === null ? [] : [{ side: "source", title: "Source", text: task.source }];
    const marking = makeMarking({ send, schema }, outputs, source);
    return {
      node: element("div", { class: "marking" }, marking.texts, element("div", {}, marking.panel, asked)),
      showsSource: source.length > 0,
      update(answer) { marking.update(answer); list.update(answer); },
      keys: (event) => marking.keys(event) || list.keys(event),
    };
  }
  const shown = outputs.map(({ title, text }) => outputPart(title, text));
  const node = element("div", {}, pair ? element("div", { class: "pair" }, shown) : shown, asked);
  return { node, update: (answer) => list.update(answer), keys: (event) => list.keys(event) };
}

export function reviewTask({ send, task, schema }) {
  const about = (name, question) => makeQuestion({ ...question, name }, (value) => send("set", { name, value }));
  const listed = task.errors.map((error, number) => {
    const question = about(`error:${number}`, { ...schema.each_error, text: `Is error ${number + 1} reasonable?` });
    const penalty = error.penalty ? `−${error.penalty}` : "";
    const facts = [error.aspect, error.severity, penalty].filter(Boolean).map((word) => element("span", { class: "chip" }, safeName(word)));
    const node = element("li", { class: "listed" },
      element("div", { class: "row" }, element("strong", {}, `Error ${number + 1}`), facts),
      error.text ? element("div", { class: "quote" }, textBox(error.text)) : null,
      error.explanation ? element("div", {}, element("span", { class: "soft small" }, "Explanation"), textBox(error.explanation)) : null,
      error.revision ? element("div", {}, element("span", { class: "soft small" }, "Suggested revision"), textBox(error.revision)) : null,
      question.node);
    return { question, node };
  });
  const whole = schema.questions.map((question) => about(question.name, question));
  const node = element("div", {},
    outputPart("Output", task.outputs[0]),
    element("h3", {}, "Errors that the analysis lists"),
    listed.length ? element("p", { class: "soft small" }, schema.each_error.text) : element("p", {}, "The analysis lists no errors."),
    element("ol", { class: "analysis" }, listed.map((entry) => entry.node)),
    element("h3", {}, "The analysis as a whole"),
    element("div", { class: "questions" }, whole.map((question) => question.node)));
  const list = new QuestionList([...listed.map((entry) => entry.question), ...whole]);
  return { node, update: (answer) => list.update(answer), keys: (event) => list.keys(event) };
}
