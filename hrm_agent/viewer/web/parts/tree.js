/* The steps of a run as a tree of rows. Below a model call are the tool calls that it requested, below a subgraph
   its steps, and forks are where they part. Only rows in view are in the page, so 5,000 steps scroll well. */
(() => {
  "use strict";

  const ROW = 30, SPARE = 8; // height of a row in px, as in the style sheet; rows kept above and below the view

  const plain = (value) => (typeof value === "string" ? value : value?.text ?? "");
  const inLine = (text) => text.slice(0, 400).trim().replace(/\s+/g, " ").slice(0, 160);

  /* `solve:1a2b|reason:3c4d` -> [["solve", "solve:1a2b"]]: subgraphs around an item; the last part is its own task. */
  function around(namespace) {
    const parts = (namespace || "").split("|").filter(Boolean);
    return parts.slice(0, -1).map((part, depth) => [part.split(":", 1)[0], parts.slice(0, depth + 1).join("|")]);
  }

  const nameOf = (item) => (item.kind === "tool" ? item.name : item.kind === "turn" ? "person" : item.node || item.role);

  function snippet(item) {
    if (item.kind === "turn") return inLine(plain(item.prompt));
    if (item.kind === "tool") return inLine(plain(item.code) || argumentText(item.arguments));
    const said = inLine(plain(item.text));
    return said || (item.code_calls || []).map((call) => call.name).join(", ") || (plain(item.reasoning) ? "thoughts only" : "");
  }

  const argumentText = (value) => (value == null ? "" : typeof value === "string" ? value
    : typeof value.text === "string" && "chars" in value ? value.text : JSON.stringify(value));

  /* Items in order of time -> nested nodes {key, kind, name, item?, fork?, children, step}. */
  function treeOf(items, forks) {
    const root = { children: [] }, inside = new Map([["", root]]), calls = new Map(), counted = new Map();
    for (const item of items) {
      let home = root, step = item.step || item.checkpoint || "";
      for (const [name, key] of around(item.namespace)) {
        if (!inside.has(key)) {
          const number = (counted.get(name) || 0) + 1;
          counted.set(name, number);
          const node = { key: `in:${key}`, kind: "inside", name, number, children: [], step };
          inside.set(key, node);
          home.children.push(node);
        }
        home = inside.get(key);
      }
      const node = { key: `${item.kind}:${item.id}`, kind: item.kind, name: nameOf(item), item, children: [], step };
      const parent = item.kind === "tool" ? calls.get(item.call) : null;
      (parent || home).children.push(node);
      if (item.kind === "call") calls.set(item.id, node);
    }
    for (const fork of forks || []) {
      const node = { key: `fork:${fork.thread}`, kind: "fork", name: "fork", fork, children: [], step: fork.at };
      const at = root.children.findIndex((child) => child.kind !== "fork" && child.step >= fork.at);
      root.children.splice(at < 0 ? root.children.length : at, 0, node);
    }
    return root.children;
  }

  /* Visible rows, top to bottom: each a node with its depth and its place among its siblings. */
  function rowsOf(nodes, closed, depth = 0, rows = []) {
    nodes.forEach((node, index) => {
      rows.push({ node, depth, at: index + 1, of: nodes.length });
      if (node.children.length && !closed.has(node.key)) rowsOf(node.children, closed, depth + 1, rows);
    });
    return rows;
  }

  /* `selected`: key of a row. `until`: id of a checkpoint; rows of later steps are pale. */
  function Tree({ items, forks, selected, until, onSelect, onNear, loading, total }) {
    const { html } = hrm, { Text } = hrm.ui, { useState, useMemo, useRef, useEffect } = hrm.hooks;
    const [closed, setClosed] = useState(() => new Set());
    const [view, setView] = useState({ top: 0, height: 600 });
    const box = useRef(null);
    const rows = useMemo(() => rowsOf(treeOf(items, forks), closed), [items, forks, closed]);
    const at = rows.findIndex((row) => row.node.key === selected);
    const from = Math.max(0, Math.floor(view.top / ROW) - SPARE);
    const to = Math.min(rows.length, Math.ceil((view.top + view.height) / ROW) + SPARE);

    useEffect(() => {
      const measure = () => box.current && setView({ top: box.current.scrollTop, height: box.current.clientHeight });
      measure();
      const observer = new ResizeObserver(measure);
      observer.observe(box.current);
      return () => observer.disconnect();
    }, []);
    useEffect(() => { if (to >= rows.length - SPARE * 4) onNear(); }, [to, rows.length]);
    useEffect(() => {
      if (at < 0) return;
      const top = at * ROW, { scrollTop, clientHeight } = box.current;
      if (top < scrollTop) box.current.scrollTop = top;
      else if (top + ROW > scrollTop + clientHeight) box.current.scrollTop = top + ROW * 2 - clientHeight;
    }, [selected, at]);

    const toggle = (node, open) => setClosed((old) => {
      const next = new Set(old);
      if (open) next.delete(node.key); else next.add(node.key);
      return next;
    });
    const go = (index) => rows[index] && onSelect(rows[index].node);
    const keys = (event) => {
      const row = rows[at], node = row?.node, open = node?.children.length && !closed.has(node.key);
      const page = Math.max(1, Math.floor(view.height / ROW) - 1);
      const parent = () => { for (let up = at; up >= 0; up -= 1) if (rows[up].depth < row.depth) return up; return at; };
      const moves = {
        ArrowDown: () => go(Math.min(rows.length - 1, at + 1)), ArrowUp: () => go(Math.max(0, at - 1)),
        PageDown: () => go(Math.min(rows.length - 1, at + page)), PageUp: () => go(Math.max(0, at - page)),
        Home: () => go(0), End: () => go(rows.length - 1),
        ArrowRight: () => node && (node.children.length && !open ? toggle(node, true) : go(at + (open ? 1 : 0))),
        ArrowLeft: () => node && (open ? toggle(node, false) : go(parent())),
        Enter: () => node && onSelect(node, true),
      };
      if (!moves[event.key] || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      moves[event.key]();
    };
    const name = (node) => (node.kind === "inside" ? `${node.name} ${node.number}` : node.name);
    return html`
      <div class="tree" ref=${box} role="tree" aria-label="Steps" tabindex="0" onKeyDown=${keys} style=${{ "--rows": `${rows.length * ROW + (loading ? 34 : 2)}px` }}
        aria-activedescendant=${at >= from && at < to ? `row-${at}` : null} data-loaded=${items.length} aria-busy=${loading ? "true" : null}
        onScroll=${(event) => setView({ top: event.target.scrollTop, height: event.target.clientHeight })}>
        <div class="tree-rows" role="none" style=${{ height: `${rows.length * ROW}px` }}>
          ${rows.slice(from, to).map(({ node, depth, at: place, of }, index) => html`
            <div key=${node.key} id=${`row-${from + index}`} role="treeitem" aria-level=${depth + 1} aria-posinset=${place}
              aria-setsize=${of} aria-selected=${node.key === selected ? "true" : "false"}
              aria-expanded=${node.children.length ? String(!closed.has(node.key)) : null}
              class=${`tree-row ${node.kind}${until && node.step >= until && node.kind !== "fork" ? " later" : ""}${
                node.item?.inherited ? " inherited" : ""}`}
              style=${{ top: `${(from + index) * ROW}px`, paddingLeft: `${8 + Math.min(depth, 12) * 16}px` }}
              onClick=${() => onSelect(node, true)}>
              <span class="tree-fold" aria-hidden="true" onClick=${(event) => {
                if (!node.children.length) return;
                event.stopPropagation();
                toggle(node, closed.has(node.key));
              }}>${node.children.length ? (closed.has(node.key) ? "▸" : "▾") : ""}</span>
              <${RowText} node=${node} name=${name(node)} />
            </div>`)}
        </div>
        ${loading ? html`<p class="tree-more muted small" role="none">Loading ${items.length} of ${total} …</p>` : null}
      </div>`;
  }

  function RowText({ node, name }) {
    const { html } = hrm, { Text } = hrm.ui, { Mark } = hrm.parts, { item } = node;
    if (node.kind === "fork") {
      return html`<span class="tree-name">↳ fork</span>
        <span class="tree-said muted"><${Text} of=${node.fork.thread} /></span>`;
    }
    if (node.kind === "inside") {
      return html`<span class="tree-name"><${Text} of=${name} /></span>
        <span class="tree-said muted">${node.children.length} inside</span>`;
    }
    const facts = item.kind === "call" && item.sampled_tokens ? `${item.sampled_tokens} tok` : "";
    const time = item.seconds == null ? "" : hrm.parts.seconds(item.seconds);
    return html`
      ${item.kind === "tool" ? html`<${Mark} status=${item.status} />` : null}
      <span class="tree-name"><${Text} of=${name} /></span>
      <span class="tree-said muted"><${Text} of=${snippet(item)} /></span>
      <span class="tree-facts muted">${[facts, time].filter(Boolean).join(" · ")}</span>`;
  }

  hrm.treeRows = (items, forks, closed = new Set()) => rowsOf(treeOf(items, forks), closed);
  hrm.parts = { ...hrm.parts, Tree, argumentText, plain, snippet };
})();
