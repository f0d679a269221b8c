// One output with its errors, reasons and texts, as `OutputCard.for_script` describes it: drawn in the viewer, the
// playground and the explorer of a report. templates/output_card.html draws the same without a script.

import { element, safeName, textNodes, SHOWN_CHARACTERS } from "/static/elements.js";

/**
 * A box with a text in which ranges are marked. A range is {start, end, tag, class, title, number, onclick}: ranges may
 * overlap. A number is shown after the end of its range. Long texts come in parts: `shown` characters at first, and
 * `extended` is told when there are more.
 */
export function markedBox(text, ranges = [], attributes = {}, { shown = SHOWN_CHARACTERS, extended = () => {} } = {}) {
  const box = element("div", { dir: "auto", ...attributes, class: `text ${attributes.class ?? ""}`.trim() });
  const borders = new Set([0, text.length]);
  for (const range of ranges) borders.add(range.start).add(range.end);
  for (let cut = SHOWN_CHARACTERS; cut < text.length; cut += SHOWN_CHARACTERS) borders.add(cut);
  const cuts = [...borders].sort((first, second) => first - second);
  const byStart = [...ranges].sort((first, second) => first.start - second.start);
  let piece = 0;
  let next = 0;
  let open = [];
  const extend = (end) => {
    for (; piece + 1 < cuts.length && cuts[piece] < end; piece += 1) {
      const [start, stop] = [cuts[piece], cuts[piece + 1]];
      open = open.filter((range) => range.end > start);
      while (next < byStart.length && byStart[next].start <= start) {
        if (byStart[next].end > start) open.push(byStart[next]);
        next += 1;
      }
      let nodes = textNodes(text.slice(start, stop));
      for (const range of open) {
        nodes = [element(range.tag ?? "mark", { class: range.class, title: range.title, onclick: range.onclick }, nodes)];
      }
      box.append(...nodes);
      for (const range of open) {
        if (range.end === stop && range.number) box.append(element("sup", { class: "error-number" }, range.number));
      }
    }
    if (piece + 1 < cuts.length) {
      const left = (text.length - cuts[piece]).toLocaleString("en");
      const onclick = () => { more.remove(); extend(end + SHOWN_CHARACTERS); extended(end + SHOWN_CHARACTERS); };
      const more = element("button", { type: "button", class: "more", onclick }, `Show more (${left} characters left)`);
      box.append(more);
    }
  };
  extend(shown);
  return box;
}

/** The places of errors in the output or the source, as ranges. */
export function errorRanges(errors, side) {
  return errors.filter((error) => error.side === side && error.end > error.start)
    .map(({ start, end, severity, text, number }) => ({ start, end, class: severity, title: text, number }));
}

/** The errors with their reasons. */
export function errorList(errors) {
  return element("ol", { class: "errors" }, errors.map((error) =>
    element("li", { class: error.severity }, safeName(error.text), element("span", { class: "soft" }, ` (${safeName(error.by)})`))));
}

/** The passages of the source that errors are about, each once. */
function passageList(passages = []) {
  return passages.map(([numbers, words]) => element("p", { class: "passage" },
    element("span", { class: "soft" }, `Nearest in the source (${numbers}):`), ` “${safeName(words)}”`));
}

/** Something under its name. */
export function part(title, ...children) {
  return element("section", { class: "part" }, element("h3", { class: "label" }, title), ...children);
}

/**
 * The output of a card, beside that of another one if there is one, and its errors. `name` is that of the other card;
 * without `differences` the words that only one of the two has are not marked.
 */
export function drawOutput(card, other = null, { name = "", differences = true } = {}) {
  if (card.output === null) return [element("p", { class: "message" }, "The files of the run do not have this text.")];
  const errors = errorRanges(card.errors, "output");
  const list = card.errors.length ? [part("Errors", element("div", {}, errorList(card.errors), passageList(card.passages)))] : [];
  const own = (changes) => part("Output", markedBox(card.output, [...changes, ...errors], { class: "main-text" }));
  if (!other || other.output === null) return [own([]), ...list];
  const ranges = differences ? diffWords(other.output, card.output) : [[], []];
  const same = other.output === card.output ? " (the same text)" : ranges === null ? " (too long for word differences)" : "";
  const theirs = [...(ranges?.[0] ?? []), ...errorRanges(other.errors, "output")];
  return [element("div", { class: "pair" }, part(`Compared with ${safeName(name)}${same}`, markedBox(other.output, theirs)), own(ranges?.[1] ?? [])), ...list];
}

/** What metrics say about an output: why there is no score, reasons, and the answer that could not be read. */
export function drawReasons(card) {
  return card.said.flatMap(({ by, failure, explanation, raw }) => [
    failure ? part(`Not scored by ${safeName(by)}`, markedBox(failure)) : [],
    explanation ? part(`Reasons of ${safeName(by)}`, markedBox(explanation)) : [],
    raw ? element("details", {}, element("summary", {}, `The answer to ${safeName(by)}`), markedBox(raw)) : [],
  ].flat());
}

/** What the output was made from and should resemble. */
export function drawContext(card) {
  const reference = (text, index) => part(card.references.length > 1 ? `Reference ${index + 1}` : "Reference", markedBox(text));
  return [
    card.instruction ? part("Instruction", markedBox(card.instruction)) : [],
    card.source ? part("Source", markedBox(card.source, errorRanges(card.errors, "source"))) : [],
    card.references.map(reference),
  ].flat();
}

// ---- Word differences

/** More words than this are not compared. */
const MAX_WORDS = 3000;

function splitWords(text) {
  return [...text.matchAll(/[\p{L}\p{N}\p{M}_]+|[^\s\p{L}\p{N}\p{M}_]/gu)].map((match) => ({
    word: match[0], start: match.index, end: match.index + match[0].length,
  }));
}

/**
 * The words of each text that the other does not have, as ranges: [first's, second's]. By the longest common
 * subsequence. Null where the texts are too long.
 */
export function diffWords(first, second) {
  if (first.length + second.length > 200000) return null;
  const [one, two] = [splitWords(first), splitWords(second)];
  let head = 0;
  while (head < one.length && head < two.length && one[head].word === two[head].word) head += 1;
  let tail = 0;
  while (tail < one.length - head && tail < two.length - head
    && one[one.length - 1 - tail].word === two[two.length - 1 - tail].word) tail += 1;
  const [a, b] = [one.slice(head, one.length - tail), two.slice(head, two.length - tail)];
  if (a.length > MAX_WORDS || b.length > MAX_WORDS) return null;
  const width = b.length + 1;
  const lengths = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      lengths[i * width + j] = a[i].word === b[j].word
        ? lengths[(i + 1) * width + j + 1] + 1
        : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
    }
  }
  const [removed, added] = [[], []];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i].word === b[j].word) { i += 1; j += 1; }
    else if (j === b.length || (i < a.length && lengths[(i + 1) * width + j] >= lengths[i * width + j + 1])) { removed.push(a[i]); i += 1; }
    else { added.push(b[j]); j += 1; }
  }
  return [joinWords(removed, first, "del"), joinWords(added, second, "ins")];
}

/** Neighbouring words as one range. */
function joinWords(words, text, tag) {
  const ranges = [];
  for (const { start, end } of words) {
    const last = ranges.at(-1);
    if (last && /^\s*$/.test(text.slice(last.end, start))) last.end = end;
    else ranges.push({ start, end, tag });
  }
  return ranges;
}

// ---- Heat

const STEPS = ["probability .5 or more", ".1 to .5", ".01 to .1", ".001 to .01", "below .001"];

function describeUnit(logprob) {
  if (logprob === null) return undefined;
  const probability = logprob > Math.log(0.0001) ? Number(Math.exp(logprob).toPrecision(2)) : "below 0.0001";
  return `log-probability ${logprob.toFixed(2)}, probability ${probability}`;
}

/** Words coloured by how unlikely a model found them; `readings` by metric. */
export function heatSection(tokens) {
  const legend = element("ul", { class: "heat-legend", "aria-label": "What the colours mean" },
    STEPS.map((label, step) => element("li", {}, element("span", { class: `t s${step}` }, label))));
  const parts = Object.entries(tokens).flatMap(([metric, readings]) => readings.flatMap((reading) => [
    element("p", { class: "soft small" }, safeName(`${metric}: ${reading.label}`)),
    element("div", { class: "text heat", dir: "auto" }, reading.units.slice(0, 5000).flatMap(([text, logprob, step]) => {
      const word = text.trimStart() || text;
      return [text.slice(0, text.length - word.length), element("span", { class: `t s${step}`, title: describeUnit(logprob) }, word)];
    })),
  ]));
  return parts.length ? [legend, ...parts] : [];
}
