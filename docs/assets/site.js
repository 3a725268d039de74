// Tables and pictures that are wider than the page scroll in a box, which the keyboard reaches, too. The theme makes those of tables.
function reachable() {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset p:has(> .threat)")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
new MutationObserver(reachable).observe(document.body, { childList: true, subtree: true });
addEventListener("load", reachable);
addEventListener("resize", reachable);
