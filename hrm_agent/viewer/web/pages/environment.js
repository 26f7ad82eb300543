// Outcomes of tool calls, failures first; then where the time goes, and the current state of the sandbox.
(() => {
  "use strict";
  const { html } = hrm;
  const { Answer, Badge, Chart, Empty, Glyph, Num, Page, RunTabs, Table, Text, format, run_crumbs, run_name } = hrm.ui;
  const { useEffect, useMemo } = hrm.hooks;

  const known = (value) => value !== null && value !== undefined;
  const fact = (label, value) => html`<div key=${label}><dt>${label}</dt><dd>${value}</dd></div>`;
  const total = (counts) => Object.values(counts || {}).reduce((sum, value) => sum + value, 0);

  // Counts as bars: name, bar, number, share.
  function Bars({ counts, label, tone, badge }) {
    const rows = Object.entries(counts || {}).filter(([, count]) => count > 0).sort(([, one], [, other]) => other - one);
    if (!rows.length) return null;
    const sum = total(counts);
    const most = rows[0][1];
    return html`<dl class="bars" aria-label=${label}>
      ${rows.map(([name, count]) => html`<div key=${name}><dt>${badge ? html`<${Badge} of=${name} />` : html`<${Text} of=${name} clip=${60} />`}</dt>
        <dd><span class=${`bar-fill ${tone ? tone(name) : ""}`} style=${{ width: `${(100 * count) / most}%` }}></span></dd>
        <dd class="num">${format.count(count)} <small>${((100 * count) / sum).toFixed(1)} %</small></dd></div>`)}
    </dl>`;
  }

  const PERCENTILES = ["p50", "p95", "p99", "max"];

  function Percentiles({ of, label, edges }) {
    const rows = Object.entries(of || {}).filter(([, values]) => values && Object.values(values).some(known));
    if (!rows.length) return null;
    const names = { queue: "in the queue", run: "running" };
    const columns = PERCENTILES.filter((name) => rows.some(([, values]) => known(values[name])));
    return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table class="plain"><thead><tr><th scope="col">${edges ? "Time, at most" : "Time"}</th>${columns.map((name) => html`<th scope="col" key=${name}>${name}</th>`)}</tr></thead>
      <tbody>${rows.map(([kind, values]) => html`<tr key=${kind}><th scope="row">${names[kind] || kind}</th>${columns.map((name) => html`<td key=${name}><${Num} of=${values[name]} as="seconds" /></td>`)}</tr>`)}</tbody></table></div>`;
  }

  function worker_cell(value) {
    if (value !== null && typeof value === "object") return html`<${Text} of=${JSON.stringify(value)} clip=${120} />`;
    return typeof value === "number" ? html`<${Num} of=${value} />` : html`<${Text} of=${known(value) ? String(value) : null} clip=${80} />`;
  }

  function Workers({ of }) {
    if (!Array.isArray(of) || !of.length) return null;
    const keys = [...new Set(of.flatMap((one) => Object.keys(one)))];
    return html`<h3>Workers</h3><div class="scroll" tabindex="0" role="region" aria-label="Workers"><table class="plain"><thead><tr>${keys.map((key) => html`<th scope="col" key=${key}>${key.replaceAll("_", " ")}</th>`)}</tr></thead>
      <tbody>${of.map((one, index) => html`<tr key=${index}>${keys.map((key) => html`<td key=${key}>${worker_cell(one[key])}</td>`)}</tr>`)}</tbody></table></div>`;
  }

  const LIVE = [
    ["queue", "Waiting"], ["running", "Running"], ["slots", "Slots"], ["sessions", "Sessions"],
    ["outside", "Waiting for room in the queue"], ["retries", "Retries"], ["slot_deaths", "Slots that died"], ["cancelled", "Cancelled"],
  ];
  const LIVE_EVERY = 2000; // milliseconds; the sandbox sends no events about changes

  function Live({ of }) {
    if (!of) return null;
    return html`<section class="panel" aria-labelledby="live"><h2 id="live">Now</h2>
      <dl class="facts large">${LIVE.filter(([key]) => known(of[key])).map(([key, label]) => fact(label, html`<${Num} of=${of[key]} as="count" />`))}</dl>
      <div class="columns"><${Bars} counts=${of.outcomes} label="Outcomes since the sandbox began" badge=${true} tone=${hrm.ui.tone_of} /><${Percentiles} of=${of.percentiles} label="Times, now" edges=${true} /></div>
      <${Workers} of=${of.workers} />
      ${total(of.refused) > 0 && html`<h3>Refused system calls</h3><${Bars} counts=${of.refused} label="Refused system calls" />`}
    </section>`;
  }

  const example = (place) => (one) => one.example && hrm.link("trajectory", { place, id: one.example.trajectory, item: one.example.tool });
  const ERRORS = (place) => [
    { key: "class", label: "What went wrong", width: "minmax(10rem, 22rem)", first: true, value: (one) => one.class, render: (one) => html`<${Glyph} of="error" /> <${Text} of=${one.class} clip=${120} />` },
    { key: "count", label: "Calls", width: "6rem", align: "right", first: true, value: (one) => one.count, render: (one) => html`<${Num} of=${one.count} as="count" />` },
    { key: "example", label: "Example", width: "minmax(10rem, 1fr)", render: (one) => one.example && html`<a href=${example(place)(one)} class="mono"><${Text} of=${one.example.tool} clip=${30} /></a>` },
  ];

  function Failures({ of }) {
    const [x, series] = useMemo(() => [of.map((one) => one.step), [{ name: "", values: of.map((one) => (one.total ? one.failed / one.total : null)), as: format.share, colour: "--bad" }]], [of]);
    return of.length > 1 && html`<section class="panel" aria-label="Failed calls by step"><${Chart} title="Failed calls" unit="share, by step" x=${x} series=${series} zero=${true} height=${150} /></section>`;
  }

  function Recorded({ of, place, order, set_order }) {
    if (!of || !of.tool_calls) return html`<${Empty}>No tool call is on record here.</${Empty}>`;
    const failed = of.tool_calls - (of.by_status.ok || 0);
    return html`
      <dl class="facts large">${fact("Tool calls", format.count(of.tool_calls))}${fact("Not ok", html`${format.count(failed)} <small>${((100 * failed) / of.tool_calls).toFixed(1)} %</small>`)}
        ${Object.entries(of.isolation || {}).map(([level, count]) => fact(html`Isolation <${Text} of=${level} />`, format.count(count)))}</dl>
      ${of.errors.length > 0 && html`<section aria-labelledby="errors"><h2 id="errors">Errors</h2><${Table} rows=${of.errors} columns=${ERRORS(place)} label="Errors" order=${order} on_order=${set_order} href=${example(place)} /></section>`}
      <${Failures} of=${of.by_step || []} />
      <section class="columns">
        <div><h2>Outcomes</h2><${Bars} counts=${of.by_status} label="Outcomes" badge=${true} tone=${hrm.ui.tone_of} /></div>
        <div><h2>Times</h2><${Percentiles} of=${of.percentiles} label="Times of calls" /></div>
        ${Object.entries(of.by_name || {}).length > 1 && html`<div><h2>Tools</h2><${Bars} counts=${Object.fromEntries(Object.entries(of.by_name).map(([name, counts]) => [name, total(counts)]))} label="Calls by tool" /></div>`}
        ${total(of.refused) > 0 && html`<div><h2>Refused system calls</h2><${Bars} counts=${of.refused} label="Refused system calls" /></div>`}
      </section>`;
  }

  function Environment({ params }) {
    const { place, run = "" } = params;
    const answer = hrm.useData("environment", { place, run });
    const [order, set_order] = hrm.useParam("sort");
    const now = Boolean(answer.data && answer.data.live);
    useEffect(() => {
      if (!now) return undefined;
      const timer = setInterval(answer.reload, LIVE_EVERY);
      return () => clearInterval(timer);
    }, [now, answer.reload]);
    const tabs = place && html`<${RunTabs} place=${place} run=${run} current="environment" />`;
    return html`<${Page} title=${place ? run_name(place, run) : "Environment"} crumbs=${run_crumbs(place || "", place ? run : "")} tabs=${tabs}>
      <${Answer} of=${answer}>${(data) => html`<${Live} of=${data.live} />${place && html`<${Recorded} of=${data.recorded} place=${place} order=${order} set_order=${set_order} />`}`}</${Answer}>
    </${Page}>`;
  }

  hrm.pages.environment = Environment;
})();
