// Shared by the pages of a server: requests, and keys.

/** Ask this server: the answer's JSON, or an Error with the server's message. */
export async function request(path, { method = "GET", body, signal } = {}) {
  const options = { method, signal, headers: {} };
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is metrist still running?");
  }
  let answer = {};
  try {
    answer = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (response.ok) throw new Error("The server's answer ended early. Is metrist still running?");
  }
  if (!response.ok) throw new Error(answer.error ?? `The server answered ${response.status}.`);
  return answer;
}

/** Whether a key press is meant for the page, not for a field or with a modifier. */
export function isShortcut(event) {
  const target = event.target;
  return !(event.ctrlKey || event.metaKey || event.altKey || event.isComposing
    || target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || document.querySelector("dialog[open]"));
}
