// Beside the folders of all versions, and loaded by the pages of each: shows the version, and leads to the start of another one.
{
  const root = new URL(".", document.currentScript.src).href;
  const shown = location.href.slice(root.length).split("/")[0];
  const title = document.querySelector(".md-header__title");
  if (title && location.href.startsWith(root)) {
    const choice = document.createElement("select");
    choice.className = "versions";
    choice.setAttribute("aria-label", "Version");
    for (const version of VERSIONS) choice.add(new Option(version, version, false, version === shown));
    choice.addEventListener("change", () => { location.href = `${root}${choice.value}/index.html`; });
    title.after(choice);
  }
}
