// What a reader sees of the page, as it is opened or with all that can be unfolded: called in the
// browser by the test.
(isUnfolded) => {
  if (isUnfolded) for (const details of document.querySelectorAll("details")) details.open = true;

  const inside = (inner, outer) =>
    inner.left >= outer.left - 1 && inner.right <= outer.right + 1 &&
    inner.top >= outer.top - 1 && inner.bottom <= outer.bottom + 1;
  const isSeen = (element) => {
    const box = element.getBoundingClientRect();
    return element.checkVisibility({ opacityProperty: true, visibilityProperty: true }) &&
      box.width > 2 && box.height > 2 && box.left >= 0 && box.right <= innerWidth + 1 &&
      inside(box, element.closest("svg").getBoundingClientRect());
  };

  // Every mark of the pictures of workloads, which show more than the overview.
  const marks = [...document.querySelectorAll("[data-series] .mark")]
    .filter((mark) => !mark.closest("#overview"))
    .map((mark) => {
      const series = mark.closest("[data-series]");
      const color = getComputedStyle(series).color;
      return { ...series.dataset, ...mark.dataset, isSeen: isSeen(mark), color };
    });

  const channel = (part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  const parse = (color) => color.match(/[\d.]+/g).map(Number);
  const luminance = ([red, green, blue]) =>
    0.2126 * channel(red / 255) + 0.7152 * channel(green / 255) + 0.0722 * channel(blue / 255);
  const contrast = (one, other) => {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const faint = [], cut = [], tiny = [], mixed = [];
  const texts = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    const isText = texts.currentNode.data.trim() !== "" &&
      !element.closest("head, style, title, desc");
    if (!isText || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const isDrawn = element.ownerSVGElement != null;
    const color = parse(isDrawn ? style.fill : style.color);
    const ratio = contrast(color, ground(element));
    if (ratio < 4.5) faint.push(`${element.textContent}: ${ratio.toFixed(2)}`);
    if (!isDrawn && parseFloat(style.fontSize) < 12) tiny.push(element.textContent);
    if (isDrawn) {
      const svg = element.closest("svg").getBoundingClientRect();
      const box = element.getBoundingClientRect();
      if (!inside(box, svg)) cut.push(element.textContent);
      const size = parseFloat(style.fontSize);
      if (size < 11) tiny.push(element.textContent);
    }
  }
  // No two texts of a picture on one another.
  for (const svg of document.querySelectorAll("svg[role=img]")) {
    const boxes = [...svg.querySelectorAll("text")].map((text) => {
      const { left, right, top, bottom } = text.getBoundingClientRect();
      return { left, right, top: top + 2, bottom: bottom - 2, text: text.textContent };
    });
    boxes.forEach((one, at) => boxes.slice(at + 1).forEach((other) => {
      const meet = one.left < other.right && other.left < one.right &&
        one.top < other.bottom && other.top < one.bottom;
      if (meet) mixed.push(`${svg.querySelector("title").textContent}: ${one.text} / ${other.text}`);
    }));
  }
  const unnamed = [...document.querySelectorAll("svg:not([aria-hidden])")].filter((svg) =>
    svg.getAttribute("role") !== "img" || !svg.querySelector("title")?.textContent ||
    !svg.querySelector("desc")?.textContent);
  return {
    marks, faint, cut, tiny, mixed,
    unnamed: unnamed.length,
    scripts: document.querySelectorAll("script").length,
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    ground: getComputedStyle(document.body ?? document.documentElement).backgroundColor,
    text: document.body?.innerText ?? document.documentElement.textContent,
  };
}
