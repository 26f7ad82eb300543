// Shows foreign text, which models, tools and users wrote. It is never read as HTML.
//
// Characters that could deceive a reader are shown as small labels: those that change the direction of writing, have no
// width, or end a string in C, and halves of surrogate pairs. Terminal colours are removed.
(() => {
  "use strict";
  const { html } = hrm;
  const { useState, useRef, useLayoutEffect, useMemo } = hrm.hooks;

  // CSI and OSC sequences, and single escapes.
  // eslint-disable-next-line no-control-regex
  const ANSI = /\u001b\[[0-9;:<=>?]*[ -/]*[@-~]|\u001b\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|\u001b[@-Z\\-_]/g;
  // eslint-disable-next-line no-control-regex
  const ODD = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]|[\u{e0000}-\u{e007f}]/gu;
  const NAMES = {
    0x00: "NUL", 0x07: "BEL", 0x08: "BS", 0x0d: "CR", 0x1b: "ESC", 0x7f: "DEL", 0xad: "SHY", 0x61c: "ALM", 0x200b: "ZWSP", 0x200c: "ZWNJ",
    0x200d: "ZWJ", 0x200e: "LRM", 0x200f: "RLM", 0x2028: "LS", 0x2029: "PS", 0x202a: "LRE", 0x202b: "RLE", 0x202c: "PDF", 0x202d: "LRO",
    0x202e: "RLO", 0x2060: "WJ", 0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI", 0xfeff: "BOM",
  };

  function code_point(character) {
    const point = character.codePointAt(0);
    const number = `U+${point.toString(16).toUpperCase().padStart(4, "0")}`;
    return { label: NAMES[point] || number, number };
  }

  function plain(value) {
    return String(value).replace(ANSI, "").replace(/\r\n/g, "\n");
  }

  // A joiner inside an emoji is not shown as a label.
  const JOINED = /\p{Extended_Pictographic}\ufe0f?\u200d(?=\p{Extended_Pictographic})/gu;

  // Pieces of a text: strings, and labels for characters that cannot be seen.
  function pieces(value) {
    const text = plain(value);
    ODD.lastIndex = 0;
    if (!ODD.test(text)) return [text];
    ODD.lastIndex = 0; // matchAll begins at lastIndex, which the test has moved
    const fine = new Set();
    for (const match of text.matchAll(JOINED)) fine.add(match.index + match[0].length - 1);
    const parts = [];
    let end = 0;
    let same = 0;
    const matches = [...text.matchAll(ODD)].filter((match) => !fine.has(match.index));
    matches.forEach((match, index) => {
      if (match.index > end) parts.push(text.slice(end, match.index));
      end = match.index + match[0].length;
      const next = matches[index + 1];
      same += 1;
      // A run of the same character gets one label.
      if (next && next.index === end && next[0] === match[0]) return;
      const { label, number } = code_point(match[0]);
      parts.push(html`<span class="chip" title=${number}>${label}${same > 1 ? `×${same}` : ""}</span>`);
      same = 0;
    });
    if (end < text.length) parts.push(text.slice(end));
    return parts;
  }

  // A short name for places that cannot show labels, such as a canvas or an attribute.
  function short_name(value, most = 24) {
    const text = plain(value).replace(ODD, "·");
    return text.length > most ? `${text.slice(0, most - 1)}…` : text;
  }

  // <Text of=...>: a short piece of foreign text within a line. `clip` cuts it, the title has the rest. `of` may also
  // be a text that the server has cut ({text, chars, cut}).
  function Text({ of, clip, class: name }) {
    if (of && typeof of === "object") of = `${of.text ?? ""}${of.cut ? "…" : ""}`;
    if (of === null || of === undefined || of === "") return html`<span class="none">–</span>`;
    const text = String(of);
    if (clip && text.length > clip)
      return html`<bdi class=${name} title=${plain(text).slice(0, 2000)}>${pieces(text.slice(0, clip))}…</bdi>`;
    return html`<bdi class=${name}>${pieces(text)}</bdi>`;
  }

  // Only this policy makes HTML, and only from text that highlight.js has escaped.
  const policy = globalThis.trustedTypes
    ? trustedTypes.createPolicy("hrm-highlight", { createHTML: (made) => made })
    : { createHTML: (made) => made };
  const COLOURED = 65536;

  function highlighted(code, language) {
    const made = hljs.highlight(plain(code), { language, ignoreIllegals: true }).value;
    // Labels as in plain text. The highlighter's tags have none of these characters.
    const labelled = made.replace(ODD, (character) => {
      const { label, number } = code_point(character);
      return `<span class="chip" title="${number}">${label}</span>`;
    });
    return policy.createHTML(labelled);
  }

  // <Code code=... lang="python"|"json">: a block of code, coloured if it is not too long.
  function Code({ code, lang }) {
    const node = useRef(null);
    const text = String(code ?? "");
    const coloured = lang && text.length <= COLOURED && hljs.getLanguage(lang);
    useLayoutEffect(() => {
      if (coloured) node.current.innerHTML = highlighted(text, lang);
    }, [text, lang, coloured]);
    if (coloured) return html`<pre class="code" tabindex="0"><code key=${`${lang} ${text}`} ref=${node} dir="ltr"></code></pre>`;
    return html`<pre class="code" tabindex="0"><code key="plain" dir="auto">${pieces(text)}</code></pre>`;
  }

  // <Cut value={text, chars, cut, blob} place=... lang=...>: a text that the server may have cut, with its rest on demand.
  function Cut({ value, place, lang, empty = "empty" }) {
    const [more, set_more] = useState({ text: "", next: null, error: null, asked: false, busy: false });
    const given = value === null || value === undefined || typeof value === "string" ? { text: value, cut: false } : value;
    const blob = useMemo(() => JSON.stringify(given.blob || null), [given.blob]);
    if (given.text === null || given.text === undefined) return html`<span class="none">not recorded</span>`;
    if (given.text === "") return html`<span class="none">${empty}</span>`;
    const text = more.asked ? more.text : given.text;
    const left = given.cut && (!more.asked || more.next !== null);
    const load = async () => {
      set_more({ ...more, busy: true });
      try {
        const piece = await hrm.api.get("blob", { place, ...JSON.parse(blob), from: more.asked ? more.next : 0 });
        set_more({ text: (more.asked ? more.text : "") + piece.text, next: piece.next, error: null, asked: true, busy: false });
      } catch (error) {
        set_more({ ...more, error, busy: false });
      }
    };
    const shown = lang ? html`<${Code} code=${text} lang=${lang} />` : html`<pre class="prose" dir="auto">${pieces(text)}</pre>`;
    return html`<div class="cut">
      ${shown}
      ${left &&
      html`<button class="quiet" onClick=${load} disabled=${more.busy}>
        ${more.busy ? "Loading" : "More"} <small>(${text.length.toLocaleString("en")} of ${given.chars.toLocaleString("en")} characters shown)</small>
      </button>`}
      ${more.error && html`<${hrm.ui.Problem} error=${more.error} />`}
    </div>`;
  }

  // A link with a foreign address: http(s) only, shown in full, and the other page learns nothing about this page.
  function Outside({ url, children }) {
    if (!/^https?:\/\//i.test(url || "")) return html`<${Text} of=${children || url} />`;
    return html`<a href=${url} target="_blank" rel="noopener noreferrer" title=${url}>${children || html`<${Text} of=${url} />`}</a>`;
  }

  Object.assign(hrm.ui, { Text, Code, Cut, Outside, pieces, plain, short_name });
})();
