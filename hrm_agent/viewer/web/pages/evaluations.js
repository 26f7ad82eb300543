// Several evaluations side by side: a table with paired differences to the first, and the problems on which they differ.
(() => {
  "use strict";
  const { html } = hrm;
  const { useMemo } = hrm.hooks;
  const { Answer, Empty, Num, Page, Table, Text, format, run_name } = hrm.ui;

  const letter = (index) => String.fromCharCode(65 + (index % 26)) + (index >= 26 ? Math.floor(index / 26) : "");
  const name_of = (one) => run_name(one.place, one.run);
  const pairs_of = (rows) => JSON.stringify(rows.map((one) => [one.place, one.run]));
  const interval = (of) => of && html`<span class="muted small">${format.number(of.low).replace("-", "−")} to ${format.number(of.high).replace("-", "−")}</span>`;
  const tokens = (value) => (value > 0 ? html`<${Num} of=${value} digits=${1} />` : html`<${Num} of=${null} />`);

  function Estimate({ of, sign }) {
    if (!of) return html`<span class="muted">baseline</span>`;
    return html`<span><${Num} of=${of.value} digits=${3} sign=${sign} /> ${interval(of)}</span>`;
  }

  function columns(rows) {
    const baseline = (one) => hrm.go("evaluations", { runs: pairs_of([one, ...rows.filter((other) => other !== one)]) });
    const priced = rows.some((one) => one.cost !== null);
    return [
      { key: "letter", label: "", spoken: "Letter", width: "1.6rem", first: true, render: (one) => html`<b>${one.letter}</b>` },
      { key: "name", label: "Run", width: "minmax(9rem, 1.4fr)", first: true, value: name_of, render: (one) => html`<a href=${hrm.link("groups", { place: one.place, run: one.run })}><${Text} of=${name_of(one)} clip=${80} /></a>` },
      { key: "accuracy", label: "Accuracy", width: "minmax(9.4rem, 1fr)", first: true, help: "with a 95 % interval", value: (one) => one.pass_at_1.value, render: (one) => html`<${Estimate} of=${one.pass_at_1} />` },
      { key: "difference", label: "Less A", width: "minmax(9.8rem, 1fr)", help: "paired difference to A, with a 95 % interval", value: (one) => one.difference && one.difference.value, render: (one) => html`<${Estimate} of=${one.difference} sign=${true} />` },
      { key: "p", label: "p (Holm)", width: "5rem", align: "right", help: "corrected for the number of comparisons", value: (one) => one.corrected_p_value, render: (one) => (one.certain ? html`<b><${Num} of=${one.corrected_p_value} digits=${3} /></b>` : html`<${Num} of=${one.corrected_p_value} digits=${3} />`) },
      { key: "better", label: "Better, worse", width: "6.4rem", align: "right", help: "problems that it answers right more often, and less often, than A", value: (one) => one.better, render: (one) => (one.difference ? `${one.better}, ${one.worse}` : "") },
      { key: "tokens", label: "Tokens", width: "5rem", align: "right", wide: true, help: "completion tokens a trajectory", value: (one) => one.sampled_tokens, render: (one) => tokens(one.sampled_tokens) },
      { key: "errors", label: "Tool errors", width: "5.6rem", align: "right", wide: true, help: "failed tool calls a trajectory", value: (one) => one.tool_errors, render: (one) => html`<${Num} of=${one.tool_errors} digits=${3} />` },
      ...(priced ? [{ key: "cost", label: "Cost", width: "5rem", align: "right", wide: true, help: "as providers reported it", value: (one) => one.cost, render: (one) => html`<${Num} of=${one.cost} />` }] : []),
      { key: "baseline", label: "", spoken: "Baseline", width: "7.6rem", wide: true, render: (one) => one.difference && html`<button class="quiet" aria-label=${`Compare with ${hrm.ui.plain(name_of(one))}`} onClick=${() => baseline(one)}>Compare with</button>` },
    ];
  }

  const right = (value) => (value === 1 ? html`<span class="good-text">right</span>` : value === 0 ? html`<span class="bad-text">wrong</span>` : html`<${Num} of=${value} as="share" />`);

  function matrix(rows) {
    return [
      { key: "prompt", label: "Problem", width: "minmax(12rem, 1fr)", first: true, long: true, value: (one) => one.id, render: (one) => html`<${Text} of=${one.prompt || one.id} clip=${160} />` },
      ...rows.map((run, index) => ({
        key: run.letter, label: run.letter, width: "4.4rem", help: hrm.ui.plain(name_of(run)), value: (one) => one.right[index],
        render: (one) => (one.trajectories[index] ? html`<a href=${hrm.link("trajectory", { place: run.place, id: one.trajectories[index] })}>${right(one.right[index])}</a>` : right(one.right[index])),
      })),
    ];
  }

  function SideBySide({ data }) {
    const [order, set_order] = hrm.useParam("sort");
    const [by, set_by] = hrm.useParam("by");
    const rows = useMemo(() => data.evaluations.map((one, index) => ({ ...one, letter: letter(index) })), [data]);
    const differing = useMemo(() => data.differing.map((one, index) => ({ ...one, index })), [data]);
    const left = rows.filter((one) => one.left_out || one.damaged);
    return html`
      <p class="muted">${format.count(data.problems)} problems are in all of them. p: ${data.test}, with Holm's correction; intervals are not corrected.</p>
      <${Table} rows=${rows} columns=${columns(rows)} id=${(one) => one.letter} label="Evaluations" order=${order} on_order=${set_order} />
      ${left.map((one) => html`<p class="muted small" key=${one.letter}>${one.letter}: ${one.left_out > 0 && `${format.count(one.left_out)} problems that another one lacks are left out. `}${one.damaged > 0 && `${format.count(one.damaged)} trajectories cannot be read.`}</p>`)}
      <section aria-label="Problems that differ"><h2>Problems that differ</h2>
      ${differing.length
        ? html`<${Table} rows=${differing} columns=${matrix(rows)} id=${(one) => `${one.index}`} label="Problems that differ" order=${by} on_order=${set_by} />`
        : html`<${Empty}>They are right on the same problems.</${Empty}>`}
      ${data.differing_total > differing.length && html`<p class="muted small">The first ${format.count(differing.length)} of ${format.count(data.differing_total)}.</p>`}</section>`;
  }

  function Evaluations({ params }) {
    const answer = hrm.useData("evaluations", { runs: params.runs });
    return html`<${Page} title="Evaluations side by side" crumbs=${[{ text: "Runs", href: "#/" }]}>
      <${Answer} of=${answer}>${(data) => html`<${SideBySide} data=${data} />`}</${Answer}>
    </${Page}>`;
  }

  hrm.pages.evaluations = Evaluations;
})();
