// Clicks on their way to the server: kept in the browser until they are acknowledged, sent in order, sent again if there is
// no answer. The server counts an id once, so that sending a click twice does no harm.
const FIRST_WAIT = 300;
const LONGEST_WAIT = 5000;
// Not the click's fault: the cookie is gone or another rater's, or too many ask at once. Opening the link again mends it.
const MEND = [401, 403, 409, 421, 429];

/** A random id; crypto.randomUUID is missing on plain HTTP. */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export class ClickQueue {
  /**
   * `name` is that of the storage, the same for all tabs of a rater. `on` has callbacks: acknowledged(answer),
   * state("saved" | "saving" | "waiting" | "refused", message), refused(), and changed() when another tab has saved a click.
   */
  constructor(name, rater, on) {
    this.prefix = `metrist-annotation:${name}:`;
    this.key = this.prefix + newId();
    this.rater = rater;
    this.on = on;
    this.clicks = [];
    this.running = null;
    this.channel = "BroadcastChannel" in window ? new BroadcastChannel(this.prefix) : null;
    if (this.channel) this.channel.onmessage = () => on.changed();
  }

  get pending() {
    return this.clicks.length;
  }

  hasPending(task) {
    return this.clicks.some((click) => click.task === task);
  }

  clicksOf(task) {
    return this.clicks.filter((click) => click.task === task);
  }

  add(click) {
    this.push({ id: newId(), rater: this.rater, ...click });
  }

  addUndo(done) {
    this.push({ id: newId(), rater: this.rater, undo: true }, done);
  }

  push(click, done) {
    this.clicks.push(click);
    this.keep();
    this.on.state("saving");
    this.run(done);
  }

  /** Send what earlier pages of this rater could not send: they crashed, or the server was away. */
  async resend() {
    for (const key of Object.keys(localStorage).filter((key) => key.startsWith(this.prefix) && key !== this.key)) {
      let left = [];
      try {
        left = JSON.parse(localStorage.getItem(key)) ?? [];
      } catch { /* Not ours, or damaged. */ }
      this.clicks.push(...left);
      this.keep();
      localStorage.removeItem(key);
    }
    if (this.clicks.length) await this.run();
  }

  /** Wait until everything is acknowledged. */
  async flush() {
    if (this.clicks.length) await this.run();
  }

  keep() {
    try {
      if (this.clicks.length) localStorage.setItem(this.key, JSON.stringify(this.clicks));
      else localStorage.removeItem(this.key);
    } catch { /* Storage is full or forbidden: the clicks are still in memory. */ }
  }

  run(done) {
    if (done) this.done = done;
    this.running ??= this.sendAll().finally(() => { this.running = null; });
    return this.running;
  }

  async sendAll() {
    let wait = FIRST_WAIT;
    while (this.clicks.length) {
      const click = this.clicks[0];
      let response;
      try {
        const { undo, ...body } = click;
        response = await fetch(undo ? "/api/undo" : "/api/clicks", {
          method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), keepalive: true,
        });
      } catch { /* No answer. */ }
      if (!response || response.status >= 500 || MEND.includes(response.status)) {
        const said = response && MEND.includes(response.status) ? await response.json().catch(() => ({})) : {};
        this.on.state("waiting", said.error);
        await new Promise((resolve) => { setTimeout(resolve, wait); });
        wait = Math.min(LONGEST_WAIT, wait * 2);
        continue;
      }
      wait = FIRST_WAIT;
      const answer = await response.json().catch(() => ({}));
      this.clicks.shift();
      this.keep();
      if (response.ok) {
        if (click.undo && this.done) await this.done(answer);
        else this.on.acknowledged(answer);
        this.channel?.postMessage("changed");
        if (!this.clicks.length) this.on.state("saved");
      } else {
        this.on.state("refused", answer.error ?? `The server answered ${response.status}.`);
        this.on.refused();
      }
    }
  }
}
