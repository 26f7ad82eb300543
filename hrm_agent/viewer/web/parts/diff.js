/* Word by word differences of two texts, and their view: removed words are struck through, added words are
   underlined. */
(() => {
  "use strict";

  // Maximum number of words of the differing middle that are aligned. A longer middle is shown as removed and added.
  const MOST = 1500;

  const words = (text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) || [];

  /* [["same" | "left" | "come", text], ...]: longest common subsequence of the words between the common beginning
     and the common end. */
  function wordDiff(before, after) {
    const a = words(before), b = words(after), found = [];
    const say = (kind, text) => {
      const last = found[found.length - 1];
      if (last && last[0] === kind) last[1] += text;
      else if (text) found.push([kind, text]);
    };
    let head = 0, tail = 0;
    while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
    while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail += 1;
    const left = a.slice(head, a.length - tail), come = b.slice(head, b.length - tail);
    say("same", a.slice(0, head).join(""));
    if (left.length > MOST || come.length > MOST) {
      say("left", left.join(""));
      say("come", come.join(""));
    } else aligned(left, come, say);
    say("same", a.slice(a.length - tail).join(""));
    return found;
  }

  function aligned(a, b, say) {
    const wide = b.length + 1, length = new Uint16Array((a.length + 1) * wide);
    for (let i = a.length - 1; i >= 0; i -= 1) {
      for (let j = b.length - 1; j >= 0; j -= 1) {
        length[i * wide + j] = a[i] === b[j]
          ? length[(i + 1) * wide + j + 1] + 1
          : Math.max(length[(i + 1) * wide + j], length[i * wide + j + 1]);
      }
    }
    let i = 0, j = 0;
    while (i < a.length || j < b.length) {
      if (i < a.length && j < b.length && a[i] === b[j]) { say("same", a[i]); i += 1; j += 1; }
      else if (i < a.length && (j === b.length || length[(i + 1) * wide + j] >= length[i * wide + j + 1])) say("left", a[i++]);
      else say("come", b[j++]);
    }
  }

  /* `side`: "a" shows words that only the first text has, "b" words that only the second has, any other value both. */
  function WordDiff({ a, b, side }) {
    const { html } = hrm, { Text } = hrm.ui;
    const parts = wordDiff(a || "", b || "");
    return html`<div class="diff foreign">${parts.map(([kind, text], index) => {
      if (kind === "same") return html`<${Text} key=${index} of=${text} />`;
      if (kind === "left") return side === "b" ? null : html`<del key=${index}><${Text} of=${text} /></del>`;
      return side === "a" ? null : html`<ins key=${index}><${Text} of=${text} /></ins>`;
    })}</div>`;
  }

  /* Lines of a unified diff, as `hrm-agent diff` prints them. */
  function LineDiff({ lines }) {
    const { html } = hrm, { Text } = hrm.ui;
    const kinds = { "+": "come", "-": "left", "@": "where" };
    return html`<div class="diff-lines" tabindex="0" role="region" aria-label="Difference">${lines.map((line, index) => html`
      <div key=${index} class=${kinds[line[0]] || ""}><${Text} of=${line} /></div>`)}</div>`;
  }

  hrm.wordDiff = wordDiff;
  hrm.parts = { ...hrm.parts, LineDiff, WordDiff };
})();
