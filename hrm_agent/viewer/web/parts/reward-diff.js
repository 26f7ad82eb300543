/* The result of `hrm-agent reward-diff`: warnings, predicted changes, the rollouts that two rewards judge differently, and
   their tokens, shaded by the difference of the pushes. */
(() => {
  "use strict";
  const { html } = hrm;
  const { useMemo } = hrm.hooks;
  const { Empty, Num, Table, Text, format } = hrm.ui;
  const { Legend, Rollout, has_page, list, number, signed, table, text, thread_link } = hrm.parts.pushed;

  const NAMES = { accuracy: "accuracy", tool_use: "answers with a tool call", length: "sampled tokens", tool_errors: "failed tool calls" };
  const OPEN = 2; // number of rollouts whose tokens are shown at first

  const side = (value) => ({ reward: number(table(value).reward), advantage: number(table(value).advantage), reason: text(table(value).reason) });

  function read(result) {
    const rollouts = list(result.rollouts).map(table).map((one) => {
      const [old, now] = [list(list(one.pushes)[0]).map(number), list(list(one.pushes)[1]).map(number)];
      const pushes = now.map((push, index) => (push === null || (old[index] ?? null) === null ? null : push - old[index]));
      return { trajectory: text(one.trajectory_id), thread: text(one.thread_id), task: text(one.prompt), old: side(one.old), now: side(one.new),
        push: (number(table(one.new).push) ?? 0) - (number(table(one.old).push) ?? 0), tokens: number(one.tokens) ?? 0, pushes, texts: pushes.map((_, index) => text(list(one.texts)[index])) };
    });
    const changes = Object.entries(table(result.changes)).map(([name, value]) => [name, table(value)])
      .map(([name, one]) => ({ name: Object.hasOwn(NAMES, name) ? NAMES[name] : name, old: number(one.old), now: number(one.new), difference: number(one.difference), error: number(one.difference_error) }));
    const token = (one) => ({ thread: text(one.thread_id), before: text(one.before), text: text(one.text), count: number(one.count), old: number(one.old), now: number(one.new) });
    const numbers = (values) => [0, 1].map((index) => number(list(values)[index]));
    return { old: text(result.old), now: text(result.new), steps: list(result.steps).map(number).filter((step) => step !== null), cosine: number(result.cosine), norms: numbers(result.norms), flips: table(result.flips), rollouts, changes,
      warnings: list(result.warnings).map(table).map((one) => ({ kind: text(one.kind), text: text(one.text) })),
      roles: Object.entries(table(result.roles)).map(([role, shares]) => [role, numbers(shares)]), up: list(result.up).map(table).map(token), down: list(result.down).map(table).map(token) };
  }

  const value = (key, label, of, extra = {}) => ({ key, label, width: "8.5rem", align: "right", value: of, render: (one) => html`<${Num} of=${of(one)} ...${extra} />` });
  const CHANGES = [
    { key: "name", label: "Mean of", width: "minmax(10rem, 1fr)", first: true, value: (one) => one.name, render: (one) => html`<${Text} of=${one.name} clip=${60} />` },
    value("old", "Old", (one) => one.old, { sign: true }), value("new", "New", (one) => one.now, { sign: true }),
    value("difference", "Difference", (one) => one.difference, { sign: true }), value("error", "Standard error", (one) => one.error),
  ];
  const ROLLOUTS = (place) => [
    { key: "thread", label: "Thread", width: "minmax(10rem, 1fr)", first: true, value: (one) => one.thread, render: (one) => thread_link(place, one) },
    value("old_reward", "Old reward", (one) => one.old.reward, { digits: 2 }), value("new_reward", "New reward", (one) => one.now.reward, { digits: 2 }),
    value("old_advantage", "Old advantage", (one) => one.old.advantage, { digits: 2, sign: true }), value("new_advantage", "New advantage", (one) => one.now.advantage, { digits: 2, sign: true }),
    { key: "reasons", label: "Parts of the new reward", width: "minmax(8rem, 1fr)", long: true, value: (one) => one.now.reason, render: (one) => html`<${Text} of=${one.now.reason} clip=${80} />` },
  ];
  const TOKENS = [
    { key: "before", label: "After", width: "minmax(10rem, 1fr)", long: true, value: (one) => one.before, render: (one) => html`<code><${Text} of=${JSON.stringify(one.before)} clip=${80} /></code>` },
    { key: "text", label: "Token", width: "8rem", first: true, value: (one) => one.text, render: (one) => html`<code><${Text} of=${JSON.stringify(one.text)} clip=${40} /></code>` },
    value("count", "Times", (one) => one.count), value("old", "Old push", (one) => one.old, { sign: true }), value("new", "New push", (one) => one.now, { sign: true }),
  ];

  function RewardDiff({ place, run, result }) {
    const found = useMemo(() => read(result), [result]);
    const [order, set_order] = hrm.useParam("sort");
    const columns = useMemo(() => ROLLOUTS(place), [place]);
    const shown = found.rollouts.filter((one) => one.texts.length);
    const most = Math.max(0, ...shown.map((one) => one.pushes.reduce((largest, push) => Math.max(largest, Math.abs(push ?? 0)), 0))) || 1;
    const count = (name) => format.count(number(found.flips[name]) ?? 0);
    const steps = found.steps.map((step, index) => html`${index > 0 && ", "}<a key=${step} href=${hrm.link("step", { place, run, step })}>${format.count(step)}</a>`);
    const pushed = (title, tokens) => tokens.length > 0 && html`<h3>${title}</h3><${Table} rows=${tokens.map((one, index) => ({ ...one, index }))} columns=${TOKENS} id=${(one) => String(one.index)} label=${title} height="16rem" />`;
    return html`
      <p>Old reward <code><${Text} of=${found.old} clip=${100} /></code>, new reward <code><${Text} of=${found.now} clip=${100} /></code>, on ${count("rollouts")} rollouts of step ${steps}. Nothing was trained.</p>
      <section aria-labelledby="diff-warnings"><h2 id="diff-warnings">Warnings</h2>
        ${found.warnings.length ? html`<ul>${found.warnings.map((one, index) => html`<li key=${index}>The new reward <${Text} of=${one.text} clip=${300} />.</li>`)}</ul>` : html`<${Empty}>No warning.</${Empty}>`}</section>
      <section aria-labelledby="diff-changes"><h2 id="diff-changes">Predicted change by one step</h2>
        <${Table} rows=${found.changes} columns=${CHANGES} id=${(one) => one.name} label="Predicted changes" height="14rem" />
        <p>Cosine of the two updates: <${Num} of=${found.cosine} digits=${3} />. Share of the update by role, old and new: ${found.roles.map(([role, shares], index) => html`<span key=${role}>${index > 0 && "; "}<${Text} of=${role} clip=${40} /> <${Num} of=${shares[0]} digits=${2} />, <${Num} of=${shares[1]} digits=${2} /></span>`)}.</p></section>
      <section aria-labelledby="diff-rollouts"><h2 id="diff-rollouts">Rollouts</h2>
        <p>Right by the old reward only: ${count("right_by_old")}, by the new one only: ${count("right_by_new")}. Pushed up by the old and down by the new: ${count("down")}, the other way round: ${count("up")}.</p>
        <${Table} rows=${found.rollouts} columns=${columns} id=${(one) => one.trajectory} label="Rollouts by difference" order=${order} on_order=${set_order}
          href=${(one) => (has_page(place, one) ? hrm.link("trajectory", { place, id: one.trajectory }) : undefined)} height="24rem" /></section>
      ${(found.up.length > 0 || found.down.length > 0) && html`<section aria-labelledby="diff-pushed"><h2 id="diff-pushed">Tokens pushed in opposite directions</h2>${pushed("Up by the new reward", found.up)}${pushed("Down by the new reward", found.down)}</section>`}
      ${shown.length > 0 && html`<section aria-labelledby="diff-tokens"><h2 id="diff-tokens">Tokens by new push less old push</h2><${Legend} most=${most} />
        ${shown.map((one, index) => html`<${Rollout} key=${one.trajectory} rollout=${one} place=${place} most=${most} first=${index < OPEN} />`)}</section>`}`;
  }

  hrm.analyses["reward-diff"] = RewardDiff;
})();
