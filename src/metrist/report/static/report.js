import { element, safeName } from "/static/elements.js";
import { drawContext, drawOutput, drawReasons, markedBox, part } from "/static/output_card.js";

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

  // ---- Tables whose rows can be sorted and filtered

  const readNumber = (text) => (text === "∞" ? Infinity : parseFloat(text.replaceAll(",", "")));
  document.querySelectorAll("button[data-sort]").forEach((button) => {
    const head = button.closest("th");
    const body = head.closest("table").tBodies[0];
    const isNumber = head.classList.contains("right");
    button.addEventListener("click", () => {
      const [usual, other] = isNumber ? ["descending", "ascending"] : ["ascending", "descending"];
      const order = head.ariaSort === usual ? other : usual;
      [...head.parentElement.cells].forEach((cell) => cell.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const rows = [...body.rows].map((row) => [row.cells[head.cellIndex].textContent.trim(), row]);
      rows.sort(([first], [second]) => {
        if (!isNumber) return sign * first.localeCompare(second, "en", { numeric: true });
        const [a, b] = [readNumber(first), readNumber(second)];
        // Cells without a number come last.
        return Number.isNaN(a) || Number.isNaN(b) ? Number.isNaN(a) - Number.isNaN(b) : sign * (a > b) - sign * (a < b);
      });
      body.append(...rows.map(([, row]) => row));
    });
  });
  document.querySelectorAll("input[data-filter]").forEach((input) => {
    const body = document.getElementById(input.dataset.filter).closest("table").tBodies[0];
    input.addEventListener("input", () => {
      const words = input.value.trim().toLowerCase();
      [...body.rows].forEach((row) => { row.hidden = !row.textContent.toLowerCase().includes(words); });
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

  // ---- All outputs

  const explorer = data.explorer;
  if (!explorer) return;
  const size = 5;
  const root = document.getElementById("explorer");
  const filters = element("div", { class: "filters" });
  const choice = (label, options) => {
    const select = element("select", {}, options.map(([value, text]) => element("option", { value: String(value) }, safeName(text))));
    filters.append(element("label", {}, label, select));
    return select;
  };
  const search = element("input", { type: "search" });
  filters.append(element("label", {}, "Search in texts and items", search));
  const systems = explorer.systems.map((name, i) => [i, name]);
  const system = choice("System", [["", "all"], ...systems]);
  const beside = choice("Beside it", [["", "nothing"], ...systems]);
  const order = choice("Order", [["", "as in the input"]].concat(
    explorer.metrics.flatMap((metric, i) => metric.better === null
      ? [[`${i} 1`, `${metric.name}: lowest first`], [`${i} -1`, `${metric.name}: highest first`]]
      : [[`${i} ${metric.better}`, `${metric.name}: worst first`], [`${i} ${-metric.better}`, `${metric.name}: best first`]]),
  ));
  const summary = element("p", { class: "soft", role: "status" });
  const list = element("div");
  const back = element("button", { type: "button" }, "Previous");
  const forth = element("button", { type: "button" }, "Next");
  const turns = element("div", { class: "tools" }, back, forth);
  root.append(filters, summary, list, turns);
  let page = 0;

  const cards = explorer.outputs.map((output) => ({ errors: [], passages: [], said: [], ...explorer.items[output.i], ...output }));
  const byKey = new Map(cards.map((card) => [`${card.i} ${card.s}`, card]));
  const searchable = cards.map((card) => [card.name, card.output, card.source ?? "", ...card.references].join("\n").toLowerCase());

  const drawScores = (card) => {
    const scores = explorer.metrics.map((metric, i) => [metric.name, card.v[i]?.toFixed(metric.decimals) ?? "n/a"]);
    const ratings = Object.entries(card.ratings).map(([aspect, value]) => [`people: ${aspect}`, String(value)]);
    return element("ul", { class: "scores" }, [...scores, ...ratings].map(([name, value]) =>
      element("li", {}, `${safeName(name)} `, element("b", {}, value))));
  };
  const drawCard = (card) => {
    const other = beside.value === "" ? undefined : byKey.get(`${card.i} ${beside.value}`);
    const against = other === card ? null : other;
    const context = drawContext({ ...card, instruction: null });
    return element("article", { class: "card" },
      element("h3", {}, `item ${safeName(card.name)} · system ${safeName(explorer.systems[card.s])}`),
      card.instruction ? part("Instruction", markedBox(card.instruction)) : null,
      drawScores(card),
      drawOutput(card, against, { name: against ? explorer.systems[against.s] : "" }),
      drawReasons(card),
      context.length ? element("details", { class: "context" }, element("summary", {}, "References and source"), context) : null);
  };
  const show = () => {
    const words = search.value.trim().toLowerCase();
    let found = cards.filter((card, i) =>
      (system.value === "" || card.s === Number(system.value)) && (!words || searchable[i].includes(words)));
    if (order.value) {
      const [metric, sign] = order.value.split(" ").map(Number);
      const scored = found.filter((card) => card.v[metric] !== null);
      scored.sort((first, second) => sign * (first.v[metric] - second.v[metric]));
      found = scored.concat(found.filter((card) => card.v[metric] === null));
    }
    const pages = Math.max(1, Math.ceil(found.length / size));
    page = Math.min(Math.max(page, 0), pages - 1);
    summary.textContent = `${found.length.toLocaleString("en")} of ${cards.length.toLocaleString("en")} outputs`
      + (pages > 1 ? `, page ${page + 1} of ${pages}` : "");
    list.replaceChildren(...found.slice(page * size, (page + 1) * size).map(drawCard));
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
