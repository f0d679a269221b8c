// Marking errors: select words with the mouse, or type them; then say what is wrong with them and how badly.
import { element, safeName, SHOWN_CHARACTERS } from "/static/elements.js";
import { markedBox, part } from "/static/output_card.js";
import { newId } from "/static/clicks.js";

/** The position of a place in the page, counted in characters (code points) of the text that the box shows. */
function offsetIn(box, node, place) {
  let count = 0;
  let found = null;
  const visit = (current) => {
    if (found !== null) return;
    if (current.nodeType === Node.TEXT_NODE) {
      if (current === node) found = count + [...current.data.slice(0, place)].length;
      count += [...current.data].length;
      return;
    }
    // A hidden character is shown as an escape of several letters, and is one character.
    if (current.classList?.contains("escape")) {
      if (current.contains(node)) found = count;
      count += 1;
      return;
    }
    if (current.classList?.contains("more")) return;
    const children = [...current.childNodes];
    children.forEach((child, number) => {
      if (current === node && number === place && found === null) found = count;
      visit(child);
    });
    if (current === node && place >= children.length && found === null) found = count;
  };
  visit(box);
  return found;
}

/** A text whose marks are underlined. Very long ones are shown in parts. */
class MarkedText {
  constructor(side, title, text, pick) {
    this.characters = [...text];
    this.side = side;
    this.shown = SHOWN_CHARACTERS;
    this.pick = pick;
    this.marks = [];
    this.box = element("div", { class: "text markable", dir: "auto", tabindex: 0, role: "group", "aria-label": `${title}, in which words can be marked` });
    this.node = element("div", { class: side }, part(title, this.box));
    this.box.addEventListener("mouseup", () => setTimeout(() => this.select(), 0));
    this.box.addEventListener("touchend", () => setTimeout(() => this.select(), 0));
    this.box.addEventListener("keyup", (event) => { if (event.shiftKey) this.select(); });
  }

  select() {
    const selection = document.getSelection();
    if (!selection.rangeCount || selection.isCollapsed) return;
    const range = selection.getRangeAt(0);
    if (!this.box.contains(range.startContainer) || !this.box.contains(range.endContainer)) return;
    let start = offsetIn(this.box, range.startContainer, range.startOffset);
    let end = offsetIn(this.box, range.endContainer, range.endOffset);
    if (start === null || end === null) return;
    while (start < end && /\s/.test(this.characters[start])) start += 1;
    while (end > start && /\s/.test(this.characters[end - 1])) end -= 1;
    if (start < end) this.pick({ side: this.side, start, end });
  }

  words(start, end) {
    return this.characters.slice(start, end).join("");
  }

  /** The next occurrence of words from a position on, or from the beginning. */
  find(words, from) {
    const text = this.characters.join("");
    let at = text.indexOf(words, this.characters.slice(0, from).join("").length);
    if (at < 0) at = text.indexOf(words);
    if (!words || at < 0) return null;
    const start = [...text.slice(0, at)].length;
    return { side: this.side, start, end: start + [...words].length };
  }

  draw(marks, chosen, edit) {
    const unit = (place) => this.words(0, place).length;
    const range = ({ start, end }) => ({ start: unit(start), end: unit(end) });
    const own = marks.filter((mark) => mark.side === this.side).map((mark) => ({
      ...range(mark),
      class: mark.severity,
      title: `${mark.aspect}, ${mark.severity}${mark.note ? `: ${safeName(mark.note)}` : ""}`,
      onclick: (event) => {
        event.stopPropagation(); // Marks overlap; the one that was clicked is meant.
        if (document.getSelection().isCollapsed) edit(mark);
      },
    }));
    if (chosen?.side === this.side) own.push({ ...range(chosen), class: "pending", title: "chosen words" });
    const drawn = markedBox(this.characters.join(""), own, {}, { shown: this.shown, extended: (shown) => { this.shown = shown; this.draw(marks, chosen, edit); } });
    this.box.replaceChildren(...drawn.childNodes);
  }
}

export function markTask({ send, task, schema }) {
  let marks = [];
  let chosen = null; // The words that the form is about: { side, start, end }, with an id if they are marked already.
  const texts = { output: new MarkedText("output", "Output", task.outputs[0], choose) };
  if (task.source !== null) texts.source = new MarkedText("source", "Source", task.source, choose);

  const words = element("input", { type: "text", id: "mark-words", autocomplete: "off", spellcheck: "false" });
  const place = element("p", { class: "small soft", id: "mark-place", role: "status" }, "Select words in the text, or type them here and press Find.");
  const find = element("button", { type: "button", onclick: findWords }, "Find");
  const aspect = element("select", { id: "mark-aspect" }, Object.keys(schema.aspects).map((name) => element("option", { value: name }, safeName(name))));
  const definition = element("p", { class: "small soft" });
  const severities = schema.severities.map((name, number) => {
    const input = element("input", { type: "radio", name: "severity", value: name, checked: number === 1 });
    return { input, label: element("label", {}, input, name) };
  });
  const note = element("textarea", { id: "mark-note", rows: 2, maxlength: 10000 });
  const keep = element("button", { type: "submit", class: "primary" }, "Mark");
  const cancel = element("button", { type: "button", onclick: clear }, "Clear");
  const form = element("form", { class: "mark-form", "aria-label": "An error", onsubmit: submit },
    element("div", { class: "row" }, element("label", { class: "above grow", for: "mark-words" }, "Words", words), find),
    place,
    element("div", { class: "row" },
      element("label", { class: "above", for: "mark-aspect" }, "What is wrong", aspect),
      element("fieldset", { class: "severities" }, element("legend", {}, "How badly"), severities.map(({ label }) => label))),
    definition,
    element("label", { class: "above", for: "mark-note" }, "Note", note),
    element("div", { class: "row" }, keep, cancel));
  const list = element("ol", { class: "marks", "aria-label": "Marked errors" });
  const none = element("p", { class: "soft small" }, "No error is marked.");
  const done = element("button", { type: "button", id: "done", "aria-pressed": "false", onclick: () => send("done", { value: !finished }) }, "All errors are marked");
  let finished = false;
  aspect.addEventListener("change", showDefinition);
  words.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !matches()) { event.preventDefault(); findWords(); }
  });

  function showDefinition() {
    definition.textContent = schema.aspects[aspect.value] ?? "";
  }

  function matches() {
    return chosen && texts[chosen.side].words(chosen.start, chosen.end) === words.value;
  }

  function choose(span) {
    chosen = { ...chosen, ...span };
    words.value = texts[span.side].words(span.start, span.end);
    place.textContent = `In the ${span.side}, characters ${span.start + 1} to ${span.end}.`;
    redraw();
  }

  function findWords() {
    const order = chosen?.side === "source" ? ["source", "output"] : ["output", "source"];
    for (const side of order) {
      const from = chosen?.side === side ? chosen.start + 1 : 0;
      const span = texts[side]?.find(words.value, from);
      if (span) {
        choose(span);
        return;
      }
    }
    place.textContent = words.value ? "These words are not in the text." : "Type the words that are wrong.";
  }

  function clear() {
    chosen = null;
    words.value = "";
    note.value = "";
    keep.textContent = "Mark";
    place.textContent = "Select words in the text, or type them here and press Find.";
    redraw();
  }

  function edit(mark) {
    chosen = { id: mark.id, side: mark.side, start: mark.start, end: mark.end };
    words.value = texts[mark.side].words(mark.start, mark.end);
    aspect.value = mark.aspect;
    for (const { input } of severities) input.checked = input.value === mark.severity;
    note.value = mark.note;
    keep.textContent = "Save";
    place.textContent = `In the ${mark.side}, characters ${mark.start + 1} to ${mark.end}.`;
    showDefinition();
    redraw();
    aspect.focus();
  }

  function submit(event) {
    event.preventDefault();
    if (!matches()) findWords();
    if (!matches()) {
      words.focus();
      return;
    }
    send("mark", {
      id: chosen.id ?? newId(),
      start: chosen.start,
      end: chosen.end,
      side: chosen.side,
      aspect: aspect.value,
      severity: severities.find(({ input }) => input.checked).input.value,
      note: note.value,
    });
    document.getSelection().removeAllRanges();
    clear();
  }

  function redraw() {
    for (const text of Object.values(texts)) text.draw(marks, chosen, edit);
    list.replaceChildren(...marks.map((mark) => element("li", {},
      element("span", { class: `chip severity-${mark.severity}` }, mark.severity), " ",
      element("strong", {}, safeName(mark.aspect)), " ",
      element("q", { class: "name", dir: "auto" }, safeName(texts[mark.side]?.words(mark.start, Math.min(mark.end, mark.start + 200)) ?? "")),
      mark.note ? element("div", { class: "name", dir: "auto" }, safeName(mark.note)) : null,
      element("span", { class: "row" },
        element("button", { type: "button", class: "plain", onclick: () => edit(mark) }, "Edit"),
        element("button", { type: "button", class: "plain", onclick: () => { if (chosen?.id === mark.id) clear(); send("unmark", { id: mark.id }); } }, "Remove")))));
    none.hidden = marks.length > 0;
    list.hidden = marks.length === 0;
  }

  showDefinition();
  const node = element("div", { class: "marking" },
    element("div", { class: "texts" },
      texts.output.node,
      texts.source ? element("details", { open: true }, element("summary", {}, "Source"), texts.source.node) : null),
    element("div", {}, form, element("h3", {}, "Marked errors"), none, list, element("p", {}, done)));
  return {
    node,
    showsSource: true,
    update(answer) {
      marks = [...answer.marks].sort((a, b) => (a.side > b.side ? 1 : a.side < b.side ? -1 : a.start - b.start));
      finished = answer.done;
      done.setAttribute("aria-pressed", String(finished));
      redraw();
    },
    keys(event) {
      if (event.key === "m") words.focus();
      else if (event.key === "d") send("done", { value: !finished });
      else return false;
      return true;
    },
  };
}
