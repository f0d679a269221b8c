// Shared by all scripts: elements without HTML strings, and texts that cannot do harm.

/** Create an element: element("p", {class: "soft", onclick: f}, "text", child). Strings become text, never HTML. */
export function element(tag, attributes = {}, ...children) {
  const created = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) created.addEventListener(name.slice(2), value);
    else if (value === true) created.setAttribute(name, "");
    else created.setAttribute(name, String(value));
  }
  created.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return created;
}

/** Characters of a text that are shown before a button offers more. */
export const SHOWN_CHARACTERS = 20000;

// Controls, changes of direction, separators and lone surrogates: shown as escapes. Tab and line feed stay.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

function escapeCharacter(character) {
  return `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;
}

/** A text as nodes: what a page would interpret is shown as an escape in a span of its own. */
export function textNodes(text) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > end) nodes.push(document.createTextNode(text.slice(end, match.index)));
    nodes.push(element("span", { class: "escape" }, escapeCharacter(match[0])));
    end = match.index + match[0].length;
  }
  if (end < text.length) nodes.push(document.createTextNode(text.slice(end)));
  return nodes;
}

/** A name in one line, with hidden characters as escapes. */
export function safeName(text) {
  return text.replace(/[\t\n]/g, escapeCharacter).replace(HIDDEN, escapeCharacter);
}
