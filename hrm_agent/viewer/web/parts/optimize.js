/* The result of `hrm-agent optimize`: the candidates with their scores, the held-out tasks before and after, and for each
   change the words that differ, with the reflection that led to it. */
(() => {
  "use strict";
  const { html } = hrm;
  const { useMemo } = hrm.hooks;
  const { Empty, Num, Table, Text, format } = hrm.ui;

  // The file may hold anything: values of another type are treated as missing.
  const number = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);
  const text = (value) => (typeof value === "string" ? value : "");
  const list = (value) => (Array.isArray(value) ? value : []);
  const table = (value) => (value !== null && typeof value === "object" && !Array.isArray(value) ? value : {});
  const own = (from, name) => (Object.hasOwn(from, name) ? text(from[name]) : "");

  function read(result) {
    const all = list(result.candidates).map(table);
    const candidates = all.map((one, index) => {
      const parent = number(one.parent), prompt = text(one.prompt);
      const before = own(table(table(all[parent]).texts), prompt), after = own(table(one.texts), prompt);
      const [from, to] = [0, 1].map((side) => number(list(one.minibatch)[side]));
      return { index, parent, prompt, before, after, why: text(one.why), from, to, validation: number(one.validation) };
    });
    const held_out = table(result.held_out), difference = table(held_out.difference);
    return { candidates, graph: text(result.graph), best: number(result.best), ended: text(result.ended_by), rollouts: number(result.rollouts),
      reflections: number(result.reflections), refused: list(result.proposals).map(table).filter((one) => text(one.refused)).length, tasks: number(held_out.tasks),
      before: number(table(held_out.before).value), after: number(table(held_out.after).value), cut_off: text(table(table(result.not_judged).proposal).prompt), recommended: result.recommended, gain: number(difference.value), low: number(difference.low), high: number(difference.high) };
  }

  const score = (key, label, of) => ({ key, label, width: "7rem", align: "right", value: of, render: (one) => html`<${Num} of=${of(one)} digits=${3} />` });
  const COLUMNS = (best) => [
    { key: "index", label: "Candidate", width: "6rem", align: "right", first: true, value: (one) => one.index, render: (one) => format.count(one.index) },
    { key: "parent", label: "Parent", width: "5rem", align: "right", value: (one) => one.parent, render: (one) => (one.parent === null ? "" : format.count(one.parent)) },
    { key: "prompt", label: "Prompt", width: "minmax(8rem, 1fr)", value: (one) => one.prompt, render: (one) => html`<${Text} of=${one.prompt || "start"} clip=${60} />` },
    score("from", "Minibatch", (one) => one.from), score("to", "after", (one) => one.to), score("validation", "Validation", (one) => one.validation),
    { key: "best", label: "", width: "4rem", value: (one) => one.index === best, render: (one) => (one.index === best ? "best" : "") },
  ];

  function Change({ one }) {
    return html`<section aria-label=${`Candidate ${one.index}`}><h3>Candidate ${format.count(one.index)}: <${Text} of=${one.prompt} clip=${60} /></h3>
      <${hrm.parts.WordDiff} a=${one.before} b=${one.after} />
      <details><summary>Reflection</summary><pre class="foreign"><${Text} of=${one.why} /></pre></details></section>`;
  }

  function Optimize({ result }) {
    const found = useMemo(() => read(result), [result]);
    const [order, set_order] = hrm.useParam("sort");
    const columns = useMemo(() => COLUMNS(found.best), [found]);
    if (!found.candidates.length) return html`<${Empty}>No candidate was run.</${Empty}>`;
    return html`<section aria-labelledby="optimize-candidates"><h2 id="optimize-candidates">Prompts of <${Text} of=${found.graph} clip=${80} /></h2>
      <p>Held-out mean reward: <${Num} of=${found.before} digits=${3} /> before, <${Num} of=${found.after} digits=${3} /> after, on ${format.count(found.tasks ?? 0)} tasks:
        ${" "}<${Num} of=${found.gain} digits=${3} sign=${true} /> (<${Num} of=${found.low} digits=${3} sign=${true} /> to <${Num} of=${found.high} digits=${3} sign=${true} />).</p>
      ${found.cut_off && html`<p>The last text for <${Text} of=${found.cut_off} clip=${60} /> was not judged: the budget was used up.</p>`}
      ${found.recommended === false && html`<p>No text is recommended: none is better on the held-out tasks.</p>`}
      <${Table} rows=${found.candidates} columns=${columns} id=${(one) => `${one.index}`} label="Candidates" order=${order} on_order=${set_order} />
      <p class="muted small">${format.count(found.rollouts ?? 0)} runs, ${format.count(found.reflections ?? 0)} reflections, ${format.count(found.refused)} texts refused. The search ended: <${Text} of=${found.ended} clip=${80} />.</p>
      ${found.candidates.filter((one) => one.prompt).map((one) => html`<${Change} one=${one} key=${one.index} />`)}</section>`;
  }

  hrm.analyses.optimize = Optimize;
})();
