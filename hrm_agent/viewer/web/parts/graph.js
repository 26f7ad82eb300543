/* A graph drawn as SVG: the nodes in columns from left to right, each edge a curve.

   The layout is the usual layered layout. Edges that close a cycle are reversed while nodes are assigned to columns. An
   edge over several columns gets a place in each of them. A few sweeps put every node near the mean of its neighbours.
   No node is left out and no edge runs through a node, so graphs of fifty nodes with loops can be read. */
(() => {
  "use strict";

  const HEIGHT = 30, GAP_Y = 22, GAP_X = 64, LANE = 14, MARGIN = 16, SWEEPS = 8;
  const SHOWN = 26; // maximum letters of a name in a box; its title has the whole name

  const short = (label) => (label.length > SHOWN ? `${label.slice(0, SHOWN - 1)}…` : label);
  const widthOf = (label) => Math.max(44, short(label).length * 7.4 + 22);

  /* Edges that lead back to a node that is being visited: without them the graph has no cycle. */
  function backEdges(nodes, edges) {
    const out = new Map(nodes.map((node) => [node.id, []]));
    edges.forEach((edge) => out.get(edge.from).push(edge));
    const state = new Map(), back = new Set();
    const entering = new Set(edges.map((edge) => edge.to));
    const roots = [...nodes.filter((n) => n.kind === "start"), ...nodes.filter((n) => !entering.has(n.id)), ...nodes];
    for (const root of roots) {
      if (state.has(root.id)) continue;
      const stack = [{ id: root.id, at: 0 }]; // no recursion: a chain may be long
      state.set(root.id, "open");
      while (stack.length) {
        const top = stack[stack.length - 1], edge = out.get(top.id)[top.at++];
        if (!edge) { state.set(top.id, "done"); stack.pop(); continue; }
        if (state.get(edge.to) === "open") back.add(edge);
        else if (!state.has(edge.to)) { state.set(edge.to, "open"); stack.push({ id: edge.to, at: 0 }); }
      }
    }
    return back;
  }

  /* Column of each node: one more than the farthest node that leads to it. */
  function columns(nodes, links) {
    const column = new Map(nodes.map((node) => [node.id, 0])), waiting = new Map(nodes.map((node) => [node.id, 0]));
    links.forEach((link) => waiting.set(link.to, waiting.get(link.to) + 1));
    const ready = nodes.filter((node) => !waiting.get(node.id)).map((node) => node.id);
    while (ready.length) {
      const id = ready.shift();
      for (const link of links) {
        if (link.from !== id) continue;
        column.set(link.to, Math.max(column.get(link.to), column.get(id) + 1));
        waiting.set(link.to, waiting.get(link.to) - 1);
        if (!waiting.get(link.to)) ready.push(link.to);
      }
    }
    const last = Math.max(0, ...column.values());
    const goesOn = new Set(links.map((link) => link.from));
    nodes.filter((node) => node.kind === "end" && !goesOn.has(node.id)).forEach((node) => column.set(node.id, last));
    return column;
  }

  /* The rows of each column, with a bend in every column that an edge passes. Each edge gets `chain`, the spots on
     its way. */
  function spots(nodes, links, column) {
    const rows = [];
    const put = (spot) => { (rows[spot.column] ||= []).push(spot); return spot; };
    const boxes = new Map(nodes.map((node) => [node.id, put({ node, column: column.get(node.id), before: [], after: [] })]));
    for (const link of links) {
      let here = boxes.get(link.from);
      link.chain = [here];
      const goal = boxes.get(link.to);
      for (let at = here.column + 1; at <= goal.column; at += 1) {
        const next = at === goal.column ? goal : put({ node: null, column: at, before: [], after: [] });
        here.after.push(next);
        next.before.push(here);
        link.chain.push(next);
        here = next;
      }
    }
    return rows;
  }

  function order(rows) {
    const place = (row) => row.forEach((spot, index) => { spot.order = index; });
    rows.forEach(place);
    for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
      const down = sweep % 2 === 0;
      for (const row of down ? rows : [...rows].reverse()) {
        for (const spot of row) {
          const near = down ? spot.before : spot.after;
          spot.mean = near.length ? near.reduce((sum, other) => sum + other.order, 0) / near.length : spot.order;
        }
        row.sort((a, b) => a.mean - b.mean);
        place(row);
      }
    }
  }

  /* x by column, y by order. Then columns move towards their neighbours, without changing distances within a column. */
  function coordinates(rows) {
    const size = (spot) => (spot.node ? HEIGHT + GAP_Y : LANE);
    let x = MARGIN;
    for (const row of rows) {
      const width = Math.max(...row.map((spot) => (spot.node ? widthOf(spot.node.label) : 0)), 0);
      let y = 0;
      for (const spot of row) {
        spot.x = x + width / 2;
        spot.y = y + size(spot) / 2;
        y += size(spot);
      }
      x += width + GAP_X;
    }
    for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
      const down = sweep % 2 === 0;
      for (const row of down ? rows : [...rows].reverse()) {
        const wanted = row.map((spot) => {
          const near = down ? spot.before : spot.after;
          return near.length ? near.reduce((sum, other) => sum + other.y, 0) / near.length : spot.y;
        });
        let floor = -Infinity;
        row.forEach((spot, index) => {
          const half = size(spot) / 2;
          spot.y = Math.max(wanted[index], floor + half);
          floor = spot.y + half;
        });
        const surplus = row.reduce((sum, spot, index) => sum + spot.y - wanted[index], 0) / row.length;
        row.forEach((spot) => { spot.y -= surplus; });
      }
    }
  }

  function curve(exact) {
    const points = exact.map(({ x, y }) => ({ x: Math.round(x), y: Math.round(y) }));
    let path = `M${points[0].x} ${points[0].y}`;
    for (let at = 1; at < points.length; at += 1) {
      const from = points[at - 1], to = points[at], middle = (from.x + to.x) / 2;
      path += ` C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`;
    }
    return path;
  }

  /* Shapes to draw: boxes with centre and size, edges with a path. Coordinates begin at 0. */
  function layout(graph) {
    const nodes = graph.nodes.map((node) => ({ ...node, label: String(node.label ?? node.id) }));
    const known = new Set(nodes.map((node) => node.id));
    const all = graph.edges.filter((edge) => known.has(edge.from) && known.has(edge.to));
    const straight = all.filter((edge) => edge.from !== edge.to), back = backEdges(nodes, straight);
    const links = straight.map((edge) =>
      back.has(edge) ? { edge, from: edge.to, to: edge.from, turned: true } : { edge, from: edge.from, to: edge.to });
    const rows = spots(nodes, links, columns(nodes, links)).map((row) => row || []);
    order(rows);
    coordinates(rows);
    const loops = new Set(all.filter((edge) => edge.from === edge.to).map((edge) => edge.from));
    const every = rows.flat(), top = Math.min(0, ...every.map((spot) => spot.y - HEIGHT / 2 - (loops.size ? 26 : 0)));
    every.forEach((spot) => { spot.y += MARGIN - top; });
    const box = new Map(every.filter((spot) => spot.node).map((spot) => [spot.node.id, spot]));
    const half = (spot) => (spot.node ? widthOf(spot.node.label) / 2 : 0);
    const edges = links.map(({ edge, chain, turned }) => {
      const ends = chain.map((spot, index) => ({
        x: spot.x + (index === 0 ? half(spot) : index === chain.length - 1 ? -half(spot) - (turned ? 0 : 5) : 0),
        y: spot.y + (spot.node && (turned || back.size) ? (turned ? 7 : -4) : 0),
      }));
      if (turned) { ends.reverse(); ends[ends.length - 1].x += 5; }
      const from = ends[Math.floor((ends.length - 1) / 2)], to = ends[Math.floor((ends.length - 1) / 2) + 1];
      return { ...edge, turned: Boolean(turned), path: curve(ends), x: (from.x + to.x) / 2, y: (from.y + to.y) / 2 };
    });
    for (const edge of all.filter((one) => one.from === one.to)) {
      const spot = box.get(edge.from), y = spot.y - HEIGHT / 2;
      const path = `M${spot.x - 12} ${y} C${spot.x - 26} ${y - 30} ${spot.x + 26} ${y - 30} ${spot.x + 12} ${y - 5}`;
      edges.push({ ...edge, turned: false, path, x: spot.x, y: y - 24 });
    }
    return {
      width: Math.max(...every.map((spot) => spot.x + half(spot)), 0) + MARGIN,
      height: Math.max(...every.map((spot) => spot.y + HEIGHT / 2), 0) + MARGIN,
      nodes: nodes.map((node) => {
        const spot = box.get(node.id);
        return { ...node, shown: short(node.label), x: spot.x, y: spot.y, width: widthOf(node.label), height: HEIGHT };
      }),
      edges,
    };
  }

  /* `lit`: ids of the nodes that the chosen step is in. */
  function Graph({ graph, lit }) {
    const { html } = hrm;
    if (!graph.nodes.length) return html`<p class="muted">No transitions were recorded on this thread.</p>`;
    const drawn = layout(graph), now = new Set(lit);
    const taken = drawn.edges.filter((edge) => edge.taken);
    const told = taken.map((edge) => `${edge.from} to ${edge.to}, ${edge.taken} times`).join("; ");
    return html`
      <div class="graph" tabindex="0" role="region" aria-label="Graph of the agent">
        <svg width=${drawn.width} height=${drawn.height} viewBox=${`0 0 ${drawn.width} ${drawn.height}`} role="img"
          aria-label=${`${drawn.nodes.length} nodes. Taken: ${told || "none"}.`}>
          <defs>
            <marker id="tip" viewBox="0 0 8 8" refX="3" refY="4" markerWidth="7" markerHeight="7" orient="auto">
              <path class="graph-tip" d="M0 0L8 4L0 8z" /></marker>
            <marker id="tip-taken" viewBox="0 0 8 8" refX="3" refY="4" markerWidth="6" markerHeight="6" orient="auto">
              <path class="graph-tip taken" d="M0 0L8 4L0 8z" /></marker>
          </defs>
          ${drawn.edges.map((edge) => html`
            <path key=${`${edge.from}>${edge.to}>${edge.label}`} d=${edge.path}
              class=${`graph-edge${edge.taken ? " taken" : ""}${edge.conditional ? " conditional" : ""}`}
              marker-end=${edge.taken ? "url(#tip-taken)" : "url(#tip)"} />`)}
          ${drawn.nodes.map((node) => html`
            <g key=${node.id} class=${`graph-node ${node.kind}${now.has(node.id) ? " lit" : ""}`}>
              <title>${node.label}${now.has(node.id) ? " (the chosen step)" : ""}</title>
              <rect x=${node.x - node.width / 2} y=${node.y - HEIGHT / 2} width=${node.width} height=${HEIGHT}
                rx=${node.kind === "node" ? 5 : HEIGHT / 2} />
              <text x=${node.x} y=${node.y + 4.5} text-anchor="middle">${node.shown}</text>
            </g>`)}
          ${drawn.edges.filter((edge) => edge.taken > 1 || edge.label).map((edge) => html`
            <text class="graph-label" key=${`label${edge.from}>${edge.to}>${edge.label}`} x=${edge.x} y=${edge.turned ? edge.y + 13 : edge.y - 4}
              text-anchor="middle">${[edge.label, edge.taken > 1 ? `×${edge.taken}` : ""].filter(Boolean).join(" ")}</text>`)}
        </svg>
      </div>
      <p class="muted small">Thick lines were taken${graph.source === "observed"
        ? "; drawn from the transitions on record, as the graph's own code is not loaded" : ""}.</p>`;
  }

  hrm.graphLayout = layout;
  hrm.parts = { ...hrm.parts, Graph };
})();
