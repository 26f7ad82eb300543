// Curves over steps, drawn by uPlot, with names at the ends of lines, intervals as bands, and control by keyboard.
//
// For a screen reader, a chart is a slider: the arrow keys move from point to point, whose values are read out, and
// Enter opens the step. Series differ by colour and by dash.
(() => {
  "use strict";
  const { html } = hrm;
  const { useRef, useEffect, useMemo, useState } = hrm.hooks;

  // Colours that people with colour blindness can distinguish. The dashes differ, too.
  const COLOURS = ["--series-1", "--series-2", "--series-3", "--series-4", "--series-5", "--series-6"];
  const DASHES = [[], [6, 3], [2, 3], [9, 3, 2, 3], [12, 4], [4, 2, 1, 2]];

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Each value becomes an exponentially weighted mean of itself and earlier values. Weight 0 changes nothing.
  function smoothed(values, weight) {
    if (!weight) return values;
    let sum = 0;
    let norm = 0;
    return values.map((value) => {
      if (value === null || value === undefined) return value;
      sum = sum * weight + value * (1 - weight);
      norm = norm * weight + (1 - weight);
      return sum / norm;
    });
  }

  // Moves labels apart, downwards first, then upwards from the bottom of the chart if they would leave it.
  function spread(labels, least, top, bottom) {
    labels.sort((one, other) => one.y - other.y);
    let floor = top;
    for (const label of labels) {
      label.y = Math.max(label.y, floor);
      floor = label.y + least;
    }
    let roof = bottom;
    for (const label of [...labels].reverse()) {
      label.y = Math.min(label.y, roof);
      roof = label.y - least;
    }
  }

  function label_ends(plot, series) {
    const { ctx } = plot;
    const scale = devicePixelRatio;
    ctx.save();
    ctx.font = `${11 * scale}px ${css("--sans") || "sans-serif"}`;
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    const labels = [];
    series.forEach((one, index) => {
      if (!one.name || one.unlabelled || plot.series[one.at].show === false) return;
      const values = plot.data[one.at];
      let last = values.length - 1;
      while (last >= 0 && (values[last] === null || values[last] === undefined)) last -= 1;
      if (last < 0) return;
      const x = plot.valToPos(plot.data[0][last], "x", true) + 6 * scale;
      labels.push({ x, y: plot.valToPos(values[last], "y", true), name: one.name, colour: css(one.colour || COLOURS[index % 6]) });
    });
    // Only labels with about the same x can overlap.
    const columns = new Map();
    for (const label of labels) {
      const column = Math.round(label.x / (60 * scale));
      columns.set(column, [...(columns.get(column) || []), label]);
    }
    for (const column of columns.values()) spread(column, 13 * scale, plot.bbox.top + 5 * scale, plot.bbox.top + plot.bbox.height - 4 * scale);
    for (const { x, y, name, colour } of labels) {
      ctx.lineWidth = 4 * scale;
      ctx.lineJoin = "round";
      ctx.strokeStyle = css("--panel"); // an outline keeps the name readable over another line
      ctx.strokeText(name, x, y);
      ctx.fillStyle = colour;
      ctx.fillText(name, x, y);
    }
    ctx.restore();
  }

  function draw_marks(plot, marks) {
    if (!marks || !marks.length) return;
    const { ctx, bbox } = plot;
    const scale = devicePixelRatio;
    ctx.save();
    ctx.strokeStyle = css("--muted");
    ctx.fillStyle = css("--muted");
    ctx.font = `${11 * scale}px ${css("--sans") || "sans-serif"}`;
    ctx.textAlign = "left";
    ctx.setLineDash([3 * scale, 3 * scale]);
    for (const { x, text } of marks) {
      const at = Math.round(plot.valToPos(x, "x", true));
      if (at < bbox.left || at > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
      if (bbox.height > 180 * scale) ctx.fillText(hrm.ui.short_name(text), at + 4 * scale, bbox.top + 12 * scale);
    }
    ctx.restore();
  }

  // Columns for uPlot, and the index of each series in them. A band adds two columns.
  function columns_of(x, series, stacked) {
    const data = [x];
    const places = [];
    let base = x.map(() => 0);
    for (const one of series) {
      let { values } = one;
      if (stacked) {
        values = values.map((value, index) => (base[index] += value || 0));
        base = [...base];
      }
      places.push({ ...one, at: data.length });
      data.push(values);
      if (one.low) data.push(one.low, one.high);
    }
    return { data, places };
  }

  function series_of(places, stacked) {
    const made = [{}];
    const bands = [];
    places.forEach((one, index) => {
      const colour = css(one.colour || COLOURS[index % 6]);
      const sparse = one.points || one.values.length === 1;
      made.push({
        stroke: colour,
        width: one.width || 1.5,
        dash: one.dash || (stacked ? [] : DASHES[index % 6]),
        fill: stacked && index === 0 ? `${colour}66` : undefined,
        spanGaps: true,
        points: { show: sparse || undefined, size: 5, fill: colour },
      });
      if (stacked && index > 0) bands.push({ series: [one.at, places[index - 1].at], fill: `${colour}66` });
      if (!one.low) return;
      made.push({ stroke: "transparent", points: { show: false }, spanGaps: true }, { stroke: "transparent", points: { show: false }, spanGaps: true });
      bands.push({ series: [one.at + 2, one.at + 1], fill: `${colour}26` });
    });
    return { made, bands };
  }

  function options(props, places, stacked, size, moved) {
    const { made, bands } = series_of(places, stacked);
    const line = css("--line");
    const ink = css("--muted");
    const font = `11px ${css("--sans") || "sans-serif"}`;
    const grid = { stroke: line, width: 1 };
    const named = places.some((one) => one.name);
    const longest = named ? Math.max(...places.map((one) => (one.unlabelled ? "" : one.name || "").length)) : 0;
    const digits = (values) => values.map((value) => (value === null ? "" : props.axis ? props.axis(value) : hrm.ui.format.number(value, 3).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "")));
    return {
      ...size,
      padding: [8, Math.min(12 + longest * 6.2, size.width * 0.35), 0, 0],
      legend: { show: false },
      // All charts of a page show the same step.
      cursor: { y: false, sync: { key: "steps", scales: ["x", null], setSeries: false }, points: { size: 6 }, drag: { x: true, y: false, setScale: true } },
      scales: { x: { time: false }, y: props.range ? { range: () => props.range } : { range: (_, low, high) => ranged(low, high, props.zero || stacked) } },
      axes: [
        { stroke: ink, grid: { show: false }, ticks: { stroke: line, size: 4 }, font, size: 26, space: 44, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000, 100000] },
        { stroke: ink, grid, ticks: { show: false }, font, size: 46, space: 34, values: (_, values) => digits(values) },
      ],
      series: made,
      bands,
      hooks: { draw: [(plot) => (draw_marks(plot, props.marks), label_ends(plot, places))], setCursor: [(plot) => moved(plot.cursor.idx)] },
    };
  }

  function ranged(low, high, zero) {
    if (low === null || low === undefined) return [0, 1];
    if (low === 0 && high === 0) return [0, 1];
    if (zero) low = Math.min(0, low);
    const spare = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    return [zero && low === 0 ? 0 : low - spare, high + spare];
  }

  function told(series, index) {
    return series
      .filter((one) => one.values[index] !== null && one.values[index] !== undefined)
      .map((one) => {
        const text = (one.as || hrm.ui.format.number)(one.values[index]);
        const between = one.low && one.low[index] !== null && one.low[index] !== undefined ? ` (${one.as(one.low[index])} to ${one.as(one.high[index])})` : "";
        return { name: one.name, text: text + between };
      });
  }

  // <Chart title unit x=[steps] series=[{name, values, low, high, colour, dash, as}] marks=[{x, text}] height on_open(step)>
  function Chart({ title, unit, help, x, series, marks, height = 150, stacked = false, range, zero, axis, on_open }) {
    const box = useRef(null);
    const plot = useRef(null);
    const [at, set_at] = useState(null);
    const drawn = series.filter((one) => one.values.some((value) => value !== null && value !== undefined));
    const { data, places } = useMemo(() => columns_of(x, drawn, stacked), [x, series, stacked]);
    const shape = JSON.stringify([title, places.map((one) => [one.name, one.colour, one.dash, Boolean(one.low)]), marks, height, stacked, range]);
    const moved = useRef(null);
    moved.current = (index) => set_at(index ?? null);

    useEffect(() => {
      if (!places.length) return undefined;
      const make = () => {
        if (plot.current) plot.current.destroy();
        const size = { width: Math.max(120, box.current.clientWidth), height };
        plot.current = new uPlot(options({ marks, range, zero, axis }, places, stacked, size, (index) => moved.current(index)), data, box.current);
      };
      make();
      const resized = new ResizeObserver(() => {
        if (plot.current && box.current.clientWidth && Math.abs(box.current.clientWidth - plot.current.width) > 1) plot.current.setSize({ width: box.current.clientWidth, height });
      });
      resized.observe(box.current);
      addEventListener("hrm-theme", make);
      return () => {
        removeEventListener("hrm-theme", make);
        resized.disconnect();
        plot.current.destroy();
        plot.current = null;
      };
    }, [shape]);
    useEffect(() => {
      if (plot.current && plot.current.data !== data) plot.current.setData(data);
    }, [data]);

    const last = x.length - 1;
    const index = at ?? last;
    const values = index >= 0 ? told(drawn, index) : [];
    const spoken = values.map(({ name, text }) => `${name ? `${name} ` : ""}${text}`).join(", ");
    const move = (to) => {
      const next = Math.max(0, Math.min(last, to));
      set_at(next);
      if (plot.current) plot.current.setCursor({ left: plot.current.valToPos(x[next], "x"), top: 10 }, true, true);
    };
    const on_key = (event) => {
      const to = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: last, PageUp: index - 10, PageDown: index + 10 }[event.key];
      if (to !== undefined) move(to);
      else if (event.key === "Enter" && on_open && index >= 0) on_open(x[index]);
      else return;
      event.preventDefault();
    };
    // A drag zooms, so only a click without a drag opens the step.
    const pressed = useRef(null);
    const on_click = (event) => {
      const from = pressed.current;
      if (!on_open || !plot.current || plot.current.cursor.idx === null || plot.current.cursor.idx === undefined) return;
      if (from && Math.abs(from - event.clientX) > 4) return;
      on_open(x[plot.current.cursor.idx]);
    };
    return html`<figure class="chart">
      <figcaption><span class="chart-title" title=${help}><${hrm.ui.Text} of=${title} clip=${60} />${unit && html` <small>${unit}</small>`}</span>
        <span class="readout">${at !== null && index >= 0 && html`<small>step ${x[index]}</small> `}${values.map(({ name, text }) => html`<span key=${name}>${name && drawn.length > 1 && html`<small>${name}</small> `}${text}</span> `)}</span>
      </figcaption>
      ${places.length
        ? html`<div ref=${box} class=${`plot ${on_open ? "opens" : ""}`} role="slider" tabindex="0" aria-label=${`${hrm.ui.short_name(title, 60)}${unit ? `, ${unit}` : ""}`} aria-orientation="horizontal"
            aria-valuemin=${x[0]} aria-valuemax=${x[last]} aria-valuenow=${x[index]} aria-valuetext=${`step ${x[index]}: ${spoken || "not recorded"}`}
            onKeyDown=${on_key} onMouseDown=${(event) => (pressed.current = event.clientX)} onClick=${on_click} onMouseLeave=${() => set_at(null)} onBlur=${() => set_at(null)} style=${{ height: `${height}px` }}></div>`
        : html`<p class="none">not recorded</p>`}
    </figure>`;
  }

  // <Spark of=[numbers]>: a line without axes, for a row of a table.
  function Spark({ of, width = 96, height = 20, label }) {
    const values = (of || []).filter((value) => value !== null);
    if (values.length < 2) return html`<span class="none">–</span>`;
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const y = (value) => (height - 3 - ((value - low) / (high - low || 1)) * (height - 6)).toFixed(1);
    const step = (width - 6) / (values.length - 1);
    const points = values.map((value, index) => `${(2 + index * step).toFixed(1)},${y(value)}`);
    return html`<svg class="spark" width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${label || `from ${values[0].toFixed(3)} to ${values.at(-1).toFixed(3)}`}>
      <polyline points=${points.join(" ")} /><circle cx=${2 + step * (values.length - 1)} cy=${y(values.at(-1))} r="2" />
    </svg>`;
  }

  Object.assign(hrm.ui, { Chart, Spark, smoothed, COLOURS, DASHES });
})();
