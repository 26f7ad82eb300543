// The curves of a training run: accuracy first and large, other metrics as small charts. New points appear as they are
// written.
(() => {
  "use strict";
  const { html } = hrm;
  const { useState, useEffect, useRef, useMemo } = hrm.hooks;
  const { Chart, Num, Page, Problem, Loading, RunTabs, Text, smoothed, format, COLOURS, DASHES } = hrm.ui;

  const { share, count, seconds } = format;
  const PHASES = [["rollout_seconds", "rollouts"], ["update_seconds", "update"], ["evaluation_seconds", "evaluation"], ["reward_seconds", "rewards"], ["select_seconds", "selection"]];

  // Charts by section, each as [title, unit, [[key, name], ...], {as, zero, ...}]. Runs are compared by the first key.
  const GROUPS = [
    ["Signal", [
      ["Reward", "mean of all rollouts", [["rollout/reward_mean", "mean"]], {}],
      ["Deviation of rewards", "within a group", [["rollout/reward_std_in_group", ""]], { zero: true }],
      ["Groups without a signal", "groups", [["select/groups_equal_rewards", "equal"], ["select/groups_too_small", "too small"], ["select/groups_without_gradient", "untrainable"]], { zero: true, as: count }],
      ["Trained on", "rollouts", [["select/kept", "kept"], ["select/carried", "carried"]], { zero: true, as: count }],
      ["Accuracy of SFT", "share of trained tokens", [["accuracy", ""]], {}],
    ]],
    ["Tools and length", [
      ["Tool error among the correct", "share", [["rollout/correct_with_tool_error", "all"], ["select/correct_with_tool_error", "kept"]], { zero: true, as: share }],
      ["Tool calls", "a rollout", [["rollout/tool_calls", ""]], { zero: true }],
      ["Sampled tokens", "a rollout", [["rollout/sampled_tokens", "mean"], ["rollout/sampled_tokens_p90", "p90"], ["rollout/sampled_tokens_max", "max"]], { zero: true, as: (value) => format.number(value, 1) }],
      ["Training sequences", "a rollout", [["rollout/sequences", ""]], { zero: true, as: (value) => format.number(value, 1) }],
      ["Ended at a limit, failed", "share", [["rollout/truncated", "limit"], ["rollout/failed", "failed"]], { zero: true, as: share }],
    ]],
    ["Policy and time", [
      ["Entropy", "nats a token", [["entropy_estimate", ""]], { zero: true }],
      ["Clipped", "share of tokens", [["clip_fraction_low", "low"], ["clip_fraction_high", "high"]], { zero: true, as: share }],
      ["Gradient", "norm before clipping", [["grad_norm", ""]], { zero: true }],
      ["Loss", "", [["loss", ""]], {}],
      ["Mismatch of engine and trainer", "nats a token", [["mismatch_kl", "KL"], ["engine_difference", "|difference|"]], { zero: true }],
      ["Staleness", "versions", [["staleness_mean", "mean"], ["staleness_max", "max"]], { zero: true }],
      ["Learning rate", "", [["learning_rate", ""]], { zero: true }],
    ]],
  ];
  const ROLES = [["tokens", "Tokens", "a rollout"], ["entropy", "Entropy", "nats a token"], ["tool_errors", "Tool errors", "share"], ["failed", "Failed", "share of runs"], ["weight_share", "Share of the gradient", "of |weight|"], ["advantage", "Advantage", "mean weight"]];

  // Adds new rows to those that the page has. Only missing rows are requested.
  function joined(before, answer) {
    if (!before || answer.after === 0 || before.generation !== answer.generation) return answer;
    const longer = (one, other, size) => [...(one || Array(before.steps.length).fill(null)), ...(other || Array(size).fill(null))];
    const size = answer.steps.length;
    const series = {};
    for (const key of new Set([...Object.keys(before.series), ...Object.keys(answer.series)])) series[key] = longer(before.series[key], answer.series[key], size);
    const roles = {};
    for (const role of new Set([...Object.keys(before.roles), ...Object.keys(answer.roles)])) {
      const [one, other] = [before.roles[role] || {}, answer.roles[role] || {}];
      roles[role] = {};
      for (const key of new Set([...Object.keys(one), ...Object.keys(other)])) roles[role][key] = longer(one[key], other[key], size);
    }
    return { ...answer, steps: [...before.steps, ...answer.steps], series, roles };
  }

  function useMetrics(place, run) {
    const [held, set] = useState({ data: null, error: null });
    const newest = useRef(null);
    const load = async () => {
      const id = `${place}\n${run}`;
      const before = newest.current && newest.current.id === id ? newest.current.data : null;
      try {
        const answer = await hrm.api.get("metrics", { place, run, after: before ? before.total : 0 });
        const data = joined(before, answer);
        newest.current = { id, data };
        set({ data, error: null });
        if (before && data.total > before.total) told(data);
      } catch (error) {
        set({ data: before, error });
      }
    };
    useEffect(() => void load(), [place, run]);
    hrm.useChanges(place, load);
    return { ...held, reload: load };
  }

  function told(data) {
    const at = data.steps.length - 1;
    const value = (data.series["rollout/correct"] || data.series.accuracy || [])[at];
    hrm.announce(`Step ${data.steps[at]}${value === null || value === undefined ? "" : `: accuracy ${share(value)}`}`);
  }

  // The x values of accuracy: steps with metrics, and steps with an evaluation on held-out problems (0 is before the
  // first update).
  function accuracy_of(data) {
    const x = [...new Set([...data.held_out.map((one) => one.step), ...data.steps])].sort((a, b) => a - b);
    const place = new Map(x.map((step, index) => [step, index]));
    const column = (pairs) => {
      const values = x.map(() => null);
      for (const [step, value] of pairs) values[place.get(step)] = value;
      return values;
    };
    const rollouts = data.series["rollout/correct"] || data.series.accuracy || [];
    return {
      x,
      rollouts: column(data.steps.map((step, index) => [step, rollouts[index] ?? null])),
      value: column(data.held_out.map((one) => [one.step, one.value])),
      low: column(data.held_out.map((one) => [one.step, one.low])),
      high: column(data.held_out.map((one) => [one.step, one.high])),
    };
  }

  const style_of = (index) => ({ colour: COLOURS[index % 6], dash: DASHES[index % 6] });

  // Columns of several runs over common x values.
  function aligned(parts) {
    const x = [...new Set(parts.flatMap((part) => part.x))].sort((a, b) => a - b);
    const place = new Map(x.map((step, index) => [step, index]));
    const series = parts.flatMap((part) =>
      part.series.map((one) => {
        const moved = (values) => {
          if (!values) return undefined;
          const column = x.map(() => null);
          values.forEach((value, index) => (column[place.get(part.x[index])] = value));
          return column;
        };
        return { ...one, values: moved(one.values), low: moved(one.low), high: moved(one.high) };
      }),
    );
    return { x, series };
  }

  function AccuracyChart({ runs, smoothing, on_open, marks, height }) {
    const { x, series } = useMemo(() => {
      const several = runs.length > 1;
      return aligned(
        runs.map(({ name, data }, index) => {
          const one = accuracy_of(data);
          const style = several ? style_of(index) : {};
          const held_out = { name: several ? name : "held-out", values: one.value, low: one.low, high: one.high, width: 2, points: true, as: share, ...(several ? style : { colour: COLOURS[0], dash: [] }) };
          const rollouts = { name: several ? (data.held_out.length ? `${name}, rollouts` : name) : data.kind === "train sft" ? "tokens" : "rollouts", unlabelled: several && data.held_out.length > 0, values: smoothed(one.rollouts, smoothing), width: several && data.held_out.length ? 1 : 1.5, as: share, ...(several ? style : { colour: COLOURS[1], dash: DASHES[1] }) };
          return { x: one.x, series: data.held_out.length ? [held_out, rollouts] : [rollouts] };
        }),
      );
    }, [runs, smoothing]);
    return html`<${Chart} title="Accuracy" unit="share correct; band: 95 % interval" x=${x} series=${series} marks=${marks} height=${height} on_open=${on_open} />`;
  }

  function small_of(runs, keys, options, smoothing) {
    const several = runs.length > 1;
    const taken = several ? keys.slice(0, 1) : keys;
    const parts = runs.map(({ name, data }, index) => ({
      x: data.steps,
      series: taken
        .filter(([key]) => data.series[key])
        .map(([key, label]) => ({ name: several ? name : label, values: smoothed(data.series[key], smoothing), as: options.as || format.number, ...(several ? style_of(index) : {}) })),
    }));
    return aligned(parts);
  }

  function Small({ runs, chart, smoothing, on_open, marks }) {
    const [title, unit, keys, options] = chart;
    const { x, series } = useMemo(() => small_of(runs, keys, options, smoothing), [runs, smoothing]);
    if (!series.some((one) => one.values.some((value) => value !== null && value !== undefined))) return null;
    return html`<${Chart} title=${title} unit=${unit} help=${keys.map(([key]) => key).join(", ")} x=${x} series=${series} marks=${marks} zero=${options.zero} height=${132} on_open=${on_open} />`;
  }

  function TimeChart({ data, on_open, marks }) {
    const series = useMemo(() => PHASES.filter(([key]) => (data.series[key] || []).some((value) => value)).map(([key, name]) => ({ name, values: data.series[key], as: seconds })), [data]);
    // The readout has the parts, and the chart draws their sums.
    return series.length > 0 && html`<${Chart} title="Time of a step" unit="seconds, stacked" x=${data.steps} series=${series} stacked=${true} marks=${marks} height=${132} on_open=${on_open} />`;
  }

  function Roles({ data, smoothing, on_open, marks }) {
    const names = Object.keys(data.roles);
    const charts = useMemo(
      () =>
        ROLES.map(([key, title, unit]) => ({
          title,
          unit,
          series: names.filter((role) => data.roles[role][key]).map((role) => ({ name: hrm.ui.short_name(role), values: smoothed(data.roles[role][key], smoothing), as: format.number })),
        })).filter((chart) => chart.series.some((one) => one.values.some((value) => value !== null))),
      [data, smoothing],
    );
    if (!charts.length) return null;
    return html`<section aria-labelledby="roles"><h2 id="roles">By role</h2>
      <div class="multiples">${charts.map(({ title, unit, series }) => html`<${Chart} key=${title} title=${title} unit=${unit} x=${data.steps} series=${series} marks=${marks} height=${132} on_open=${on_open} />`)}</div>
    </section>`;
  }

  // Each reward of a rubric, if there are several.
  function rewards_of(data) {
    const keys = Object.keys(data.series).filter((key) => key.startsWith("reward/"));
    return keys.length ? [["Rewards by name", "mean", keys.map((key) => [key, hrm.ui.short_name(key.slice(7))]), {}]] : [];
  }

  const CHARTED = new Set(["rollout/correct", ...PHASES.map(([key]) => key), ...GROUPS.flatMap(([, charts]) => charts.flatMap(([, , keys]) => keys.map(([key]) => key)))]);

  function Others({ runs, smoothing, on_open }) {
    const [open, set_open] = useState(false);
    const { data } = runs[0];
    const keys = Object.keys(data.series).filter((key) => !CHARTED.has(key) && !key.startsWith("reward/") && data.series[key].some((value) => typeof value === "number"));
    if (!keys.length) return null;
    return html`<details class="others" onToggle=${(event) => set_open(event.target.open)}>
      <summary>All other metrics <small>${keys.length}</small></summary>
      ${open && html`<div class="multiples">${keys.map((key) => html`<${Small} key=${key} runs=${runs} chart=${[key, "", [[key, ""]], {}]} smoothing=${smoothing} on_open=${on_open} />`)}</div>`}
    </details>`;
  }

  const total = (values) => (values || []).reduce((sum, value) => sum + (value || 0), 0);

  function Facts({ data }) {
    const last = data.held_out.at(-1);
    const of = data.config.steps ?? data.config["train.steps"];
    const correct = (data.series["rollout/correct"] || data.series.accuracy || []).at(-1);
    const spent = PHASES.reduce((sum, [key]) => sum + total(data.series[key]), 0) || total(data.series.seconds);
    const interval = (one) => one.low !== null && html` <small>${share(one.low)} to ${share(one.high)}</small>`;
    return html`<dl class="facts large">
      ${last && html`<div><dt>Held-out${last.problems ? html` <small>${last.problems} problems</small>` : ""}</dt><dd>${share(last.value)}${interval(last)}</dd></div>`}
      ${data.best && data.best.step !== last.step && html`<div><dt>Best <small>step ${data.best.step}</small></dt><dd>${share(data.best.value)}${interval(data.best)}</dd></div>`}
      <div><dt>${data.kind === "train sft" ? "Accuracy of tokens" : "Rollouts"} <small>newest step</small></dt><dd><${Num} of=${correct} as="share" /></dd></div>
      <div><dt>Steps</dt><dd>${data.steps.at(-1) ?? 0}${of ? html` <small>of ${of}</small>` : ""}</dd></div>
      <div><dt>Time</dt><dd>${seconds(spent)}</dd></div>
    </dl>`;
  }

  // Choice of other runs to show beside this run.
  function Beside({ place, run, others, set_others }) {
    const { data } = hrm.useData("runs", {}, { live: false });
    const found = ((data && data.runs) || []).filter((one) => one.steps !== null && !(one.place === place && one.run === run));
    if (!found.length) return null;
    const has = (one) => others.some(([other_place, other_run]) => other_place === one.place && other_run === one.run);
    const turn = (one) => set_others(has(one) ? others.filter(([p, r]) => !(p === one.place && r === one.run)) : [...others, [one.place, one.run]]);
    return html`<details class="beside"><summary>Beside other runs${others.length ? ` (${others.length})` : ""}</summary>
      <ul>${found.slice(0, 100).map((one) => html`<li key=${`${one.place} ${one.run}`}><label><input type="checkbox" checked=${has(one)} onChange=${() => turn(one)} /> <${Text} of=${one.name} clip=${60} /> <small><${Text} of=${one.place} clip=${40} /></small></label></li>`)}</ul>
    </details>`;
  }

  function Loaded({ place, run, into }) {
    const { data, error } = useMetrics(place, run);
    useEffect(() => into(`${place}\n${run}`, data), [data]);
    return error && html`<${Problem} error=${error} />`;
  }

  function others_of(text) {
    try {
      const value = JSON.parse(text || "[]");
      return Array.isArray(value) ? value.filter((one) => Array.isArray(one) && one.length === 2).slice(0, 12) : [];
    } catch {
      return [];
    }
  }

  function Curves({ params }) {
    const { place, run = "" } = params;
    const { data, error, reload } = useMetrics(place, run);
    const [smoothing, set_smoothing] = hrm.useParam("smooth", "0");
    const others = others_of(params.with);
    const set_others = (next) => hrm.go("run", { ...hrm.current().params, with: next.length ? JSON.stringify(next) : "" }, { replace: true });
    const [loaded, set_loaded] = useState({});
    const into = (key, value) => set_loaded((before) => ({ ...before, [key]: value }));
    const narrow = hrm.useNarrow();
    const name = hrm.ui.run_name(place, run);
    const runs = useMemo(
      () => (data ? [{ name: hrm.ui.short_name(name), data }, ...others.map(([p, r]) => ({ name: hrm.ui.short_name(r === run || !r ? p : r), data: loaded[`${p}\n${r}`] })).filter((one) => one.data)] : []),
      [data, loaded, params.with],
    );
    const open = data && data.kind !== "train sft" ? (step) => step >= 1 && hrm.go("step", { place, run, step }) : undefined;
    const none = data && !data.steps.length && !/^(train|demo)/.test(data.kind);
    useEffect(() => { if (none) hrm.go("groups", { place, run }, { replace: true }); }, [none]); // a run that takes no steps
    const rewards = useMemo(() => (data ? rewards_of(data) : []), [data]);
    const weight = Math.min(0.95, Number(smoothing) || 0);
    const marks = useMemo(() => (data ? data.stages.map(({ step, name: text }) => ({ x: step, text })) : []), [data && JSON.stringify(data.stages)]);
    const common = { smoothing: weight, on_open: open, marks };
    return html`<${Page} title=${name} crumbs=${hrm.ui.run_crumbs(place, run)} tabs=${html`<${RunTabs} place=${place} run=${run} current="run" />`}>
      ${error && html`<${Problem} error=${error} retry=${reload} />`}
      ${others.map(([p, r]) => html`<${Loaded} key=${`${p}\n${r}`} place=${p} run=${r} into=${into} />`)}
      ${!data ? !error && html`<${Loading} />` : !data.steps.length ? html`<p class="empty">No step is written yet. The first one appears here by itself.</p>` : html`
        <${Facts} data=${data} />
        <div class="controls">
          <label>Smoothing <input type="range" min="0" max="0.95" step="0.05" value=${weight} onInput=${(event) => set_smoothing(event.target.value)} /> <span class="num">${weight.toFixed(2)}</span></label>
          <${Beside} place=${place} run=${run} others=${others} set_others=${set_others} />
          ${open && !narrow && html`<span>A click on a point, or Enter, opens the step; a drag enlarges, a double click takes it back.</span>`}
        </div>
        <section class="panel" aria-label="Accuracy"><${AccuracyChart} runs=${runs} ...${common} height=${narrow ? 220 : 300} /></section>
        ${GROUPS.map(([title, fixed], index) => {
          const charts = index === 0 ? [...fixed, ...rewards] : fixed;
          const any = charts.some(([, , keys]) => keys.some(([key]) => (data.series[key] || []).some((value) => value !== null)));
          return any && html`<section key=${title} aria-labelledby=${`group-${index}`}><h2 id=${`group-${index}`}>${title}</h2>
            <div class="multiples">${charts.map((chart) => html`<${Small} key=${chart[0]} runs=${runs} chart=${chart} ...${common} />`)}${index === 2 && html`<${TimeChart} data=${data} ...${common} />`}</div>
          </section>`;
        })}
        <${Roles} data=${data} ...${common} />
        <${Others} runs=${runs} smoothing=${weight} on_open=${open} />
      `}
    </${Page}>`;
  }

  hrm.pages.run = Curves;
})();
