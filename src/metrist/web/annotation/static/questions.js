// Questions with a few answers each: ratings, choices between two outputs, reviews of an analysis.
import { element, safeName } from "/static/elements.js";
import { markedBox, part } from "/static/output_card.js";

/** A text that the keyboard can scroll. */
const textBox = (text) => markedBox(text, [], { tabindex: 0 });
export const textPart = (title, text) => part(title, textBox(text));
const outputPart = (title, text) => element("div", { class: "output" }, textPart(title, text));

let numbers = 0;

/** A question as a group of radio buttons; `choose(value)` is called with the answer. */
function makeQuestion(question, choose, { layout = "scale", hint = "" } = {}) {
  const group = `q${numbers += 1}`;
  const inputs = question.choices.map((choice, number) => {
    const input = element("input", { type: "radio", name: group, value: number, onchange: () => choose(choice.value) });
    return { input, choice, label: element("label", { class: "choice" }, input,
      element("span", { class: "grade" }, choice.label), choice.meaning ? element("span", { class: "meaning" }, choice.meaning) : null) };
  });
  const described = question.choices.some((choice) => choice.meaning.length > 12);
  const node = element("fieldset", { class: `question ${layout} ${described ? "described" : "plain-scale"}` },
    element("legend", {}, question.text, hint ? element("span", { class: "soft" }, ` ${hint}`) : null),
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

/** A task with questions: number keys answer the first open one, or the one that has the focus. */
function questionTask(node, questions) {
  let answer = { values: {} };
  const focused = () => questions.findIndex((question) => question.node.contains(document.activeElement));
  const current = () => {
    const open = questions.findIndex((question) => answer.values[question.name] === undefined);
    const inside = focused();
    return inside >= 0 ? inside : open;
  };
  return {
    node,
    update(latest) {
      answer = latest;
      for (const question of questions) question.update(answer.values[question.name]);
      const open = questions.findIndex((question) => answer.values[question.name] === undefined);
      questions.forEach((question, number) => question.mark(number === open && !answer.skipped));
    },
    keys(event) {
      const number = Number(event.key);
      const place = current();
      if (!Number.isInteger(number) || number < 1 || place < 0 || number > questions[place].count) return false;
      questions[place].choose(number - 1);
      return true;
    },
  };
}

export function ratingTask({ send, task, schema }) {
  const questions = schema.questions.map((question) =>
    makeQuestion(question, (value) => send("set", { name: question.name, value }), { hint: "" }));
  const node = element("div", {},
    outputPart("Output", task.outputs[0]),
    element("div", { class: "questions" }, questions.map((question) => question.node)));
  return questionTask(node, questions);
}

export function pairTask({ send, task, schema }) {
  const questions = schema.questions.map((question) =>
    makeQuestion(question, (value) => send("set", { name: question.name, value }), { layout: "sides" }));
  const node = element("div", {},
    element("div", { class: "pair" }, outputPart("Left", task.outputs[0]), outputPart("Right", task.outputs[1])),
    element("div", { class: "questions" }, questions.map((question) => question.node)));
  return questionTask(node, questions);
}

export function reviewTask({ send, task, schema }) {
  const about = (name, question) => makeQuestion({ ...question, name }, (value) => send("set", { name, value }));
  const listed = task.errors.map((error, number) => {
    const question = about(`error:${number}`, { ...schema.each_error, text: `Is error ${number + 1} reasonable?` });
    const facts = [error.aspect, error.severity].filter(Boolean).map((word) => element("span", { class: "chip" }, safeName(word)));
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
    element("p", { class: "soft small" }, schema.each_error.text),
    element("ol", { class: "analysis" }, listed.map((entry) => entry.node)),
    element("h3", {}, "The analysis as a whole"),
    element("div", { class: "questions" }, whole.map((question) => question.node)));
  return questionTask(node, [...listed.map((entry) => entry.question), ...whole]);
}
