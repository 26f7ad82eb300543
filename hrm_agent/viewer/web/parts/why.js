/* The result of `hrm-agent why`: the probability of a text by version, the rollouts of the step that taught it, and their
   tokens, shaded by their pushes. */
(() => {
  "use strict";
  const { html } = hrm;
  const { useEffect, useMemo, useRef, useState } = hrm.hooks;
  const { Chart, Code, Empty, Num, Table, Text, format } = hrm.ui;

  const TINY = Math.log(0.001); // with a smaller probability, the scale is logarithmic
  const OPEN = 3; // number of rollouts whose tokens are shown at first
  const SHADES = 4; // on each side of 0
  const NEUTRAL = 0.01; // a smaller share of the largest push is not shaded

  // The file may hold anything: values of another type are treated as missing.
  const number = (value) => (typeof value === "number" ? value : null);
  const text = (value) => (typeof value === "string" ? value : "");
  const list = (value) => (Array.isArray(value) ? value : []);
  const table = (value) => (value !== null && typeof value === "object" && !Array.isArray(value) ? value : {});

  function read(result) {
    const versions = list(result.versions).map(table).map((one) => ({ version: number(one.version), logprob: number(one.logprob), taught: number(one.taught) }));
    const rollouts = list(result.rollouts).map(table).map((one) => {
      const pushes = list(one.pushes).map(number);
      return { trajectory: text(one.trajectory_id), thread: text(one.thread_id), task: text(one.prompt), reward: number(one.reward), advantage: number(one.advantage),
        push: number(one.push), tokens: number(one.tokens) ?? 0, pushes, texts: pushes.map((_, index) => text(list(one.texts)[index])) };
    });
    const { before, recorded, without, steps } = table(result.proof);
    const proof = [before, recorded, without, steps].some((value) => number(value) === null) ? null : { before, recorded, without, steps };
    return { texts: list(table(result.behaviour).texts).map(text), step: number(result.step) ?? 0, removed: new Set(list(result.removed)), proof, rollouts,
      versions: versions.filter((one) => one.version !== null && one.logprob !== null) };
  }

  // A probability may be smaller than the smallest number.
  function probability(logprob) {
    const value = Math.exp(logprob);
    if (value >= 0.001) return value.toFixed(3);
    const ten = Math.floor(logprob / Math.LN10);
    return `${Math.exp(logprob - ten * Math.LN10).toFixed(1)}e${ten}`.replace("-", "−");
  }

  const signed = (value) => (value > 0 ? "+" : "") + format.number(value).replace("-", "−");

  function Course({ versions, step, on_open }) {
    const { x, series, changes, log } = useMemo(() => {
      const log = versions.some((one) => one.logprob < TINY);
      const change = (one, index) => (index > 0 && versions[index - 1].version === one.version - 1 ? one.logprob - versions[index - 1].logprob : null);
      return {
        log, x: versions.map((one) => one.version),
        series: [{ name: "P", values: versions.map((one) => (log ? one.logprob / Math.LN10 : Math.exp(one.logprob))), points: true, width: 2, as: log ? (value) => probability(value * Math.LN10) : (value) => probability(Math.log(value)) }],
        changes: [{ name: "taught", values: versions.map((one) => one.taught), points: true, width: 2, as: signed }, { name: "change", values: versions.map(change), as: signed }],
      };
    }, [versions]);
    const marks = [{ x: step, text: `step ${step}` }];
    const power = (value) => (Number.isInteger(value) ? `1e${value}`.replace("-", "−") : "");
    return html`<${Chart} title="P" unit=${`probability of the text after a step${log ? ", logarithmic" : ""}`} x=${x} series=${series} marks=${marks} axis=${log ? power : undefined} height=${240} on_open=${on_open} />
      <${Chart} title="Taught by the step" unit="nats of log P, with the observed change of log P" x=${x} series=${changes} marks=${marks} zero=${true} height=${200} on_open=${on_open} />`;
  }

  function Proof({ of, step, removed }) {
    const which = removed === 1 ? "rollout" : `${removed} rollouts`;
    const told = `P is ${probability(of.before)} before step ${step}, and ${probability(of.recorded)} after step ${step - 1 + of.steps}. Without the first ${which} of step ${step} it is`;
    return html`<section aria-labelledby="why-proof"><h2 id="why-proof">Proof</h2><p>${told} ${probability(of.without)} (log P <${Num} of=${of.without - of.recorded} sign=${true} />).</p></section>`;
  }

  const has_page = (place, one) => hrm.api.has("trajectory", { place, id: one.trajectory });
  const thread_link = (place, one) => (has_page(place, one)
    ? html`<a class="mono" href=${hrm.link("trajectory", { place, id: one.trajectory })}><${Text} of=${one.thread} clip=${60} /></a>`
    : html`<span class="mono"><${Text} of=${one.thread} clip=${60} /></span>`);
  const COLUMNS = (place, removed) => [
    { key: "thread", label: "Thread", width: "minmax(10rem, 1fr)", first: true, value: (one) => one.thread, render: (one) => thread_link(place, one) },
    { key: "reward", label: "Reward", width: "5rem", align: "right", value: (one) => one.reward, render: (one) => html`<${Num} of=${one.reward} digits=${2} />` },
    { key: "advantage", label: "Advantage", width: "6rem", align: "right", value: (one) => one.advantage, render: (one) => html`<${Num} of=${one.advantage} digits=${2} sign=${true} />` },
    { key: "push", label: "Push", width: "6rem", align: "right", first: true, help: "nats of log P", value: (one) => one.push, render: (one) => html`<${Num} of=${one.push} sign=${true} />` },
    { key: "removed", label: "Proof", width: "5.5rem", render: (one) => (removed.has(one.trajectory) ? "removed" : "") },
    { key: "task", label: "Task", width: "minmax(8rem, 1.5fr)", long: true, value: (one) => one.task, render: (one) => html`<${Text} of=${one.task} clip=${80} />` },
  ];

  // The tokens of a rollout, in the form that TokenText reads.
  const columns_of = (rollout) => ({
    facts: { path: [] }, total: rollout.texts.length, has_text: true, text: rollout.texts, marks: [],
    ids: Array(rollout.texts.length).fill("…"), // the label of a part of a character
    text_of: (index) => rollout.texts[index], piece: async () => {},
  });

  const shade = (rollout, most) => (index) => {
    const share = (rollout.pushes[index] ?? 0) / most;
    return Math.abs(share) < NEUTRAL ? "zero" : `${share < 0 ? "minus" : "plus"}${Math.min(SHADES, Math.ceil(Math.abs(share) * SHADES))}`;
  };

  function Tokens({ rollout, most }) {
    const root = useRef(null), view = useRef(null);
    const [index, set_index] = useState(-1), [hovered, set_hovered] = useState(-1);
    useEffect(() => {
      view.current = new hrm.TokenText(root.current, columns_of(rollout), shade(rollout, most), () => {});
      return () => view.current.end();
    }, [rollout, most]);
    const move = (to) => {
      const next = Math.max(0, Math.min(rollout.texts.length - 1, to));
      set_index(next);
      set_hovered(-1);
      view.current.focus(next);
    };
    const keys = (event) => {
      const to = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: rollout.texts.length - 1 }[event.key];
      if (to === undefined || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      move(to);
    };
    const at = hovered >= 0 ? hovered : index;
    const left = rollout.tokens - rollout.texts.length;
    return html`<div class="tokens" ref=${root} tabindex="0" role="group" aria-label="Tokens. The arrow keys move from token to token." dir="ltr"
        onKeyDown=${keys} onCopy=${hrm.parts.copyPlain} onMouseLeave=${() => set_hovered(-1)} onMouseMove=${(event) => set_hovered(view.current.index_of(event.target))}></div>
      <p class="muted small" aria-live="polite">${at >= 0
        ? html`<code><${Text} of=${JSON.stringify(rollout.texts[at])} clip=${60} /></code> push <${Num} of=${rollout.pushes[at]} sign=${true} />`
        : "Point at a token, or move with the arrow keys."}${left > 0 ? ` ${format.count(left)} more tokens are not saved.` : ""}</p>`;
  }

  function Rollout({ rollout, place, most, first }) {
    const [open, set_open] = useState(first);
    return html`<details class="part" open=${first} onToggle=${(event) => set_open(event.target.open)}>
      <summary><span class="mono"><${Text} of=${rollout.thread} clip=${60} /></span><span class="muted small">push <${Num} of=${rollout.push} sign=${true} /></span></summary>
      ${open && html`<${Tokens} rollout=${rollout} most=${most} />
        ${has_page(place, rollout) && html`<p><a href=${hrm.link("trajectory", { place, id: rollout.trajectory })}>Open the trajectory</a></p>`}`}
    </details>`;
  }

  function Legend({ most }) {
    const shades = [[`minus${SHADES}`, signed(-most)], ["minus2", signed(-most / 2)], ["zero", `less than ${NEUTRAL * 100} % of the largest`], ["plus2", signed(most / 2)], [`plus${SHADES}`, signed(most)]];
    return html`<div class="legend" aria-label="Legend" role="group">${shades.map(([name, label]) => html`<span key=${name} class="legend-one"><span class=${`t swatch ${name}`} aria-hidden="true">abc</span>${label}</span>`)}</div>`;
  }

  function Why({ place, run, result }) {
    const found = useMemo(() => read(result), [result]);
    const { step, rollouts, proof, removed } = found;
    const [order, set_order] = hrm.useParam("sort");
    const columns = useMemo(() => COLUMNS(place, removed), [place, removed]);
    const shown = rollouts.filter((one) => one.texts.length);
    const most = Math.max(0, ...shown.map((one) => one.pushes.reduce((largest, push) => Math.max(largest, Math.abs(push ?? 0)), 0))) || 1;
    const total = rollouts.reduce((sum, one) => sum + (one.push ?? 0), 0);
    const open_step = (number) => number > 0 && hrm.go("step", { place, run, step: number });
    return html`
      <section aria-labelledby="why-text"><h2 id="why-text">${found.texts.length > 1 ? "One of these texts" : "Text"}</h2>${found.texts.map((one, index) => html`<${Code} key=${index} code=${one} />`)}</section>
      ${proof && html`<${Proof} of=${proof} step=${step} removed=${removed.size} />`}
      <section aria-labelledby="why-course"><h2 id="why-course">Course</h2><${Course} versions=${found.versions} step=${step} on_open=${open_step} /></section>
      <section aria-labelledby="why-rollouts"><h2 id="why-rollouts"><a href=${hrm.link("step", { place, run, step })}>Step ${format.count(step)}</a>: ${format.count(rollouts.length)} rollouts push by ${signed(total)}</h2>
      ${rollouts.length
        ? html`<${Table} rows=${rollouts} columns=${columns} id=${(one) => one.trajectory} label="Rollouts by push" order=${order} on_order=${set_order}
            href=${(one) => hrm.link("trajectory", { place, id: one.trajectory })} height="24rem" />`
        : html`<${Empty}>No rollout of this step affects the text.</${Empty}>`}</section>
      ${shown.length > 0 && html`<section aria-labelledby="why-tokens"><h2 id="why-tokens">Tokens by push</h2><${Legend} most=${most} />
        ${shown.map((one, index) => html`<${Rollout} key=${one.trajectory} rollout=${one} place=${place} most=${most} first=${index < OPEN} />`)}</section>`}`;
  }

  hrm.analyses.why = Why;
  hrm.parts.pushed = { Legend, Rollout, has_page, list, number, signed, table, text, thread_link };
})();
