"use strict";
// Keeps the page current, and lets SQL be copied. Without it the page is as it was when it was opened.
const main = document.querySelector("main");
const dark = () => {
  let root = document.documentElement;
  try { root = window.parent.document.documentElement; } catch { /* not in Airflow's frame */ }
  document.documentElement.classList.toggle("dark", root.classList.contains("dark"));
  document.documentElement.classList.toggle("light", root.classList.contains("light"));
};
const copied = async (code) => {
  try {
    await navigator.clipboard.writeText(code.textContent.trim());
    return true;
  } catch { // a frame may not, or the page did not come by https
    getSelection().selectAllChildren(code);
    const done = document.execCommand("copy");
    if (done) getSelection().removeAllRanges();
    return done;
  }
};
const buttons = () => main.querySelectorAll("pre.copy").forEach((pre) => {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    if (await copied(pre.querySelector("code"))) button.textContent = "Copied";
  });
  pre.append(button);
});
// What has the keyboard's focus, to be found again: a control by its words within its section.
const controls = () => [...main.querySelectorAll("a, button, summary")];
const known = (one) => `${one?.closest("[id]")?.id} ${one?.textContent} ${one?.getAttribute("href")}`;
// Nobody's half-written note, open question or marked text is taken away.
const busy = () => document.hidden || main.querySelector("details.ask[open]") || String(getSelection());
const again = async () => {
  dark();
  if (busy()) return;
  try {
    const url = new URL(location.href);
    url.searchParams.set("part", "");
    const answer = await fetch(url, { credentials: "same-origin" });
    if (answer.ok && !busy()) {
      const focused = main.contains(document.activeElement) && known(document.activeElement);
      const open = [...main.querySelectorAll("details[id][open]")].map((one) => one.id);
      main.innerHTML = await answer.text();
      buttons();
      open.forEach((id) => document.getElementById(id)?.setAttribute("open", ""));
      if (focused) controls().find((one) => known(one) === focused)?.focus({ preventScroll: true });
    }
    main.classList.toggle("stale", !answer.ok);
  } catch {
    main.classList.add("stale");
  }
};
// A question is left by Escape, and taken for no other.
main.addEventListener("keydown", (event) => {
  const asked = event.key === "Escape" && event.target.closest("details.ask[open]");
  if (asked) {
    asked.removeAttribute("open");
    asked.querySelector("summary").focus();
  }
});
dark();
buttons();
setInterval(again, 1000 * Number(document.body.dataset.refresh));
