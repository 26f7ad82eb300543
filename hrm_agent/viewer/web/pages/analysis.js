// The analyses of a run that commands have saved, and the page of one. A kind of analysis has its own component,
// hrm.analyses[KIND], that gets {place, run, result}.
(() => {
  "use strict";
  const { html } = hrm;
  const { Answer, Code, Empty, Page, RunTabs, Table, Text, Time, run_crumbs, run_name } = hrm.ui;

  const address = (place, run, one) => hrm.link("analysis", { place, run, name: one.name });
  const LIST = (place, run) => [
    { key: "title", label: "Analysis", width: "minmax(12rem, 1fr)", first: true, value: (one) => one.title, render: (one) => html`<a href=${address(place, run, one)}><${Text} of=${one.title} clip=${160} /></a>` },
    { key: "kind", label: "Command", width: "8rem", value: (one) => one.kind, render: (one) => html`<${Text} of=${one.kind} />` },
    { key: "at", label: "Written", width: "6.4rem", align: "right", value: (one) => one.at, render: (one) => html`<${Time} at=${one.at} />` },
  ];

  function Analyses({ params }) {
    const { place, run = "" } = params;
    const answer = hrm.useData("analyses", { place, run });
    const [order, set_order] = hrm.useParam("sort");
    const tabs = html`<${RunTabs} place=${place} run=${run} current="analyses" />`;
    return html`<${Page} title=${run_name(place, run)} crumbs=${run_crumbs(place, run)} tabs=${tabs}>
      <${Answer} of=${answer}>${(data) => html`
        ${data.analyses.length
          ? html`<${Table} rows=${data.analyses} columns=${LIST(place, run)} id=${(one) => one.name} href=${(one) => address(place, run, one)} label="Analyses" order=${order} on_order=${set_order} />`
          : html`<${Empty}>No analysis of this run was saved. <code>hrm-agent why</code> finds the step, and the rollouts of it, that taught a text. <code>hrm-agent film</code> shows the token at which each step changes the run of a task. <code>hrm-agent roles</code> finds the role that deserves a better policy. <code>hrm-agent analyze --failures</code> says why runs failed. <code>hrm-agent gate</code> compares a changed agent with the recorded one. <code>hrm-agent optimize</code> improves prompts.</${Empty}>`}
        ${data.unreadable > 0 && html`<p class="muted">Files that are not valid analyses: ${data.unreadable}.</p>`}
      `}</${Answer}>
    </${Page}>`;
  }

  function Shown({ of, place, run }) {
    const Kind = Object.hasOwn(hrm.analyses, of.kind) ? hrm.analyses[of.kind] : null;
    if (!Kind) return html`<${Empty}>This viewer does not show analyses of the kind <${Text} of=${of.kind} />.</${Empty}>`;
    return html`<${Kind} place=${place} run=${run} result=${of.result} />
      <details class="others"><summary>Command</summary><${Code} code=${of.command} /></details>`;
  }

  function Analysis({ params }) {
    const { place, run = "", name } = params;
    const answer = hrm.useData("analysis", { place, run, name });
    const crumbs = [...run_crumbs(place, run), { text: run_name(place, run), href: hrm.link("run", { place, run }) }, { text: "Analyses", href: hrm.link("analyses", { place, run }) }];
    return html`<${Page} title=${answer.data ? answer.data.title : "Analysis"} crumbs=${crumbs}>
      <${Answer} of=${answer}>${(data) => html`<${Shown} key=${name} of=${data} place=${place} run=${run} />`}</${Answer}>
    </${Page}>`;
  }

  Object.assign(hrm.pages, { analyses: Analyses, analysis: Analysis });
})();
