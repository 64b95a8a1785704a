// What a reader sees of the page that is open. Each function returns a list of faults, in words.
globalThis.seen = (() => {
  const ROOM_PX = 1;  // positions are rounded to device pixels
  const round = box => [box.left, box.top, box.right, box.bottom].map(Math.round).join(" ");
  const hides = overflow => overflow === "hidden" || overflow === "clip";

  // The part of `box` that can be brought into sight: an ancestor that scrolls takes it all.
  const cutAt = (element, box) => {
    for (let up = element.parentElement; up !== document.documentElement; up = up.parentElement) {
      const style = getComputedStyle(up);
      const outer = up.getBoundingClientRect();
      const across = box.left < outer.left - ROOM_PX || box.right > outer.right + ROOM_PX;
      const down = box.top < outer.top - ROOM_PX || box.bottom > outer.bottom + ROOM_PX;
      if ((across && hides(style.overflowX)) || (down && hides(style.overflowY))) return up;
      const scrolls = ["auto", "scroll"];
      if (scrolls.includes(style.overflowX)) box = new DOMRect(outer.x, box.y, outer.width, box.height);
      if (scrolls.includes(style.overflowY)) box = new DOMRect(box.x, outer.y, box.width, outer.height);
    }
    const page = document.documentElement;
    const outside = box.left < -ROOM_PX || box.right > page.clientWidth + ROOM_PX
      || box.top + scrollY < -ROOM_PX || box.bottom + scrollY > page.scrollHeight + ROOM_PX;
    return outside ? page : null;
  };

  const wide = () => {
    const page = document.documentElement;
    if (page.scrollWidth <= page.clientWidth) return [];
    const out = [...document.body.querySelectorAll("*")]
      .filter(e => e.getBoundingClientRect().right > page.clientWidth && !e.closest(".scroll"));
    return [`${page.scrollWidth} px in ${page.clientWidth}: ${out[0]?.outerHTML.slice(0, 80)}`];
  };

  // Where the parts of a figure can be seen: its own box, or all that its frame scrolls over.
  const sheetOf = svg => {
    const box = svg.getBoundingClientRect();
    const frame = svg.closest(".scroll");
    if (getComputedStyle(svg).overflowX !== "visible" || !frame) return box;
    const outer = frame.getBoundingClientRect();
    return new DOMRect(outer.left - frame.scrollLeft, box.top, frame.scrollWidth, box.height);
  };

  const hiddenFigures = () => [...document.querySelectorAll("figure")].flatMap(figure => {
    const name = figure.id || "figure";
    const svg = figure.querySelector("svg, img");
    if (!svg) return [`${name}: empty`];
    const box = svg.getBoundingClientRect();
    if (box.width < 50 || box.height < 20) return [`${name}: ${round(box)}`];
    if (!svg.checkVisibility({opacityProperty: true, visibilityProperty: true})) return [`${name}: hidden`];
    const cut = cutAt(svg, box);
    if (cut) return [`${name}: cut off by ${cut.tagName.toLowerCase()}.${cut.className}`];
    const sheet = sheetOf(svg);
    return [...svg.querySelectorAll("text")].flatMap(text => {
      const own = text.getBoundingClientRect();
      const out = own.left < sheet.left - ROOM_PX || own.right > sheet.right + ROOM_PX
        || own.top < sheet.top - ROOM_PX || own.bottom > sheet.bottom + ROOM_PX;
      return out ? [`${name}: ${text.textContent.trim()} leaves the figure`] : [];
    });
  });

  // The head of a row stays in sight while the other cells scroll under it.
  const wideRowHeads = () => [...document.querySelectorAll("tbody")].flatMap(body => {
    const head = body.querySelector("th");
    if (!head || getComputedStyle(head).position !== "sticky") return [];
    const frame = body.closest(".scroll");
    const room = frame.clientWidth;
    if (frame.scrollWidth <= room) return [];
    const taken = head.getBoundingClientRect().width;
    return taken > 0.6 * room ? [`${head.innerText}: ${taken} of ${room} px`] : [];
  });

  // Cells of words that are so narrow that words are cut into letters.
  const cutWords = () => [...document.querySelectorAll("tbody th, tbody td")].flatMap(cell => {
    const style = getComputedStyle(cell);
    const room = cell.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    const lines = cell.clientHeight / parseFloat(style.lineHeight);
    const text = cell.innerText.trim();
    const few = 4 * parseFloat(style.fontSize);
    return text.length > 8 && room < few && lines > 2 ? [`${text}: ${room} px wide`] : [];
  });

  const luminance = colour => {
    const [r, g, b] = colour.match(/[\d.]+/g).map(Number).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, two) => {
    const [dark, light] = [luminance(one), luminance(two)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  // What lies under the middle of a text: a filled shape of the figure, or the card that it is on.
  const groundOf = text => {
    text.scrollIntoView({behavior: "instant", block: "center"});  // only what is seen can be asked for
    const box = text.getBoundingClientRect();
    const under = document.elementsFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    for (const element of under) {
      if (element === text || text.contains(element) || element.tagName === "text") continue;
      const style = getComputedStyle(element);
      const fill = element.closest("svg") && element.tagName !== "svg" ? style.fill : style.backgroundColor;
      const opaque = style.opacity === "1" && style.fillOpacity === "1";
      if (opaque && /^rgb\(/.test(fill)) return fill;
    }
    return getComputedStyle(document.body).backgroundColor;
  };
  // WCAG 2 asks for 4.5 of text. Its other judges leave the text of an SVG out.
  const paleFigures = () => [...document.querySelectorAll("figure svg")].flatMap(svg => {
    const name = svg.closest("figure").id;
    return [...svg.querySelectorAll("text")].flatMap(text => {
      const ratio = contrast(getComputedStyle(text).fill, groundOf(text));
      return ratio < 4.5 ? [`${name}: ${text.textContent.trim()}: ${ratio.toFixed(1)} to 1`] : [];
    });
  });

  const rowsOf = table => [...table.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.innerText.trim()));
  // Texts in the order of a dictionary, numbers inside them as numbers; empty cells last.
  const collator = new Intl.Collator("en", {numeric: true});
  const inOrder = (texts, sign) => {
    const full = texts.filter(text => text !== "" && text !== "—");
    return full.every((text, i) => text === texts[i])
      && full.every((text, i) => i === 0 || sign * collator.compare(full[i - 1], text) <= 0);
  };
  // What a table shows after each head was clicked once, and again.
  const sortedByEach = table => {
    const heads = [...table.tHead.rows[0].cells];
    heads[0].removeAttribute("aria-sort");
    return heads.flatMap((head, column) => [["ascending", 1], ["descending", -1]].map(([order, sign]) => {
      head.querySelector("button").click();
      const rows = rowsOf(table);
      return {
        column, order, rows,
        head: head.querySelector("button").textContent,
        number: head.classList.contains("number"),
        in_order: inOrder(rows.map(row => row[column]), sign),
        said: heads.map(cell => cell.getAttribute("aria-sort")),
      };
    }));
  };

  return {wide, hiddenFigures, wideRowHeads, cutWords, paleFigures, rowsOf, sortedByEach};
})();
