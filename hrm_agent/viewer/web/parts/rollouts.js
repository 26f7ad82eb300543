// One group: its prompt, and the outcome of each sibling. Kept and dropped rollouts are compared first.
(() => {
  "use strict";
  const { html } = hrm;
  const { useState } = hrm.hooks;
  const { Badge, Cut, Glyph, Num, Strip, Table, Text } = hrm.ui;

  // 1 is correct, 0 is wrong. The outcome of a rubric may be between them.
  const outcome_of = (rollout) => (rollout.outcome === null ? null : rollout.outcome >= 1 ? "correct" : rollout.outcome <= 0 ? "wrong" : "partly");
  const RANK = { kept: 0, dropped: 1, group_rejected: 2 };
  const rank = (rollout) => RANK[rollout.verdict] ?? 3;

  const SORTS = {
    "": ["kept first", (a, b) => rank(a) - rank(b) || a.sample - b.sample],
    sample: ["as sampled", (a, b) => a.sample - b.sample],
    reward: ["reward", (a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity)],
    advantage: ["advantage", (a, b) => (b.advantage ?? -Infinity) - (a.advantage ?? -Infinity)],
    tokens: ["tokens", (a, b) => (b.tokens ?? -1) - (a.tokens ?? -1)],
    tools: ["failed tools", (a, b) => failed(b) - failed(a)],
  };
  const failed = (rollout) => rollout.tools.filter((tool) => tool.status !== "ok" && tool.status !== null).length;

  // Small marks of siblings: the shape and colour of the outcome.
  function Marks({ of, word }) {
    const counts = ["correct", "wrong", "partly"].map((outcome) => [of.filter((one) => outcome_of(one) === outcome).length, outcome]).filter(([count]) => count);
    const words = counts.map(([count, outcome]) => `${count} ${outcome}`).join(", ");
    return html`<div class="side"><dt>${word} <b class="num">${of.length}</b></dt><dd>
      <span class="strip" role="img" aria-label=${`${word}: ${words || "none"}`}>${[...of].sort((a, b) => (b.outcome ?? -1) - (a.outcome ?? -1)).slice(0, 64).map((one) => html`<${Glyph} key=${one.trajectory} of=${outcome_of(one) || "unknown"} />`)}</span>
      <small>${words}</small></dd></div>`;
  }

  function Sides({ group }) {
    const of = (verdict) => group.rollouts.filter((one) => one.verdict === verdict);
    const [kept, dropped, rejected] = [of("kept"), of("dropped"), of("group_rejected")];
    const none = group.rollouts.filter((one) => one.verdict === null);
    return html`<dl class="sides">
      ${kept.length > 0 && html`<${Marks} of=${kept} word="kept" />`}
      ${dropped.length > 0 && html`<${Marks} of=${dropped} word="dropped" />`}
      ${rejected.length > 0 && html`<${Marks} of=${rejected} word="rejected" />`}
      ${none.length > 0 && html`<${Marks} of=${none} word=${none.length === group.rollouts.length ? "rollouts" : "not judged"} />`}
    </dl>`;
  }

  function Reward({ rollout }) {
    const parts = Object.entries(rollout.rewards || {});
    const title = parts.map(([name, value]) => `${hrm.ui.plain(name)} ${hrm.ui.format.number(value)}`).join(", ");
    return html`<span title=${title}><${Num} of=${rollout.reward} digits=${2} />${parts.length > 1 && html` <small>${parts.length} parts</small>`}</span>`;
  }

  const penalty = (rollout) => {
    const values = [rollout.penalty_error, rollout.penalty_format];
    if (values.every((value) => value === null || value === undefined)) return null;
    return values.map((value) => hrm.ui.format.number(value ?? 0, 2)).join(" + ");
  };
  const roles_title = (rollout) =>
    Object.entries(rollout.penalty_by_role || {}).map(([role, value]) => `${hrm.ui.plain(role)}: ${JSON.stringify(value)}`).join("\n") || "errors of tools + format";

  // The answer in a text, if it is between tags.
  function short_answer(answer) {
    const found = answer && /<answer>([^]*?)<\/answer>\s*$/.exec(answer.text);
    return found ? found[1] : answer;
  }

  // Only trainings judge rollouts. Other runs have a status in place of the verdict.
  function columns({ place, chosen, choose, judged }) {
    const reason = (rollout) => rollout.reason || rollout.error || (rollout.verdict === null && rollout.stop_reason ? rollout.stop_reason.replaceAll("_", " ") : null);
    const made = [
      { key: "choose", label: "", spoken: "Choose", width: "1.2rem", wide: true, render: (one) => !hrm.api.is_static() && html`<input type="checkbox" aria-label=${`Choose sample ${one.sample} to compare`} checked=${chosen.includes(one.trajectory)} onChange=${() => choose(one.trajectory)} />` },
      { key: "sample", label: "#", width: "2rem", align: "right", wide: true, help: "sample", render: (one) => html`<a href=${hrm.link("trajectory", { place, id: one.trajectory })} aria-label=${`Sample ${one.sample}: the trajectory`}>${one.sample}</a>` },
      { key: "verdict", label: "Verdict", width: "7.4rem", first: true, render: (one) => (one.verdict ? html`<${Badge} of=${one.verdict}>${one.verdict === "group_rejected" ? "rejected" : undefined}</${Badge}>` : html`<${Badge} of=${one.status} />`) },
      { key: "reward", label: "Reward", width: "5.6rem", first: true, align: "right", render: (one) => html`<${Reward} rollout=${one} />` },
      { key: "outcome", label: "Outcome", width: "5.4rem", wide: true, render: (one) => html`<${Badge} of=${outcome_of(one)} />` },
      { key: "advantage", label: "Advantage", width: "5rem", align: "right", first: true, render: (one) => html`<${Num} of=${one.advantage} digits=${2} sign=${true} />` },
      { key: "tools", label: "Tools", width: "minmax(4rem, 8rem)", render: (one) => html`<${Strip} tools=${one.tools} most=${8} />` },
      { key: "penalty", label: "Penalties", width: "5.6rem", align: "right", wide: true, help: "errors of tools + format", render: (one) => (penalty(one) === null ? html`<${Num} of=${null} />` : html`<span class="num" title=${roles_title(one)}>${penalty(one)}</span>`) },
      { key: "tokens", label: "Tokens", width: "4rem", align: "right", help: "sampled", render: (one) => html`<${Num} of=${one.tokens} as="count" />` },
      { key: "seconds", label: "Time", width: "4.4rem", align: "right", wide: true, render: (one) => html`<${Num} of=${one.seconds} as="seconds" />` },
      { key: "answer", label: "Answer", width: "minmax(5rem, 1fr)", wide: true, render: (one) => html`<span title=${one.answer && hrm.ui.plain(one.answer.text).slice(0, 2000)}><${Text} of=${short_answer(one.answer)} clip=${160} /></span>` },
      { key: "reason", label: "Why", width: "minmax(8rem, 2fr)", long: true, render: (one) => { const text = reason(one); return html`<span title=${text && hrm.ui.plain(text.text ?? text).slice(0, 1000)}><${Text} of=${text} clip=${240} /></span>`; } },
    ];
    if (judged) return made;
    const words = { verdict: "Status", reason: "Ended by" };
    return made.filter((column) => !["advantage", "penalty"].includes(column.key)).map((column) => ({ ...column, label: words[column.key] || column.label }));
  }

  const MATCHES = {
    verdict: (one, value) => (value === "none" ? one.verdict === null : one.verdict === value),
    status: (one, value) => one.status === value,
    outcome: (one, value) => outcome_of(one) === value,
    tool: (one, value) => (value === "failed" ? failed(one) > 0 : one.tools.some((tool) => tool.status === value)),
  };

  const chosen_of = (rollouts, filters) => rollouts.filter((one) => Object.entries(filters).every(([key, value]) => !value || MATCHES[key](one, value)));

  const LONG = 600; // maximum number of characters of a prompt that are shown at first

  function Prompt({ of, place }) {
    const [whole, set] = useState(false);
    if (whole || !of || of.text === null || of.text.length <= LONG) return html`<${Cut} value=${of} place=${place} />`;
    return html`<pre class="prose" dir="auto">${hrm.ui.pieces(of.text.slice(0, LONG))}…</pre>
      <button class="quiet" onClick=${() => set(true)}>Whole prompt <small>(${hrm.ui.format.count(of.chars)} characters)</small></button>`;
  }

  /* The part of a training that a group belongs to, by the group's name: `RUN/step-4/0` belongs to step 5. */
  function stage_of(group) {
    const found = /\/(?:step-(\d+)|(eval-[^/]+))\/\d+$/.exec(group);
    return found && (found[1] ? `step ${Number(found[1]) + 1}` : found[2]);
  }

  // <Group group place sort filters chosen choose>
  function Group({ group, place, sort, filters, chosen, choose, stage, level = 2 }) {
    const shown = chosen_of(group.rollouts, filters);
    if (!shown.length) return null;
    const by = (SORTS[sort] || SORTS[""])[1];
    const { task } = group;
    const heading = html`<${Text} of=${task.family} clip=${60} /> <small class="mono"><${Text} of=${task.id} clip=${60} /></small>${stage && stage_of(group.group) && html` <small><${Text} of=${stage_of(group.group)} clip=${40} /></small>`}`;
    const reason = group.rejected && (group.rejected.text ?? group.rejected);
    return html`<section class="group" aria-label=${`Group ${hrm.ui.plain(group.group)}`}>
      <header class="group-head">
        <div class="group-task">
          ${html`<${`h${level}`}>${heading}</${`h${level}`}>`}
          <${Prompt} of=${task.prompt} place=${place} />
          ${task.answer && task.answer.text && html`<p class="expected"><small>expected</small> <${Text} of=${task.answer} clip=${300} /></p>`}
        </div>
        <div class="group-sides">
          <${Sides} group=${group} />
          ${reason && html`<p class="rejected"><${Glyph} of="group_rejected" /> <${Text} of=${reason} /></p>`}
        </div>
      </header>
      <${Table} rows=${[...shown].sort(by)} columns=${columns({ place, chosen, choose, judged: group.rollouts.some((one) => one.verdict !== null) })} id=${(one) => one.trajectory} label=${`Siblings of ${hrm.ui.plain(task.id)}`}
        href=${(one) => hrm.link("trajectory", { place, id: one.trajectory })} mark=${(one) => (one.verdict === "kept" || one.verdict === null ? "" : "dim")} />
      ${shown.length < group.rollouts.length && html`<p class="muted"><small>${shown.length} of ${group.rollouts.length} siblings match.</small></p>`}
    </section>`;
  }

  const values_of = (groups, key) => [...new Set(groups.flatMap((group) => group.rollouts.map(key)).filter((value) => value !== null && value !== undefined))].sort();

  function Choice({ label, value, of, on }) {
    return html`<label>${label} <select value=${value} onChange=${(event) => on(event.target.value)}>
      <option value="">all</option>${of.map((one) => html`<option key=${one} value=${one} selected=${one === value}>${hrm.ui.plain(one).replaceAll("_", " ")}</option>`)}
    </select></label>`;
  }

  // The state of filters, kept in the address: [values, controls].
  function useFilters(groups) {
    const [sort, set_sort] = hrm.useParam("sort");
    const [verdict, set_verdict] = hrm.useParam("verdict");
    const [status, set_status] = hrm.useParam("status");
    const [outcome, set_outcome] = hrm.useParam("outcome");
    const [tool, set_tool] = hrm.useParam("tool");
    const verdicts = values_of(groups, (one) => one.verdict);
    const tools = [...new Set(groups.flatMap((group) => group.rollouts.flatMap((one) => one.tools.map((mark) => mark.status))).filter(Boolean))].sort();
    const controls = html`
      <label>Order <select value=${sort} onChange=${(event) => set_sort(event.target.value)}>${Object.entries(SORTS).map(([key, [text]]) => html`<option key=${key} value=${key} selected=${key === sort}>${text}</option>`)}</select></label>
      ${verdicts.length > 0 && html`<${Choice} label="Verdict" value=${verdict} of=${verdicts} on=${set_verdict} />`}
      <${Choice} label="Outcome" value=${outcome} of=${values_of(groups, outcome_of)} on=${set_outcome} />
      <${Choice} label="Status" value=${status} of=${values_of(groups, (one) => one.status)} on=${set_status} />
      ${tools.length > 0 && html`<${Choice} label="With a tool call" value=${tool} of=${["failed", ...tools]} on=${set_tool} />`}
    `;
    return [{ sort, filters: { verdict, status, outcome, tool } }, controls];
  }

  Object.assign(hrm.ui, { Group, useFilters, chosen_of });
})();
