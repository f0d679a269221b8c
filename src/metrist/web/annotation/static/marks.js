// Marking errors: select words, or type them; then say what is wrong with them and how badly. The form opens beside the
// text, and where there is little room over the lower part of the page, so that the words stay in view.
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
  constructor({ side, title, text }) {
    this.characters = [...text];
    this.side = side;
    this.shown = SHOWN_CHARACTERS;
    this.box = element("div", { class: "text markable", dir: "auto", tabindex: 0, role: "group", "aria-label": `${title}, in which words can be marked` });
    this.title = title;
    this.node = element("div", { class: side === "source" ? "source" : "output" }, part(title, this.box));
  }

  /** The selected words, null if there are none in this text. */
  selected() {
    const selection = document.getSelection();
    if (!selection.rangeCount || selection.isCollapsed) return null;
    const range = selection.getRangeAt(0);
    if (!this.box.contains(range.startContainer) || !this.box.contains(range.endContainer)) return null;
    let start = offsetIn(this.box, range.startContainer, range.startOffset);
    let end = offsetIn(this.box, range.endContainer, range.endOffset);
    if (start === null || end === null) return null;
    while (start < end && /\s/.test(this.characters[start])) start += 1;
    while (end > start && /\s/.test(this.characters[end - 1])) end -= 1;
    return start < end ? { side: this.side, start, end } : null;
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

/** How long a selection must rest before it is taken: on a phone, its ends are drawn one after the other. */
const REST = 200;
/** Pixels between the words and a form that lies over the page. */
const GAP = 16;

/** The texts, and the panel with the form and the list of marked errors. */
export function makeMarking({ send, schema }, outputs, source) {
  let marks = [];
  let chosen = null; // The words that the form is about: { side, start, end }, with an id if they are marked already.
  const texts = Object.fromEntries([...outputs, ...source].map((own) => [own.side, new MarkedText(own)]));

  const words = element("input", { type: "text", id: "mark-words", autocomplete: "off", spellcheck: "false" });
  const place = element("p", { class: "small soft", id: "mark-place", role: "status" }, "");
  const find = element("button", { type: "button", onclick: findWords }, "Find");
  const aspect = element("select", { id: "mark-aspect" }, Object.keys(schema.aspects).map((name) => element("option", { value: name }, safeName(name))));
  const definition = element("p", { class: "small soft" });
  const severities = schema.severities.map((name, number) => {
    const input = element("input", { type: "radio", name: "severity", value: name, checked: number === 1 });
    return { input, label: element("label", {}, input, name) };
  });
  const note = element("textarea", { id: "mark-note", rows: 1, maxlength: 10000 });
  const keep = element("button", { type: "submit", class: "primary" }, "Mark");
  const cancel = element("button", { type: "button", onclick: clear }, "Cancel");
  const form = element("form", { class: "mark-form", "aria-label": "An error", hidden: true, onsubmit: submit, onfocusin: redraw, onkeydown: (event) => { if (event.key === "Escape") clear(); } },
    element("div", { class: "row" }, element("label", { class: "above grow", for: "mark-words" }, "Words", words), find),
    place,
    element("div", { class: "row" },
      element("label", { class: "above", for: "mark-aspect" }, "What is wrong", aspect),
      element("fieldset", { class: "severities" }, element("legend", {}, "How badly"), severities.map(({ label }) => label))),
    definition,
    element("label", { class: "above", for: "mark-note" }, "Note", note),
    element("div", { class: "row" }, keep, cancel));
  const list = element("ol", { class: "marks", "aria-label": "Marked errors" });
  const hint = element("p", { class: "soft small" }, "Select the words that are wrong, ",
    element("button", { type: "button", class: "plain inline", onclick: type }, "or type them"), ".");
  const done = element("button", { type: "button", id: "done", "aria-pressed": "false", onclick: () => send("done", { value: !finished }) });
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

  function show(span) {
    words.value = texts[span.side].words(span.start, span.end);
    place.textContent = `In “${texts[span.side].title}”, characters ${span.start + 1} to ${span.end}.`;
    form.hidden = false;
    hint.hidden = true;
  }

  function choose(span) {
    chosen = { ...chosen, ...span };
    show(span);
    redraw();
    reveal();
  }

  /** Keep the chosen words in view, above the form where that lies over the page. */
  function reveal() {
    const pending = texts[chosen.side].box.querySelector("mark.pending");
    pending?.scrollIntoView({ block: "nearest" });
    const words = (pending ?? document.getSelection().getRangeAt(0)).getBoundingClientRect();
    const covered = words.bottom - form.getBoundingClientRect().top;
    if (getComputedStyle(form).position === "fixed" && covered > -GAP) window.scrollBy(0, covered + GAP);
  }

  function type() {
    form.hidden = false;
    hint.hidden = true;
    words.focus();
  }

  // The selection stays as it is, so that it can still be extended: the text is drawn again when the form has the focus.
  let waiting = 0;
  function followSelection() {
    if (!panel.isConnected) {
      document.removeEventListener("selectionchange", followSelection);
      return;
    }
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      const span = Object.values(texts).map((text) => text.selected()).find((found) => found);
      if (!span) return;
      chosen = { ...chosen, ...span };
      show(span);
      reveal();
    }, REST);
  }

  function findWords() {
    const order = Object.keys(texts).sort((first, second) => (second === chosen?.side) - (first === chosen?.side));
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
    place.textContent = "";
    form.hidden = true;
    hint.hidden = false;
    document.getSelection().removeAllRanges();
    redraw();
  }

  function edit(mark) {
    chosen = { id: mark.id, side: mark.side, start: mark.start, end: mark.end };
    show(mark);
    aspect.value = mark.aspect;
    for (const { input } of severities) input.checked = input.value === mark.severity;
    note.value = mark.note;
    keep.textContent = "Save";
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
    clear();
  }

  function redraw() {
    for (const text of Object.values(texts)) text.draw(marks, chosen, edit);
    list.replaceChildren(...marks.map((mark) => element("li", {},
      element("span", { class: `chip severity-${mark.severity}` }, mark.severity), " ",
      element("strong", {}, safeName(mark.aspect)), outputs.length > 1 ? ` in ${texts[mark.side]?.title}` : "", " ",
      element("q", { class: "name", dir: "auto" }, safeName(texts[mark.side]?.words(mark.start, Math.min(mark.end, mark.start + 200)) ?? "")),
      mark.note ? element("div", { class: "name", dir: "auto" }, safeName(mark.note)) : null,
      element("span", { class: "row" },
        element("button", { type: "button", class: "plain", onclick: () => edit(mark) }, "Edit"),
        element("button", { type: "button", class: "plain", onclick: () => { if (chosen?.id === mark.id) clear(); send("unmark", { id: mark.id }); } }, "Remove")))));
    list.hidden = marks.length === 0;
    done.textContent = marks.length ? "All errors are marked" : "There is no error";
  }

  showDefinition();
  document.addEventListener("selectionchange", followSelection);
  const shown = outputs.map(({ side }) => texts[side].node);
  const panel = element("div", { class: "mark-panel" },
    element("h3", {}, "Errors"), hint, form, list, element("p", {}, done));
  return {
    texts: element("div", { class: "texts" },
      outputs.length > 1 ? element("div", { class: "pair" }, shown) : shown,
      texts.source ? element("details", { open: true }, element("summary", {}, "Source"), texts.source.node) : null),
    panel,
    update(answer) {
      marks = [...answer.marks].sort((a, b) => (a.side > b.side ? 1 : a.side < b.side ? -1 : a.start - b.start));
      finished = answer.done;
      done.setAttribute("aria-pressed", String(finished));
      redraw();
    },
    keys(event) {
      if (event.key === "m") type();
      else if (event.key === "d") send("done", { value: !finished });
      else return false;
      return true;
    },
  };
}
