// Texts with marks: errors, word differences, and words by how unlikely a model found them.

import { element, safeName, textNodes, SHOWN_CHARACTERS } from "/static/page.js";

/** Offsets of errors count characters as Python does; JavaScript counts UTF-16 units. */
export function unitOffsets(text, offsets) {
  if (!/[\ud800-\udfff]/.test(text)) return offsets.map((offset) => Math.min(offset, text.length));
  const wanted = new Map(offsets.map((offset) => [offset, text.length]));
  let count = 0;
  let unit = 0;
  for (const character of text) {
    if (wanted.has(count)) wanted.set(count, unit);
    count += 1;
    unit += character.length;
  }
  return offsets.map((offset) => wanted.get(offset));
}

/**
 * A box with a text in which ranges are marked. A range is {start, end, tag, class, title, number}: ranges may overlap.
 * A number is shown after the end of its range. Long texts come in parts.
 */
export function markedBox(text, ranges = [], attributes = {}) {
  const box = element("div", { dir: "auto", ...attributes, class: `text ${attributes.class ?? ""}`.trim() });
  const borders = new Set([0, text.length]);
  for (const range of ranges) borders.add(range.start).add(range.end);
  for (let cut = SHOWN_CHARACTERS; cut < text.length; cut += SHOWN_CHARACTERS) borders.add(cut);
  const cuts = [...borders].sort((first, second) => first - second);
  const byStart = [...ranges].sort((first, second) => first.start - second.start);
  let piece = 0;
  let next = 0;
  let open = [];
  const extend = () => {
    const end = cuts[piece] + SHOWN_CHARACTERS;
    for (; piece + 1 < cuts.length && cuts[piece] < end; piece += 1) {
      const [start, stop] = [cuts[piece], cuts[piece + 1]];
      open = open.filter((range) => range.end > start);
      while (next < byStart.length && byStart[next].start <= start) {
        if (byStart[next].end > start) open.push(byStart[next]);
        next += 1;
      }
      let nodes = textNodes(text.slice(start, stop));
      for (const range of open) {
        nodes = [element(range.tag ?? "mark", { class: range.class, title: range.title }, nodes)];
      }
      box.append(...nodes);
      for (const range of open) {
        if (range.end === stop && range.number) box.append(element("sup", { class: "error-number" }, range.number));
      }
    }
    if (piece + 1 < cuts.length) {
      const left = (text.length - cuts[piece]).toLocaleString("en");
      const more = element("button", { type: "button", onclick: () => { more.remove(); extend(); } }, `Show more (${left} characters left)`);
      box.append(more);
    }
  };
  extend();
  return box;
}

const SEVERITIES = { critical: "major", major: "major", minor: "minor" };

export function severityClass(error) {
  return SEVERITIES[(error.severity ?? "").toLowerCase()] ?? "other";
}

/** An error in one line: severity, penalty, aspect, words, explanation and correction. */
export function describeError(error) {
  const parts = [error.severity || "error"];
  if (error.penalty !== null && error.penalty !== undefined) parts.push(`-${error.penalty}`);
  parts.push(error.aspect);
  if (error.text) parts.push(`“${error.text}”`);
  const head = parts.join(" ");
  return safeName(`${head}${error.explanation ? `: ${error.explanation}` : ""}${error.revision ? ` → ${error.revision}` : ""}`);
}

/** The ranges of numbered errors ([number, error]) in the output or the source. */
export function errorRanges(text, numbered, side) {
  const placed = numbered.filter(([, error]) => Number.isInteger(error.start) && Number.isInteger(error.end) && (error.side ?? "output") === side);
  const units = unitOffsets(text, placed.flatMap(([, error]) => [error.start, error.end]));
  return placed.map(([number, error], index) => ({
    start: units[2 * index],
    end: Math.max(units[2 * index + 1], units[2 * index]),
    class: `error ${severityClass(error)}`,
    title: describeError(error),
    number,
  })).filter((range) => range.end > range.start);
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
