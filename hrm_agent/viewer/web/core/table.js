// A table of any length. All rows have the same height, and only rows in view are in the page.
//
// Keys change the active row (j/k, arrows, Home, End, page keys), and Enter opens it. In a narrow window, a row takes
// two lines: columns with `first` are in the upper line, other columns in the lower line, smaller.
(() => {
  "use strict";
  const { html } = hrm;
  const { useState, useRef, useEffect, useLayoutEffect, useMemo } = hrm.hooks;

  const ROW = 32;
  const TWO_LINES = 56;
  const SPARE = 8;
  const ALL = 120; // up to this number of rows, all are in the page, and the page scrolls

  function sorted(rows, columns, order) {
    const [key, direction] = (order || "").split(":");
    const column = columns.find((one) => one.key === key);
    if (!column || !column.value) return rows;
    const sign = direction === "down" ? -1 : 1;
    const by = (one, other) => {
      const [a, b] = [column.value(one), column.value(other)];
      // Values that are not recorded come last in either direction.
      if (a === null || a === undefined) return b === null || b === undefined ? 0 : 1;
      if (b === null || b === undefined) return -1;
      return sign * (a < b ? -1 : a > b ? 1 : 0);
    };
    return [...rows].sort(by);
  }

  function HeadCell({ column, order, on_order }) {
    const [key, direction] = (order || "").split(":");
    const current = key === column.key;
    const style = { textAlign: column.align };
    const label = column.label || html`<span class="unseen">${column.spoken}</span>`;
    if (!column.value || !on_order) return html`<div role="columnheader" style=${style} title=${column.help}>${label}</div>`;
    const next = current && direction === "down" ? `${column.key}:up` : `${column.key}:down`;
    return html`<div role="columnheader" style=${style} aria-sort=${current ? (direction === "down" ? "descending" : "ascending") : "none"}>
      <button class="sort" onClick=${() => on_order(next)} title=${column.help}>${column.label}<span aria-hidden="true">${current ? (direction === "down" ? " ↓" : " ↑") : ""}</span></button>
    </div>`;
  }

  const cell = (column, row) => html`<div role="cell" key=${column.key} class=${column.long ? "long" : undefined} style=${{ textAlign: column.align }}>${column.render(row)}</div>`;

  function cells(columns, row, narrow) {
    if (!narrow) return columns.map((column) => cell(column, row));
    const line = (wanted, name) => html`<div role="none" key=${name} class=${name}>${columns.filter((column) => !column.wide && Boolean(column.first) === wanted).map((column) => cell({ ...column, align: undefined }, row))}</div>`;
    return [line(true, "line-1"), line(false, "line-2")];
  }

  // A row is drawn again only if it has changed, since scrolling moves over hundreds of rows.
  class Row extends hrm.Component {
    shouldComponentUpdate(next) {
      return ["row", "index", "columns", "narrow", "template", "top", "look", "active"].some((name) => next[name] !== this.props[name]);
    }

    render({ row, index, columns, narrow, template, top, look, active, on_click, on_focus }) {
      const style = { ...(narrow ? {} : { gridTemplateColumns: template }), ...(top === null ? {} : { transform: `translateY(${top}px)` }) };
      return html`<div role="row" class=${look} data-row=${index} aria-rowindex=${index + 2} tabindex=${active ? 0 : -1} style=${style}
        onClick=${(event) => on_click(event, row)} onFocus=${() => on_focus(index)}>${cells(columns, row, narrow)}</div>`;
    }
  }

  // columns: [{key, label or spoken, width (of a CSS grid), align, render(row), value(row) to sort by, first, wide (not at
  // 390 px), long (takes the room that is left in the second line)}]
  function Table({ rows, columns, id, href, label, order, on_order, mark, tail, height }) {
    const narrow = hrm.useNarrow();
    const scroller = useRef(null);
    const body = useRef(null);
    const [view, set_view] = useState({ from: 0, to: 60 });
    const [active, set_active] = useState(0);
    const wants_focus = useRef(false);
    const shown = useMemo(() => sorted(rows, columns, order), [rows, columns, order]);
    const size = narrow ? TWO_LINES : ROW;
    const virtual = shown.length > ALL;

    const look = () => {
      if (!virtual || !scroller.current) return;
      const top = scroller.current.scrollTop;
      // The range changes in steps of several rows, so that not every frame of scrolling draws.
      const from = Math.max(0, (Math.floor(top / size / SPARE) - 1) * SPARE);
      const to = (Math.ceil((top + scroller.current.clientHeight) / size / SPARE) + 1) * SPARE;
      set_view((before) => (before.from === from && before.to === to ? before : { from, to }));
    };
    useLayoutEffect(look, [virtual, size, shown.length]);
    useEffect(() => {
      addEventListener("resize", look);
      return () => removeEventListener("resize", look);
    });

    const move = (to) => {
      const next = Math.max(0, Math.min(shown.length - 1, to));
      set_active(next);
      wants_focus.current = true;
      if (!virtual) return take_focus(next);
      const box = scroller.current;
      const head = 32;
      if (next * size < box.scrollTop) box.scrollTop = next * size;
      else if ((next + 1) * size > box.scrollTop + box.clientHeight - head) box.scrollTop = (next + 1) * size - box.clientHeight + head;
      look();
      take_focus(next);
    };
    // If a row is not in the page yet, it takes the focus once it is drawn.
    const take_focus = (index) => {
      const row = wants_focus.current && body.current && body.current.querySelector(`[data-row="${index}"]`);
      if (!row) return;
      wants_focus.current = false;
      row.focus({ preventScroll: virtual });
    };
    useLayoutEffect(() => take_focus(active));
    const open = (row) => {
      const target = href && href(row);
      if (target) location.hash = target;
    };
    // If a page has several tables, the keys move in the table with the focus, and go on to the next table at its end.
    // If no table has the focus, they begin in the first.
    const step = (by) => {
      const tables = [...document.querySelectorAll(".table")];
      const own = tables.indexOf(scroller.current);
      const focused = tables.findIndex((table) => table.contains(document.activeElement));
      if (focused < 0 ? own !== 0 : own !== focused) return false;
      if (focused < 0) return move(active);
      const next = tables[own + by];
      if ((by > 0 ? active < shown.length - 1 : active > 0) || !next) return move(active + by);
      const row = next.querySelector(".table-body [tabindex='0']");
      return row ? row.focus() : undefined;
    };
    hrm.useKeys({
      j: { run: () => step(1), help: "next row" },
      k: { run: () => step(-1), help: "row before" },
    });
    const page_of = () => Math.max(1, Math.floor((virtual ? scroller.current.clientHeight : innerHeight) / size) - 2);
    const on_key = (event) => {
      if (!event.target.matches("[role=row]")) return;
      const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page_of(), PageUp: -page_of(), Home: -Infinity, End: Infinity };
      if (event.key in steps) move(active + steps[event.key]);
      else if (event.key === "Enter") open(shown[active]);
      else return;
      event.preventDefault();
    };
    const on_click = (event, row) => {
      if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.target.closest("a, button, input, label, select")) return;
      if (String(getSelection())) return;
      open(row);
    };

    const from = virtual ? view.from : 0;
    const slice = shown.slice(from, virtual ? view.to : shown.length);
    const template = columns.map((column) => column.width || "minmax(4rem, 1fr)").join(" ");
    const heads = narrow ? [] : columns;
    const at = Math.min(active, Math.max(0, shown.length - 1));
    const by = columns.filter((column) => column.value && on_order);
    return html`${narrow && by.length > 0 && html`<label class="sort-by">Sort by <select value=${order || ""} onChange=${(event) => on_order(event.target.value)}>
        <option value="">as they come</option>
        ${by.flatMap((column) => [["down", "falling"], ["up", "rising"]].map(([direction, word]) => { const value = `${column.key}:${direction}`; return html`<option key=${value} value=${value} selected=${value === order}>${column.label}, ${word}</option>`; }))}
      </select></label>`}
      <div class=${`table ${narrow ? "narrow" : ""} ${virtual ? "virtual" : ""}`} role="table" aria-label=${label} aria-rowcount=${shown.length + 1}
        ref=${scroller} onScroll=${look} style=${virtual ? { height: height || "calc(100vh - 15rem)" } : {}}>
      ${heads.length > 0 && html`<div role="rowgroup" class="table-head"><div role="row" aria-rowindex="1" class="row" style=${narrow ? {} : { gridTemplateColumns: template }}>
        ${heads.map((column) => html`<${HeadCell} key=${column.key} column=${column} order=${order} on_order=${on_order} />`)}
      </div></div>`}
      <div role="rowgroup" ref=${body} onKeyDown=${on_key} class="table-body" style=${virtual ? { height: `${shown.length * size}px` } : {}}>
        ${slice.map((row, offset) => {
          const index = from + offset;
          return html`<${Row} key=${id ? id(row) : index} row=${row} index=${index} columns=${columns} narrow=${narrow} template=${template} top=${virtual ? index * size : null}
            look=${`row ${href ? "opens" : ""} ${(mark && mark(row)) || ""}`} active=${index === at} on_click=${on_click} on_focus=${set_active} />`;
        })}
      </div>
      ${tail}
    </div>`;
  }

  hrm.ui.Table = Table;
  hrm.ui.sorted = sorted;
})();
