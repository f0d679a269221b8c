"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const status = document.getElementById("status");
  let timer = 0;
  const say = (text) => {
    status.textContent = text;
    clearTimeout(timer);
    timer = setTimeout(() => { status.textContent = ""; }, 2500);
  };

  // ---- Copies of tables and commands

  const copyText = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  };
  document.querySelectorAll("button[data-copy]").forEach((button) => {
    button.addEventListener("click", async () => {
      const done = await copyText(data.copies[button.dataset.table][button.dataset.copy]);
      say(done ? "Copied" : "The browser did not allow copying");
    });
  });

  // ---- Figures as files

  // The attributes have the colours for paper; the style sheet is left behind.
  const figureSource = (figure) => {
    const copy = document.querySelector(`#${figure} svg`).cloneNode(true);
    const [, , width, height] = copy.getAttribute("viewBox").split(" ").map(Number);
    copy.setAttribute("width", width);
    copy.setAttribute("height", height);
    const ground = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    ground.setAttribute("width", width);
    ground.setAttribute("height", height);
    ground.setAttribute("fill", "#ffffff");
    copy.insertBefore(ground, copy.firstChild);
    return [new XMLSerializer().serializeToString(copy), width, height];
  };
  const save = (blob, name) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    say(`Saved ${name}`);
  };
  document.querySelectorAll("button[data-save]").forEach((button) => {
    button.addEventListener("click", () => {
      const { figure, name, save: kind } = button.dataset;
      const [source, width, height] = figureSource(figure);
      const drawing = new Blob([source], { type: "image/svg+xml" });
      if (kind === "svg") {
        save(drawing, `${name}.svg`);
        return;
      }
      const image = new Image();
      image.onload = () => {
        const canvas = document.createElement("canvas");
        canvas.width = 3 * width;
        canvas.height = 3 * height;
        const context = canvas.getContext("2d");
        context.drawImage(image, 0, 0, canvas.width, canvas.height);
        canvas.toBlob((blob) => save(blob, `${name}.png`), "image/png");
        URL.revokeObjectURL(image.src);
      };
      image.onerror = () => say("The browser could not draw the figure");
      image.src = URL.createObjectURL(drawing);
    });
  });

  // ---- Heads of tables stay in view: a box that need not scroll would keep them from following the page

  const fitBox = (box) => {
    box.classList.toggle("fits", box.clientWidth > 0 && box.firstElementChild.offsetWidth <= box.clientWidth);
  };
  const resized = new ResizeObserver((entries) => {
    const height = document.querySelector("nav").offsetHeight;
    document.documentElement.style.setProperty("--nav", `${height}px`);
    new Set(entries.map(({ target }) => target.closest(".scroll"))).forEach(fitBox);
  });
  document.querySelectorAll(".table > .scroll").forEach((box) => {
    resized.observe(box);
    resized.observe(box.firstElementChild);
  });

  // ---- Tips can be dismissed; on paper, tables and figures are open, and the texts that the reader opened

  document.addEventListener("keydown", (event) => {
    document.body.classList.toggle("quiet", event.key === "Escape");
  });
  document.addEventListener("pointermove", () => document.body.classList.remove("quiet"));
  let closed = [];
  window.addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open]):not(.context)")]
      .filter((details) => !details.querySelector(".card") && !details.closest(".card"));
    closed.forEach((details) => { details.open = true; });
  });
  window.addEventListener("afterprint", () => closed.forEach((details) => { details.open = false; }));

  // ---- All outputs: every text goes into the page as text, never as markup

  const explorer = data.explorer;
  if (!explorer) return;
  const size = 10;
  const root = document.getElementById("explorer");
  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined) element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  };
  const choice = (label, options) => {
    const select = make("select");
    options.forEach(([value, text]) => select.append(make("option", { value }, text)));
    filters.append(make("label", {}, label, select));
    return select;
  };
  const filters = make("div", { class: "filters" });
  const search = make("input", { type: "search" });
  filters.append(make("label", {}, "Search in texts and items", search));
  const everything = [["", "all"]];
  const system = choice("System", everything.concat(explorer.systems.map((name, i) => [i, name])));
  const beside = choice("Beside it", [["", "nothing"]].concat(explorer.systems.map((name, i) => [i, name])));
  const order = choice("Order", [["", "as in the input"]].concat(
    explorer.metrics.flatMap((metric, i) => metric.better === null
      ? [[`${i} 1`, `${metric.name}: lowest first`], [`${i} -1`, `${metric.name}: highest first`]]
      : [[`${i} ${metric.better}`, `${metric.name}: worst first`], [`${i} ${-metric.better}`, `${metric.name}: best first`]]),
  ));
  const summary = make("p", { class: "soft", role: "status" });
  const list = make("div");
  const back = make("button", { type: "button" }, "Previous");
  const forth = make("button", { type: "button" }, "Next");
  const turns = make("div", { class: "tools" }, back, forth);
  root.append(filters, summary, list, turns);
  let page = 0;
  let tips = 0;

  const plain = (text) => typeof text === "string" ? text : text.map((piece) => typeof piece === "string" ? piece : piece[0]).join("");
  const byKey = new Map(explorer.outputs.map((output) => [`${output.i} ${output.s}`, output]));
  const searchable = explorer.outputs.map((output) => {
    const item = explorer.items[output.i];
    return [item.name, plain(output.t), item.source || "", ...item.references].join("\n").toLowerCase();
  });

  const splitWords = (text) => text.match(/[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]|[\p{L}\p{N}_]+|\s+|[^\p{L}\p{N}_\s]/gu) || [];
  // The words of `own` that are not in a longest common subsequence with `other`.
  const findChanged = (own, other) => {
    const rows = own.length + 1, columns = other.length + 1;
    if (rows * columns > 1000000) return new Set();
    const lengths = new Uint16Array(rows * columns);
    for (let i = own.length - 1; i >= 0; i -= 1) {
      for (let j = other.length - 1; j >= 0; j -= 1) {
        lengths[i * columns + j] = own[i] === other[j]
          ? lengths[(i + 1) * columns + j + 1] + 1
          : Math.max(lengths[(i + 1) * columns + j], lengths[i * columns + j + 1]);
      }
    }
    const changed = new Set();
    for (let i = 0, j = 0; i < own.length;) {
      if (j < other.length && own[i] === other[j]) { i += 1; j += 1; }
      else if (j < other.length && lengths[i * columns + j + 1] >= lengths[(i + 1) * columns + j]) j += 1;
      else { if (own[i].trim()) changed.add(i); i += 1; }
    }
    return changed;
  };
  const showText = (label, text, against) => {
    const box = make("div", { dir: "auto" });
    if (against !== undefined) {
      const words = splitWords(plain(text));
      const changed = findChanged(words, splitWords(plain(against)));
      words.forEach((word, i) => box.append(changed.has(i) ? make("b", { class: "changed" }, word) : word));
    } else {
      (typeof text === "string" ? [text] : text).forEach((piece) => {
        if (typeof piece === "string") { box.append(piece); return; }
        tips += 1;
        const tip = make("span", { class: "tip", role: "tooltip", id: `explorer-tip-${tips}` },
          ...piece[2].map((note) => make("span", {}, note)));
        box.append(make("mark", { class: piece[1], tabindex: 0, "aria-describedby": tip.id }, piece[0], tip));
      });
    }
    return make("div", { class: "text" }, make("span", { class: "label" }, label), box);
  };
  const showOutput = (output, against) => {
    const scores = make("ul", { class: "scores" });
    explorer.metrics.forEach((metric, i) => {
      const value = output.v[i] === null ? "n/a" : output.v[i].toFixed(metric.decimals);
      scores.append(make("li", {}, `${metric.name} `, make("b", {}, value)));
    });
    Object.entries(output.r || {}).forEach(([aspect, value]) => {
      scores.append(make("li", {}, `people: ${aspect} `, make("b", {}, String(value))));
    });
    const box = make("div", { class: "output" }, make("h4", {}, explorer.systems[output.s]), scores,
      showText("output", output.t, against && against.t));
    Object.entries(output.e || {}).forEach(([metric, said]) => box.append(showText(`${metric} says`, said)));
    return box;
  };
  const showEntry = (output) => {
    const item = explorer.items[output.i];
    const card = make("article", { class: "card" }, make("h3", {}, `item ${item.name}`));
    const other = beside.value === "" ? undefined : byKey.get(`${output.i} ${beside.value}`);
    if (other && other !== output) {
      card.append(make("div", { class: "beside" }, showOutput(output, other), showOutput(other, output)));
    } else card.append(showOutput(output));
    const context = make("details", { class: "context" }, make("summary", {}, "References and source"));
    item.references.forEach((text, i) => context.append(showText(`reference ${i + 1}`, text)));
    if (item.instruction) context.append(showText("instruction", item.instruction));
    if (item.source) context.append(showText("source", item.source));
    if (context.children.length > 1) card.append(context);
    return card;
  };
  const show = () => {
    const words = search.value.trim().toLowerCase();
    let found = explorer.outputs.map((output, i) => i).filter((i) =>
      (system.value === "" || explorer.outputs[i].s === Number(system.value)) && (!words || searchable[i].includes(words)));
    if (order.value) {
      const [metric, sign] = order.value.split(" ").map(Number);
      const value = (i) => explorer.outputs[i].v[metric];
      const scored = found.filter((i) => value(i) !== null);
      scored.sort((a, b) => sign * (value(a) - value(b)));
      found = scored.concat(found.filter((i) => value(i) === null));
    }
    const pages = Math.max(1, Math.ceil(found.length / size));
    page = Math.min(Math.max(page, 0), pages - 1);
    const shown = found.slice(page * size, (page + 1) * size);
    summary.textContent = `${found.length.toLocaleString("en")} of ${explorer.outputs.length.toLocaleString("en")} outputs`
      + (pages > 1 ? `, page ${page + 1} of ${pages}` : "");
    list.replaceChildren(...shown.map((i) => showEntry(explorer.outputs[i])));
    turns.hidden = pages < 2;
    back.disabled = page === 0;
    forth.disabled = page >= pages - 1;
  };
  const restart = () => { page = 0; show(); };
  search.addEventListener("input", restart);
  [system, beside, order].forEach((select) => select.addEventListener("change", restart));
  const turn = (step) => { page += step; show(); root.scrollIntoView(); };
  back.addEventListener("click", () => turn(-1));
  forth.addEventListener("click", () => turn(1));
  show();
})();
