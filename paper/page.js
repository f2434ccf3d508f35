"use strict";

// Where a number comes from, and the reference behind a citation: beside what has the pointer or the focus.
(function () {
  const tip = document.getElementById("tip");
  let shown = null;
  function place() {
    const at = shown.getBoundingClientRect();
    const size = tip.getBoundingClientRect();
    const below = at.bottom + 6;
    tip.style.left = Math.max(8, Math.min(at.left, document.documentElement.clientWidth - size.width - 8)) + "px";
    tip.style.top = (below + size.height > window.innerHeight ? Math.max(8, at.top - size.height - 6) : below) + "px";
  }
  function show(target, nodes) {
    tip.replaceChildren(...nodes);
    tip.hidden = false;
    shown = target;
    place();
  }
  function hide() {
    tip.hidden = true;
    shown = null;
  }
  function attach(target, events, nodes) {
    for (const event of events) target.addEventListener(event, () => show(target, nodes()));
    target.addEventListener("mouseleave", hide);
    target.addEventListener("blur", hide);
  }
  for (const link of document.querySelectorAll(".cite a")) {
    const entry = document.getElementById(link.getAttribute("href").slice(1));
    attach(link, ["mouseenter", "focus"], () => Array.from(entry.childNodes, (node) => node.cloneNode(true)));
  }
  // The browser itself shows a title under the pointer; for the focus and for fingers it is shown here.
  for (const number of document.querySelectorAll(".n")) attach(number, ["focus", "click"], () => [number.title]);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  document.addEventListener("scroll", () => { if (shown) place(); }, { passive: true });
})();

// Contents: beside the text where there is room for them, else folded into a line above it. They follow the reader.
(function () {
  const nav = document.querySelector("nav");
  const list = nav.querySelector("details");
  const here = nav.querySelector("[data-part=here]");
  const links = Array.from(nav.querySelectorAll("a"));
  const places = links.map((link) => document.getElementById(link.getAttribute("href").slice(1)));
  const roomy = window.matchMedia("(min-width: 78rem)");
  let marked = null;
  function follow() {
    const top = nav.getBoundingClientRect().height * !roomy.matches + 0.25 * window.innerHeight;
    const link = links[places.findLastIndex((place) => place.getBoundingClientRect().top < top)];
    if (link === marked) return;
    if (marked) marked.removeAttribute("aria-current");
    if (link) link.setAttribute("aria-current", "true");
    if (link && roomy.matches) nav.scrollTop = link.offsetTop - nav.clientHeight / 2;
    here.textContent = link ? ": " + link.textContent : "";
    marked = link;
  }
  function unfold() { list.open = roomy.matches; }
  // A link into an appendix or the references opens them.
  function open() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let one = target; one; one = one.parentElement) if (one.tagName === "DETAILS") one.open = true;
    if (target) target.scrollIntoView();
  }
  roomy.addEventListener("change", unfold);
  for (const link of links) link.addEventListener("click", unfold);
  window.addEventListener("hashchange", open);
  document.addEventListener("scroll", follow, { passive: true });
  window.addEventListener("resize", follow);
  unfold();
  follow();
  if (location.hash) open();
})();
