"use strict";
// Keeps the page current, and lets SQL be copied. Without it the page is as it was when it was opened.
const main = document.querySelector("main");
const dark = () => {
  let root = document.documentElement;
  try { root = window.parent.document.documentElement; } catch { /* not in Airflow's frame */ }
  document.documentElement.classList.toggle("dark", root.classList.contains("dark"));
  document.documentElement.classList.toggle("light", root.classList.contains("light"));
};
const buttons = () => main.querySelectorAll("pre.copy").forEach((pre) => {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(pre.querySelector("code").textContent.trim());
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(pre.querySelector("code"));
    }
  });
  pre.append(button);
});
// Nobody's half-written note, open question or marked text is taken away.
const busy = () => document.hidden || main.querySelector("details[open]") || String(getSelection());
const again = async () => {
  dark();
  if (busy()) return;
  try {
    const url = new URL(location.href);
    url.search = "part";
    const answer = await fetch(url, { credentials: "same-origin" });
    if (answer.ok && !busy()) {
      const focused = document.activeElement && document.activeElement.getAttribute("href");
      main.innerHTML = await answer.text();
      buttons();
      if (focused) main.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus();
    }
    main.classList.toggle("stale", !answer.ok);
  } catch {
    main.classList.add("stale");
  }
};
dark();
buttons();
setInterval(again, 1000 * Number(document.body.dataset.refresh));
