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
  for (const svg of document.querySelectorAll("figure svg")) {
    const marks = [...svg.querySelectorAll("[tabindex]")];
    marks.forEach((mark, i) => { if (i) mark.setAttribute("tabindex", "-1"); });
    svg.addEventListener("keydown", (event) => {
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
