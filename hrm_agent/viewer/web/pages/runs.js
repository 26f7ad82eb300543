// All runs of all places, newest first; and the results of a search.
(() => {
  "use strict";
  const { html } = hrm;
  const { useState } = hrm.hooks;
  const { Answer, Badge, Empty, Num, Page, Spark, Table, Text, Time, trains } = hrm.ui;

  const home = (run) => hrm.link(trains(run) ? "run" : "groups", { place: run.place, run: run.run });
  const key_of = (run) => `${run.place}\n${run.run}`;

  function Accuracy({ run }) {
    if (run.accuracy === null) return html`<${Num} of=${null} />`;
    return html`<span title=${run.accuracy_of}><${Num} of=${run.accuracy} as="share" /> <small>${run.accuracy_of}</small></span>`;
  }

  function Name({ run }) {
    const beside = run.run === "" || run.name === run.place ? "" : run.place;
    return html`<a href=${home(run)}><${Text} of=${hrm.ui.run_name(run.place, run.run)} clip=${80} /></a>${beside && html` <small><${Text} of=${beside} clip=${40} /></small>`}`;
  }

  function columns(chosen, choose) {
    return [
      {
        key: "choose", label: "", spoken: "Choose", width: "1.2rem", wide: true,
        render: (run) =>
          (run.steps !== null || run.kind === "eval") &&
          html`<input type="checkbox" aria-label=${`Choose ${hrm.ui.plain(run.name)} to compare`} checked=${chosen.has(key_of(run))} onChange=${() => choose(key_of(run))} />`,
      },
      { key: "name", label: "Run", width: "minmax(10rem, 2fr)", first: true, value: (run) => run.name, render: (run) => html`<${Name} run=${run} />` },
      { key: "status", label: "State", width: "6.2rem", value: (run) => run.status, render: (run) => html`<${Badge} of=${run.status} />` },
      { key: "accuracy", label: "Accuracy", width: "8.2rem", first: true, value: (run) => run.accuracy, render: (run) => html`<${Accuracy} run=${run} />` },
      { key: "spark", label: "Rollouts", width: "6.4rem", wide: true, help: "accuracy of the rollouts, by step", render: (run) => html`<${Spark} of=${run.spark} label="accuracy of the rollouts" />` },
      { key: "steps", label: "Steps", width: "5rem", align: "right", value: (run) => run.steps, render: (run) => html`<${Num} of=${run.steps} as="count" />${run.of_steps && html`<small> / ${run.of_steps}</small>`}` },
      { key: "kind", label: "Command", width: "6rem", value: (run) => run.kind, render: (run) => html`<${Text} of=${run.kind} />` },
      { key: "graph", label: "Graph", width: "minmax(5rem, 1fr)", value: (run) => run.graph, render: (run) => html`<${Text} of=${run.graph} />` },
      { key: "policy", label: "Policy", width: "minmax(6rem, 1.2fr)", wide: true, value: (run) => run.policy, render: (run) => html`<${Text} of=${run.policy} />` },
      { key: "trajectories", label: "Trajectories", width: "6.2rem", align: "right", wide: true, value: (run) => run.trajectories, render: (run) => html`<${Num} of=${run.trajectories} as="count" />` },
      { key: "updated_at", label: "Written", width: "6.4rem", align: "right", value: (run) => run.updated_at, render: (run) => html`<${Time} at=${run.updated_at} />` },
    ];
  }

  const Problems = ({ of }) =>
    of.length > 0 &&
    html`<section class="unread" aria-label="Places that cannot be read">
      <h2>Cannot be read now</h2>
      ${of.map((one) => html`<div class="problem" key=${one.place}><p><b><${Text} of=${one.place} /></b> <${Text} of=${one.message} /></p>${one.hint && html`<p class="muted"><${Text} of=${one.hint} /></p>`}</div>`)}
    </section>`;

  const BareThreads = ({ of }) =>
    of.map((one) => html`<p class="aside" key=${one.place}><${Text} of=${one.place} />: <a href=${hrm.link("threads", { place: one.place })}>${hrm.ui.format.count(one.threads)} ${one.threads === 1 ? "thread" : "threads"} without a trajectory</a></p>`);

  function Runs() {
    const answer = hrm.useData("runs", {});
    const about = hrm.useData("about", {});
    const [order, set_order] = hrm.useParam("sort");
    const [chosen, set_chosen] = useState(new Set());
    const choose = (key) => {
      const next = new Set(chosen);
      if (!next.delete(key)) next.add(key);
      set_chosen(next);
    };
    const listed = answer.data ? answer.data.runs : [];
    const evaluated = listed.filter((run) => chosen.has(key_of(run)) && run.kind === "eval").map(key_of);
    const trained = [...chosen].filter((key) => !evaluated.includes(key));
    const compare = () => {
      const [first, ...others] = trained.map((key) => key.split("\n"));
      hrm.go("run", { place: first[0], run: first[1], with: JSON.stringify(others) });
    };
    // The first that was chosen is the baseline. A copy has comparisons of more than two only in the order of this list.
    const ordered = hrm.api.is_static() && evaluated.length > 2 ? evaluated : [...chosen].filter((key) => evaluated.includes(key));
    const side_by_side = () => hrm.go("evaluations", { runs: JSON.stringify(ordered.map((key) => key.split("\n"))) });
    const newest = listed[0];
    const actions = html`
      ${trained.length > 0 && html`<button class="main" onClick=${compare}>${trained.length > 1 ? `Compare ${trained.length} runs` : "Open the curves"}</button>`}
      ${evaluated.length > 1 && html`<button class="main" onClick=${side_by_side}>${evaluated.length} evaluations side by side</button>`}
      ${about.data && about.data.datasets && html`<a href=${hrm.link("datasets", {})}>Data sets</a>`}
      ${about.data && about.data.environment && newest && html`<a href=${hrm.link("environment", { place: newest.place, run: newest.run })}>Environment, now</a>`}
    `;
    return html`<${Page} title="Runs" actions=${actions}>
      <${Answer} of=${answer}>${(data) => html`
        ${data.runs.length
          ? html`<${Table} rows=${data.runs} columns=${columns(chosen, choose)} id=${key_of} href=${home} label="Runs" order=${order} on_order=${set_order} />`
          : html`<${Empty}>Nothing is on record here yet. <code>hrm-agent demo</code> trains a small policy in two minutes, and <code>hrm-agent run</code> runs an agent once; either appears here while it works.</${Empty}>`}
        <${BareThreads} of=${data.bare_threads || []} />
        <${Problems} of=${data.problems} />
      `}</${Answer}>
      ${about.data && about.data.left_out && html`<p class="muted">A copy. Left out: ${Object.entries(about.data.left_out).map(([name, count]) => `${name.replaceAll("_", " ")} ${count}`).join(", ")}.</p>`}
    </${Page}>`;
  }

  // --- search --------------------------------------------------------------------------------------------------------

  const FOUND = [
    { key: "where", label: "In", width: "7rem", first: true, render: (row) => html`<${Text} of=${row.where} clip=${40} />` },
    { key: "trajectory", label: "Trajectory", width: "11rem", first: true, render: (row) => html`<a href=${hrm.link("trajectory", { place: row.place, id: row.trajectory })} class="mono"><${Text} of=${row.trajectory} clip=${40} /></a>` },
    { key: "snippet", label: "Text", width: "minmax(12rem, 1fr)", render: (row) => html`<${Text} of=${row.snippet} clip=${300} />` },
  ];

  function FoundIn({ place, run, q }) {
    const answer = hrm.useData("search", { place, run, q }, { live: false });
    return html`<section aria-label=${`Found in ${hrm.ui.plain(place)}`}>
      <h2><${Text} of=${place} /></h2>
      <${Answer} of=${answer}>${(data) =>
        data.rows.length
          ? html`<${Table} rows=${data.rows.map((row) => ({ ...row, place }))} columns=${FOUND} href=${(row) => hrm.link("trajectory", { place, id: row.trajectory })} label="Found" />`
          : html`<p class="muted">Nothing of it stands in an id, a task or an answer.</p>`}</${Answer}>
    </section>`;
  }

  function Search({ params }) {
    const about = hrm.useData("about", {});
    return html`<${Page} title=${`Search: ${params.q || ""}`} crumbs=${[{ text: "Runs", href: "#/" }]}>
      <${Answer} of=${about}>${(data) => {
        const places = params.place ? [params.place] : data.places.filter((one) => !one.problem).map((one) => one.id);
        return html`${places.map((place) => html`<${FoundIn} key=${place} place=${place} run=${params.place ? params.run : ""} q=${params.q} />`)}
          ${params.place && html`<p><a href=${hrm.link("search", { q: params.q })}>Search in all places</a></p>`}`;
      }}</${Answer}>
    </${Page}>`;
  }

  hrm.pages.runs = Runs;
  hrm.pages.search = Search;
})();
