// Data sets with their versions and the runs on each version; and the examples of one version.
(() => {
  "use strict";
  const { html } = hrm;
  const { Answer, Empty, Num, Page, Table, Text, format, run_name, trains } = hrm.ui;

  const address = (one) => hrm.link("dataset", { name: one.name, version: one.version });
  const home = (run) => hrm.link(trains(run) ? "run" : "groups", { place: run.place, run: run.run });
  const name_of = (one) => `${one.name}@${one.version}`;

  function Runs({ of }) {
    const evaluated = of.filter((run) => run.kind === "eval");
    const pairs = JSON.stringify(evaluated.map((run) => [run.place, run.run]));
    return html`<span>${of.map((run, index) => html`${index > 0 && ", "}<a key=${`${run.place}\n${run.run}`} href=${home(run)}><${Text} of=${run_name(run.place, run.run)} clip=${40} /></a>${run.accuracy !== null && html` <small><${Num} of=${run.accuracy} as="share" /></small>`}`)}${
      evaluated.length > 1 && html` · <a href=${hrm.link("evaluations", { runs: pairs })}>side by side</a>`}</span>`;
  }

  const COLUMNS = [
    { key: "name", label: "Data set", width: "minmax(8rem, 1fr)", first: true, value: (one) => one.name, render: (one) => html`<a href=${address(one)}><${Text} of=${name_of(one)} clip=${80} /></a>` },
    { key: "examples", label: "Examples", width: "5.4rem", align: "right", first: true, value: (one) => one.examples, render: (one) => html`<${Num} of=${one.examples} as="count" />` },
    { key: "train", label: "Train", width: "4.4rem", align: "right", value: (one) => one.splits.train, render: (one) => html`<${Num} of=${one.splits.train} as="count" />` },
    { key: "eval", label: "Held out", width: "5rem", align: "right", value: (one) => one.splits.eval, render: (one) => html`<${Num} of=${one.splits.eval} as="count" />` },
    { key: "families", label: "Families", width: "minmax(7rem, 1fr)", wide: true, render: (one) => html`<${Text} of=${Object.keys(one.families).join(", ")} clip=${120} />` },
    { key: "runs", label: "Runs on it", width: "minmax(10rem, 2fr)", long: true, render: (one) => html`<${Runs} of=${one.runs} />` },
  ];

  function Datasets() {
    const answer = hrm.useData("datasets", {});
    const [order, set_order] = hrm.useParam("sort");
    return html`<${Page} title="Data sets" crumbs=${[{ text: "Runs", href: "#/" }]}>
      <${Answer} of=${answer}>${(data) => html`
        ${data.datasets.length
          ? html`<${Table} rows=${data.datasets} columns=${COLUMNS} id=${(one) => `${name_of(one)}-${one.digest}`} href=${address} label="Data sets" order=${order} on_order=${set_order} />`
          : html`<${Empty}>There is no data set here. <code>hrm-agent dataset add NAME RUN</code> makes one of a run.</${Empty}>`}
        ${data.problems.map((one) => html`<div class="problem" key=${one.name}><p><b><${Text} of=${one.name} /></b> <${Text} of=${one.message} /></p>${one.hint && html`<p class="muted"><${Text} of=${one.hint} /></p>`}</div>`)}
      `}</${Answer}>
    </${Page}>`;
  }

  const EXAMPLES = [
    { key: "split", label: "Split", width: "4rem", first: true, value: (one) => one.split, render: (one) => one.split },
    { key: "prompt", label: "Prompt", width: "minmax(12rem, 2fr)", first: true, long: true, value: (one) => one.prompt, render: (one) => html`<${Text} of=${one.prompt} clip=${300} />` },
    { key: "answer", label: "Answer", width: "minmax(6rem, 1fr)", value: (one) => one.answer, render: (one) => (one.answer === null ? html`<${Num} of=${null} />` : html`<${Text} of=${one.answer} clip=${120} />`) },
    { key: "family", label: "Family", width: "8rem", wide: true, value: (one) => one.family, render: (one) => html`<${Text} of=${one.family} clip=${60} />` },
    { key: "source", label: "Made from", width: "11rem", wide: true, value: (one) => one.run, render: (one) => html`<${Text} of=${one.run || one.trajectory} clip=${60} />` },
    { key: "id", label: "Example", width: "9.6rem", wide: true, value: (one) => one.id, render: (one) => html`<span class="mono">${one.id.slice(0, 16)}</span>` },
  ];

  function Dataset({ params }) {
    const { name, version } = params;
    const answer = hrm.useData("dataset", { name, version });
    const [order, set_order] = hrm.useParam("sort");
    return html`<${Page} title=${`${name}@${version}`} crumbs=${[{ text: "Runs", href: "#/" }, { text: "Data sets", href: hrm.link("datasets", {}) }]}>
      <${Answer} of=${answer}>${(data) => html`
        <p class="muted">Examples: ${format.count(data.examples)}, ${format.count(data.splits.train)} to train on and ${format.count(data.splits.eval)} held out. Digest <span class="mono">${data.digest}</span></p>
        <${Table} rows=${data.rows} columns=${EXAMPLES} id=${(one) => one.id} label="Examples" order=${order} on_order=${set_order} />
        ${data.rows.length < data.examples && html`<p class="muted small">The first ${format.count(data.rows.length)}.</p>`}
      `}</${Answer}>
    </${Page}>`;
  }

  Object.assign(hrm.pages, { datasets: Datasets, dataset: Dataset });
})();
