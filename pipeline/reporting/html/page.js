"use strict";
// What a page can do beyond being read: hints at marks, tables that are sorted, filters, light and dark.
(() => {
  const root = document.documentElement, tip = document.getElementById("tip");
  root.classList.add("js");

  // Light and dark.
  const theme = document.getElementById("theme");
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const show = () => { theme.textContent = dark() ? "Light" : "Dark"; theme.setAttribute("aria-pressed", String(dark())); };
  theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; show(); });
  show();

  // Hints: what `title` says, where the pointer is or the focus.
  for (const title of document.querySelectorAll("figure svg title")) {
    title.parentNode.dataset.says = title.textContent;
    if (!title.parentNode.hasAttribute("aria-label")) title.parentNode.setAttribute("aria-label", title.textContent);
    title.remove();
  }
  const hide = () => { tip.hidden = true; };
  const say = (mark, x, y) => {
    tip.textContent = mark.dataset.says;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 4))}px`;
    tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 12) : y + 18}px`;
  };
  addEventListener("pointermove", (event) => {
    const mark = event.target.closest && event.target.closest("[data-says]");
    if (mark) say(mark, event.clientX, event.clientY); else hide();
  });
  const focused = () => {
    const at = document.activeElement, mark = at && at.closest("[data-says]");
    if (!mark) return hide();
    const box = mark.getBoundingClientRect();
    say(mark, box.left + Math.min(box.width, 40), box.top + Math.min(box.height / 2, 60));
  };
  addEventListener("focusin", focused);
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  addEventListener("scroll", focused, { passive: true, capture: true });

  // Of many marks in a drawing one is reached with Tab, the others from there with the arrows.
  const reached = (svg) => {
    const marks = [...svg.querySelectorAll("[tabindex]")];
    marks.forEach((mark, i) => { mark.setAttribute("tabindex", i ? "-1" : "0"); });
    return marks;
  };
  for (const svg of document.querySelectorAll("figure svg")) {
    reached(svg);
    svg.addEventListener("keydown", (event) => {
      const marks = [...svg.querySelectorAll("[tabindex]")];
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const at = marks.indexOf(document.activeElement);
      if (!step || at < 0) return;
      event.preventDefault();
      const next = marks[(at + step + marks.length) % marks.length];
      marks[at].setAttribute("tabindex", "-1");
      next.setAttribute("tabindex", "0");
      next.focus();
    });
  }

  // Tables: a click on a head sorts.
  const value = (row, i) => {
    const cell = row.cells[i];
    if (!cell) return null;
    if (cell.dataset.v !== undefined) return Number(cell.dataset.v);
    return cell.textContent === "–" ? null : cell.textContent;
  };
  const order = (a, b) => {
    if (a === null || b === null) return 0;
    return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
  };
  for (const table of document.querySelectorAll("table[data-sort]")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, i) => {
      if (!head.textContent) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const body = table.tBodies[0];
        body.append(...[...body.rows].sort((a, b) => {
          const x = value(a, i), y = value(b, i);
          if ((x === null) !== (y === null)) return x === null ? 1 : -1;
          return up ? order(x, y) : order(y, x);
        }));
      });
    });
  }

  // Filters: runs that do not fit fade, wherever on the page they are.
  for (const form of document.querySelectorAll(".filters")) {
    const table = form.closest("figure").querySelector("table");
    const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
    const controls = [...form.querySelectorAll("[data-axis]")];
    const rows = [...table.tBodies[0].rows];
    const fits = (row) => controls.every((control) => {
      if (control.value === "") return true;
      const cell = row.cells[heads.indexOf(control.dataset.axis)];
      if (control.tagName === "SELECT") return cell.textContent === control.value;
      if (cell.dataset.v === undefined) return false;
      const here = Number(cell.dataset.v), end = Number(control.value);
      return control.dataset.end === "low" ? here >= end : here <= end;
    });
    const apply = () => {
      const kept = new Set(rows.filter(fits).map((row) => row.dataset.key));
      for (const one of document.querySelectorAll("[data-key]")) one.classList.toggle("faded", !kept.has(one.dataset.key));
      form.querySelector(".count").textContent = `${kept.size} of ${rows.length} runs`;
    };
    form.addEventListener("input", apply);
    form.querySelector(".reset").addEventListener("click", () => {
      for (const control of controls) control.value = "";
      apply();
    });
  }

  // Metrics that are chosen: points lie where the page says that they are on each axis.
  const drawing = (tag, attributes, text) => {
    const one = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, value);
    if (text !== undefined) one.textContent = text;
    return one;
  };
  const LEFT = 60, RIGHT = 14, TOP = 30, BELOW = 40, SMALL = 5, LARGE = 11, STEPS = 7, LETTER = 6.4, NAMED = 12;
  const framed = (x, y, px, py, width, bottom) => {
    const parts = [];
    for (const [at, text] of y.ticks) {
      parts.push(drawing("line", { x1: LEFT, y1: py(at), x2: width - RIGHT, y2: py(at), class: "g" }));
      parts.push(drawing("text", { x: LEFT - 6, y: py(at) + 4, class: "t", "text-anchor": "end" }, text));
    }
    let last = -1e9;
    for (const [at, text] of x.ticks) {
      if (px(at) - last <= LETTER * text.length + 8) continue;
      last = px(at);
      parts.push(drawing("line", { x1: last, y1: bottom, x2: last, y2: bottom + 4, class: "a" }));
      parts.push(drawing("text", { x: last, y: bottom + 17, class: "t", "text-anchor": "middle" }, text));
    }
    parts.push(drawing("line", { x1: LEFT, y1: bottom, x2: width - RIGHT, y2: bottom, class: "a" }));
    parts.push(drawing("text", { x: width - RIGHT, y: bottom + 34, class: "l", "text-anchor": "end" }, x.title));
    parts.push(drawing("text", { x: 4, y: 14, class: "l" }, y.title));
    return parts;
  };
  const named = (name, [x, y], taken, width, bottom) => {
    const most = Math.floor(190 / LETTER), head = Math.floor((most - 1) / 3);
    const text = name.length > most ? `${name.slice(0, head)}…${name.slice(name.length - most + 1 + head)}` : name;
    const long = LETTER * text.length;
    for (const [dx, dy] of [[14, -8], [14, 16], [-14 - long, -8], [-14 - long, 16], [-long / 2, -16], [-long / 2, 26]]) {
      const box = [x + dx, y + dy - 11, x + dx + long, y + dy + 3];
      const inside = box[0] >= 56 && box[2] <= width && box[1] >= 18 && box[3] <= bottom;
      if (inside && taken.every((t) => box[2] < t[0] || t[2] < box[0] || box[3] < t[1] || t[3] < box[1])) {
        taken.push(box);
        return [drawing("text", { x: box[0], y: y + dy, class: "t halo" }, text)];
      }
    }
    return [];
  };
  for (const form of document.querySelectorAll(".choosing")) {
    const figure = form.closest("figure"), axes = JSON.parse(form.dataset.axes), table = figure.querySelector("table");
    const rows = [...table.tBodies[0].rows], heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
    const selects = [...form.querySelectorAll("select")], legend = figure.querySelector(".legend");
    const draw = () => {
      const [x, y, z] = selects.map((select) => (select.value === "" ? null : axes[Number(select.value)]));
      const chosen = z ? [x, y, z] : [x, y];
      const have = rows.map((_, i) => i).filter((i) => chosen.every((axis) => axis.at[i] !== null));
      const beats = (i, j) => chosen.every((a) => a.sign * a.at[i] <= a.sign * a.at[j]) && chosen.some((a) => a.at[i] !== a.at[j]);
      const best = new Set(have.filter((j) => !have.some((i) => beats(i, j))));
      const ends = z && [Math.min(...z.at.filter((v) => v !== null)), Math.max(...z.at.filter((v) => v !== null))];
      const share = (i) => (z ? (z.at[i] - ends[0]) / (ends[1] - ends[0]) : 0.4);
      const says = (i) => {
        const cell = (axis) => `${axis.name} ${rows[i].cells[heads.indexOf(axis.name)].textContent}`;
        return `${rows[i].dataset.key}: ${chosen.map(cell).join(", ")}${best.has(i) ? ", no other beats it" : ""}`;
      };
      rows.forEach((row, i) => { row.cells[heads.length - 1].textContent = best.has(i) ? "no other beats it" : "–"; });
      for (const svg of figure.querySelectorAll(".drawn svg")) {
        const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number), bottom = height - BELOW;
        const px = (at) => LEFT + (width - RIGHT - LEFT) * at, py = (at) => bottom + (TOP - bottom) * at;
        const parts = framed(x, y, px, py, width, bottom);
        if (!z) {
          const line = [...best].sort((a, b) => x.at[a] - x.at[b]).map((i, n) => `${n ? "L" : "M"}${px(x.at[i])} ${py(y.at[i])}`);
          parts.push(drawing("path", { d: line.join(" "), class: "front", fill: "none" }));
        }
        const taken = have.map((i) => [px(x.at[i]) - LARGE, py(y.at[i]) - LARGE, px(x.at[i]) + LARGE, py(y.at[i]) + LARGE]);
        if (have.length <= NAMED) for (const i of have) parts.push(...named(rows[i].dataset.key, [px(x.at[i]), py(y.at[i])], taken, width, bottom));
        for (const i of [...have].sort((a, b) => share(b) - share(a))) {
          const place = { cx: px(x.at[i]), cy: py(y.at[i]) }, step = z ? `h${Math.min(STEPS - 1, Math.floor(share(i) * STEPS))}` : "c0";
          const point = drawing("g", { class: "point", tabindex: "-1", role: "img", "aria-label": says(i), "data-key": rows[i].dataset.key, "data-says": says(i) });
          point.append(drawing("circle", { ...place, r: LARGE + 3, class: "ring" }));
          point.append(drawing("circle", { ...place, r: SMALL + (LARGE - SMALL) * share(i), class: `m bubble ${step}${best.has(i) ? " best" : ""}` }));
          parts.push(point);
        }
        svg.replaceChildren(...parts);
        svg.setAttribute("aria-label", `${y.name} over ${x.name}${z ? `, with ${z.name}` : ""}, of ${have.length} runs`);
        reached(svg);
      }
      legend.hidden = !z;
      if (z) for (const [end, text] of [["name", z.name], ["low", z.ends[0]], ["high", z.ends[1]]]) legend.querySelector(`[data-end=${end}]`).textContent = text;
      for (const filters of document.querySelectorAll(".filters")) filters.dispatchEvent(new Event("input"));
    };
    form.addEventListener("input", draw);
    addEventListener("pageshow", draw); // what a browser keeps chosen when a page is opened again
  }

  // Links into what is folded open it.
  const reveal = () => {
    const there = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let at = there; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    if (there) there.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  reveal();

  // Printed: what is folded is opened, but for long tables; afterwards as before.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")].filter((d) => !d.classList.contains("long"));
    for (const d of opened) d.open = true;
  });
  addEventListener("afterprint", () => { for (const d of opened) d.open = false; });
})();
