// What scrolls gets the focus by the tab key, so that arrow keys move it; and the buttons beside code are no landmarks of the page.
const article = document.querySelector("article");
function mark() {
  for (const part of article.querySelectorAll("pre > code, .md-typeset__scrollwrap")) {
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
    else part.removeAttribute("tabindex");
  }
  for (const part of document.querySelectorAll(".md-nav--secondary .md-nav")) {
    part.removeAttribute("aria-label"); // a part of the contents: two may have the same name
    part.setAttribute("role", "none");
  }
  for (const buttons of article.querySelectorAll("nav.md-code__nav")) buttons.setAttribute("role", "none");
}
if (article) {
  new ResizeObserver(() => setTimeout(mark, 100)).observe(article); // the theme sets margins of code at its own time
  new MutationObserver(mark).observe(article, { childList: true, subtree: true }); // the theme wraps tables and adds buttons
}
