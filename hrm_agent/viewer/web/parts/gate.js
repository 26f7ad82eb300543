/* The result of `hrm-agent gate`: the verdict with its interval, the scores of both agents, and the runs that got worse or better, each with its
   first difference. */
(() => {
  "use strict";
  const { html } = hrm;
  const { useMemo } = hrm.hooks;
  const { Code, Empty, Num, Table, Text, format } = hrm.ui;

  // The file may hold anything: values of another type are treated as missing.
  const number = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);
  const text = (value) => (typeof value === "string" ? value : "");
  const list = (value) => (Array.isArray(value) ? value : []);
  const table = (value) => (value !== null && typeof value === "object" && !Array.isArray(value) ? value : {});

  const run_of = (one, index) => ({ index, id: text(one.run), thread: text(one.thread), prompt: text(one.prompt), old: number(one.old), now: number(one.new),
    old_answer: text(one.old_answer), new_answer: text(one.new_answer), words: text(one.difference), diff: list(one.diff).map(text).join("\n") });

  function read(result) {
    const { value, low, high } = table(result.difference), asked = table(result.asked);
    return { verdict: text(result.verdict), sentence: text(result.sentence), old: number(result.old), now: number(result.new), value: number(value), low: number(low),
      high: number(high), worse: list(result.worse).map(table).map(run_of), better: list(result.better).map(table).map(run_of), runs: number(result.runs),
      recorded: number(result.recorded_runs), requests: number(asked.requests), read: number(asked.read), sampled: number(asked.sampled), cost: number(asked.cost),
      left: Object.entries(table(result.not_comparable)).map(([reason, threads]) => [reason, list(threads).length]) };
  }

  const link = (place, one) => (one.id
    ? html`<a class="mono" href=${hrm.link("trajectory", { place, id: one.id })}><${Text} of=${one.thread} clip=${60} /></a>`
    : html`<span class="mono"><${Text} of=${one.thread} clip=${60} /></span>`);
  const score = (value) => html`<${Num} of=${value} digits=${3} />`;
  const COLUMNS = (place) => [
    { key: "thread", label: "Run", width: "minmax(9rem, 1fr)", first: true, value: (one) => one.thread, render: (one) => link(place, one) },
    { key: "prompt", label: "Task", width: "minmax(9rem, 1fr)", value: (one) => one.prompt, render: (one) => html`<${Text} of=${one.prompt} clip=${120} />` },
    { key: "old", label: "Old", width: "4.5rem", align: "right", value: (one) => one.old, render: (one) => score(one.old) },
    { key: "now", label: "New", width: "4.5rem", align: "right", first: true, value: (one) => one.now, render: (one) => score(one.now) },
    { key: "words", label: "First difference", width: "minmax(9rem, 1fr)", value: (one) => one.words, render: (one) => html`<${Text} of=${one.words} clip=${160} />` },
  ];

  function Runs({ runs, place, label }) {
    const [order, set_order] = hrm.useParam(`sort_${label}`);
    const columns = useMemo(() => COLUMNS(place), [place]);
    if (!runs.length) return null;
    return html`<section><h3>${label === "worse" ? "Runs that got worse" : "Runs that got better"}</h3>
      <${Table} rows=${runs} columns=${columns} id=${(one) => `${one.index}`} label=${`Runs that got ${label}`} order=${order} on_order=${set_order} />
      ${runs.filter((one) => one.diff).map((one) => html`<details key=${one.index}><summary>First difference in <span class="mono"><${Text} of=${one.thread} clip=${60} /></span></summary>
        <${Code} code=${one.diff} />
        <p>Answer on record: <${Text} of=${one.old_answer} clip=${400} /></p><p>Answer now: <${Text} of=${one.new_answer} clip=${400} /></p></details>`)}</section>`;
  }

  function Gate({ place, result }) {
    const found = useMemo(() => read(result), [result]);
    if (!found.verdict) return html`<${Empty}>No run was compared.</${Empty}>`;
    const cost = found.cost ? html`, cost <${Num} of=${found.cost} />` : "";
    return html`<section aria-labelledby="gate-verdict"><h2 id="gate-verdict"><${Text} of=${found.verdict} clip=${40} /></h2>
      <p><${Text} of=${found.sentence} clip=${600} /></p>
      <p>Score: ${score(found.old)} on record, ${score(found.now)} now, a difference of <${Num} of=${found.value} digits=${3} sign=${true} />
        (95 % interval <${Num} of=${found.low} digits=${3} sign=${true} /> to <${Num} of=${found.high} digits=${3} sign=${true} />),
        ${format.count(found.runs ?? 0)} of ${format.count(found.recorded ?? 0)} runs.</p>
      ${found.left.map(([reason, count]) => html`<p key=${reason}>Not comparable: ${format.count(count)} runs: <${Text} of=${reason} clip=${200} /></p>`)}
      <${Runs} runs=${found.worse} place=${place} label="worse" /><${Runs} runs=${found.better} place=${place} label="better" />
      <p class="muted small">Asked: ${format.count(found.requests ?? 0)} requests, <span title="prompt + completion tokens">${format.count(found.read ?? 0)} + ${format.count(found.sampled ?? 0)} tokens</span>${cost}.</p></section>`;
  }

  hrm.analyses.gate = Gate;
})();
