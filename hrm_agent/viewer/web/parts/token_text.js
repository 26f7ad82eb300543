/* Tokens as spans, in blocks of 500. They are built without Preact, since 100,000 components would take seconds.

   Up to 100,000 tokens all blocks are filled, and the browser lays out those in view (`content-visibility`), so that its
   own search finds everything. With more tokens, a block is filled when it comes near the view, and emptied when it is far. */
(() => {
  "use strict";

  const BLOCK = 500, PIECE = 5000, ALL = 100000;
  const COLUMNS = ["ids", "text", "mask", "logprob", "call_of", "weight", "entropy", "marks"];

  /* The columns of one path, read in pieces of 5,000 tokens. */
  class TokenColumns {
    constructor(params) {
      this.params = params;
      this.pieces = new Map();
      this.facts = null;
      for (const name of COLUMNS) this[name] = [];
    }

    /* Reads the piece with a token. All callers for one piece get the same promise. */
    piece(index) {
      const from = hrm.api.is_static() ? 0 : Math.floor(index / PIECE) * PIECE;
      if (!this.pieces.has(from)) {
        const read = hrm.api.get("tokens", { ...this.params, from, to: from + PIECE }).then((page) => this.keep(page));
        this.pieces.set(from, read);
        read.catch(() => this.pieces.delete(from));
      }
      return this.pieces.get(from);
    }

    keep(page) {
      this.facts ||= page;
      for (const name of COLUMNS) {
        const values = page[name];
        if (values) for (let at = 0; at < values.length; at += 1) this[name][page.from + at] = values[at];
      }
    }

    /* A copy may only have the first tokens. */
    get total() { return hrm.api.is_static() ? this.ids.length : this.facts.total; }
    get has_text() { return !this.facts.why_no_text; }
    has(index) { return this.ids[index] !== undefined; }
    text_of(index) { return this.has_text ? this.text[index] ?? "" : `${this.ids[index]} `; }
  }

  const SPECIAL = /^<[|｜/]?[^<>\s]{1,40}[|｜]?>$/;

  /* Properties of a token that are shown with every lens: a list of classes, and a label for characters that are not
     visible. */
  function still(columns, index) {
    const text = columns.text_of(index), classes = ["t"], mark = columns.marks[index];
    let label = "";
    if (columns.has_text) {
      if (text === "") {
        label = String(columns.ids[index]); // the token is a part of a character, or has no text
        classes.push("odd");
      } else if (SPECIAL.test(text)) classes.push("special");
      else if (/^\s+$/.test(text)) {
        // A label for line breaks comes before them. Labels for spaces replace them.
        const breaks = text.replace(/[^\r\n]/g, "").replace(/\r/g, "␍").replace(/\n/g, "↵");
        label = breaks || text.replace(/\t/g, "⇥").replace(/[^⇥]/g, "·");
        classes.push(breaks ? "break" : "blank");
      } else {
        const parts = hrm.ui.pieces(text), odd = parts.filter((part) => typeof part !== "string");
        if (odd.length) {
          label = odd.map((part) => [part.props.children].flat(9).join("")).join(" ");
          classes.push("odd", ...(odd.length === parts.length ? ["alone"] : []));
        }
      }
    }
    if (mark) classes.push(mark);
    return [classes.join(" "), label];
  }

  class TokenText {
    /* `lens(index)` names the class that a token is shaded with. */
    constructor(root, columns, lens, on_problem) {
      Object.assign(this, { root, columns, lens, on_problem, at: -1, ended: false, spans: [] });
      this.starts = new Map(columns.facts.path.map((part, number) => [part.from, `${part.role || "prompt"} · call ${number + 1}`]));
      const count = Math.ceil(columns.total / BLOCK);
      this.blocks = Array.from({ length: count }, (_, index) => {
        const block = document.createElement("div");
        block.className = count > 1 ? "token-block" : "token-block only";
        block.dataset.first = String(index * BLOCK);
        return block;
      });
      root.replaceChildren(...this.blocks);
      if (columns.total <= ALL) this.fill_all();
      else this.fill_near();
    }

    end() {
      this.ended = true;
      if (this.observer) this.observer.disconnect();
      this.root.replaceChildren();
    }

    async fill_all() {
      for (let index = 0; index < this.blocks.length && !this.ended; index += 1) {
        await this.fill(index);
        if (index % 8 === 7) await new Promise((go) => setTimeout(go)); // lets the page react to the user meanwhile
      }
      if (!this.ended) this.root.dataset.filled = "all";
    }

    fill_near() {
      const number = (block) => Number(block.dataset.first) / BLOCK;
      this.observer = new IntersectionObserver((entries) => {
        for (const { target, isIntersecting } of entries) {
          if (isIntersecting) this.fill(number(target));
          else if (target.childElementCount && number(target) !== Math.floor(this.at / BLOCK)) {
            target.style.minHeight = `${target.offsetHeight}px`; // keeps the text below from moving
            target.replaceChildren();
            this.spans.fill(undefined, Number(target.dataset.first), Number(target.dataset.first) + BLOCK);
          }
        }
      }, { rootMargin: "1500px 0px" });
      this.blocks.forEach((block) => this.observer.observe(block));
      this.root.dataset.filled = "near";
    }

    async fill(number) {
      const block = this.blocks[number], from = number * BLOCK, to = Math.min(from + BLOCK, this.columns.total);
      if (block.childElementCount) return;
      try {
        await this.columns.piece(from);
      } catch (error) {
        this.on_problem(error);
        return;
      }
      if (this.ended || block.childElementCount) return;
      const spans = document.createDocumentFragment();
      for (let index = from; index < to; index += 1) {
        if (this.starts.has(index)) spans.append(this.heading(index));
        spans.append(this.span(index));
      }
      block.style.minHeight = "";
      block.append(spans);
    }

    /* The beginning of a call. Its words come from the style sheet, so they are not copied with the text. */
    heading(index) {
      const heading = document.createElement("div");
      heading.className = "token-call";
      heading.dataset.role = this.starts.get(index);
      return heading;
    }

    span(index) {
      const span = document.createElement("span"), [classes, label] = still(this.columns, index);
      span.className = `${classes} ${this.lens(index)}${index === this.at ? " at" : ""}`;
      if (label) span.dataset.label = label;
      span.textContent = this.columns.text_of(index);
      span.index = index;
      this.spans[index] = span;
      return span;
    }

    /* Shades all filled blocks again. */
    paint(lens) {
      this.lens = lens;
      for (const block of this.blocks) {
        for (const span of block.querySelectorAll(".t")) {
          span.className = `${still(this.columns, span.index)[0]} ${lens(span.index)}${span.index === this.at ? " at" : ""}`;
        }
      }
    }

    /* The span of a token; undefined while its block is empty. */
    node(index) { return this.spans[index]; }

    index_of(node) {
      const span = node && node.closest && node.closest(".t");
      return span && this.root.contains(span) ? span.index : -1;
    }

    async focus(index, scroll = true) {
      if (index < 0 || index >= this.columns.total) return;
      this.node(this.at)?.classList.remove("at");
      this.at = index;
      await this.fill(Math.floor(index / BLOCK));
      const span = this.node(index);
      if (!span || this.at !== index) return;
      span.classList.add("at");
      if (scroll) span.scrollIntoView({ block: "nearest" });
    }

    /* The nearest token in the line above or below. */
    line(index, step) {
      const here = this.node(index)?.getClientRects()[0];
      if (!here) return index;
      let best = index, near = Infinity, top = null;
      for (let other = index + step; this.node(other); other += step) {
        const rect = this.node(other).getClientRects()[0];
        if (!rect || Math.abs(rect.top - here.top) < 4) continue;
        top ??= rect.top;
        if (Math.abs(rect.top - top) > 4) break;
        const away = Math.abs(rect.left - here.left);
        if (away < near) [best, near] = [other, away];
      }
      return best;
    }
  }

  /* Copies the selection as the plain text of the tokens, without labels and line breaks between blocks. */
  function copyPlain(event) {
    const selection = getSelection();
    if (!selection.rangeCount || selection.isCollapsed) return;
    event.clipboardData.setData("text/plain", selection.getRangeAt(0).cloneContents().textContent);
    event.preventDefault();
  }

  hrm.TokenColumns = TokenColumns;
  hrm.TokenText = TokenText;
  hrm.parts = { ...hrm.parts, copyPlain };
})();
