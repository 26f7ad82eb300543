// The groups of one step, or of a run that does not train; and the long list of its trajectories.
(() => {
  "use strict";
  const { html } = hrm;
  const { useState, useEffect, useRef, useMemo } = hrm.hooks;
  const { Answer, Badge, Empty, Group, Loading, Num, Page, Problem, RunTabs, Table, Text, Time, run_crumbs, run_name, useFilters, chosen_of, format } = hrm.ui;

  const MORE = 24; // number of groups that are added to the page at a time

  function useChoice(place) {
    const [chosen, set] = useState([]);
    const choose = (id) => set(chosen.includes(id) ? chosen.filter((one) => one !== id) : [...chosen, id].slice(-2));
    const button = !hrm.api.is_static() && html`<button class="main" disabled=${chosen.length !== 2} title="Choose two siblings by their boxes" onClick=${() => hrm.go("compare", { place, a: chosen[0], b: chosen[1] })}>
      Compare${chosen.length ? ` (${chosen.length} of 2)` : " two"}</button>`;
    return { chosen, choose, button };
  }

  function Groups({ groups, place, stage, on_more }) {
    const [{ sort, filters }, controls] = useFilters(groups);
    const [most, set_most] = useState(MORE);
    const { chosen, choose, button } = useChoice(place);
    const found = groups.filter((group) => chosen_of(group.rollouts, filters).length);
    return html`<div class="controls">${controls}${button}</div>
      ${found.length === 0 && html`<${Empty}>No sibling matches.</${Empty}>`}
      ${found.slice(0, most).map((group) => html`<${Group} key=${group.group} group=${group} place=${place} sort=${sort} filters=${filters} chosen=${chosen} choose=${choose} stage=${stage} />`)}
      ${(found.length > most || on_more) && html`<button onClick=${() => { set_most(most + MORE); if (found.length <= most + MORE && on_more) on_more(); }}>More groups${found.length > most ? html` <small>${found.length - most} left</small>` : ""}</button>`}`;
  }

  const fact = (label, value) => html`<div key=${label}><dt>${label}</dt><dd>${value}</dd></div>`;

  function StepFacts({ row }) {
    // label, key, format, and small text beside the value
    const facts = [
      ["Correct", "rollout/correct", "share"], ["Held-out", "eval/correct", "share"], ["Trained on", "select/kept", "count", (of) => `of ${format.count(of["rollout/count"])}`],
      ["Groups rejected", "select/groups_rejected", "share"], ["Tool error among the correct", "rollout/correct_with_tool_error", "share", (of) => `${format.share(of["select/correct_with_tool_error"])} of those trained on`],
      ["Tokens a rollout", "rollout/sampled_tokens", "number"], ["Entropy", "entropy_estimate", "number"], ["Loss", "loss", "number"],
    ].filter(([, key]) => row[key] !== null && row[key] !== undefined);
    return facts.length > 0 && html`<dl class="facts">${facts.map(([label, key, as, beside]) => fact(label, html`<${Num} of=${row[key]} as=${as} digits=${as === "number" ? 3 : undefined} />${beside && html` <small>${beside(row)}</small>`}`))}</dl>
      ${row.skipped && html`<p class="warn-text">The weights did not change: <${Text} of=${row.skipped} clip=${600} /></p>`}`;
  }

  function Step({ params }) {
    const { place, run = "", step } = params;
    const answer = hrm.useData("step", { place, run, step });
    const { data } = answer;
    const to = (number) => hrm.link("step", { ...params, step: number });
    const turn = (number) => number !== null && number !== undefined && hrm.go("step", { ...params, step: number });
    hrm.useKeys({
      "[": { run: () => data && turn(data.previous), help: "step before" },
      "]": { run: () => data && turn(data.next), help: "next step" },
    });
    const actions = data && html`
      ${data.previous !== null ? html`<a href=${to(data.previous)} rel="prev">← step ${data.previous}</a>` : html`<span class="muted">first step</span>`}
      ${data.next !== null ? html`<a href=${to(data.next)} rel="next">step ${data.next} →</a>` : html`<span class="muted">newest step</span>`}`;
    const crumbs = [...run_crumbs(place, run), { text: run_name(place, run), href: hrm.link("run", { place, run }) }];
    return html`<${Page} title=${`Step ${step}`} crumbs=${crumbs} actions=${actions}>
      <${Answer} of=${answer}>${(found) => html`
        <${StepFacts} row=${found.metrics || {}} />
        <${Damaged} of=${found.damaged} />
        ${found.groups.length ? html`<${Groups} key=${found.step} groups=${found.groups} place=${place} />` : html`<${Empty}>No rollout of this step is on record.</${Empty}>`}
      `}</${Answer}>
    </${Page}>`;
  }

  const Damaged = ({ of }) => of && of.length > 0 && html`<${Problem} error=${{ message: `${of.length} rows cannot be read: ${of[0].message}`, hint: "hrm-agent store verify tells more." }} />`;

  // --- groups of runs without steps ----------------------------------------------------------------------------------

  // `first`: value of `after` for the first page.
  function usePages(name, params, take, first = 0) {
    const [held, set] = useState({ pages: [], next: null, error: null, loading: true });
    const asked = useRef(0);
    const load = async (after, before) => {
      const mine = ++asked.current;
      try {
        const data = await hrm.api.get(name, { ...params, after });
        if (mine === asked.current) set({ pages: [...before, take(data)], next: data.next, error: null, loading: false, data });
      } catch (error) {
        if (mine === asked.current) set({ ...held, error, loading: false });
      }
    };
    const key = JSON.stringify(params);
    useEffect(() => void load(first, []), [key]);
    // New groups come at the end, so the last page that was shown is read again.
    hrm.useChanges(params.place, async () => {
      if (held.pages.length <= 1) await load(first, []);
    });
    return { ...held, more: held.next === null ? null : () => load(held.next, held.pages) };
  }

  function RunGroups({ params }) {
    const { place, run = "" } = params;
    const { pages, error, loading, more } = usePages("groups", { place, run, limit: 50 }, (data) => data.groups);
    const groups = useMemo(() => pages.flat(), [pages]);
    return html`<${Page} title=${run_name(place, run)} crumbs=${run_crumbs(place, run)} tabs=${html`<${RunTabs} place=${place} run=${run} current="groups" />`}>
      ${error && html`<${Problem} error=${error} />`}
      ${loading ? html`<${Loading} />` : groups.length ? html`<${Groups} groups=${groups} place=${place} stage on_more=${more} />` : !error && html`<${Empty}>No trajectory is on record.${!run && !hrm.api.is_static() && html` There may be <a href=${hrm.link("threads", { place })}>threads with checkpoints alone</a>.`}</${Empty}>`}
    </${Page}>`;
  }

  // --- all trajectories of a run -------------------------------------------------------------------------------------

  function named(columns, rows) {
    return rows.map((row) => Object.fromEntries(columns.map((name, index) => [name, row[index]])));
  }

  // All pages, one after another. The first is shown at once. They are read again when the place has changed.
  function useTrajectories(place, run) {
    const [held, set] = useState({ rows: [], total: null, error: null, done: false });
    const asked = useRef(0);
    const load = async () => {
      const mine = ++asked.current;
      let rows = [];
      let after = 0;
      try {
        do {
          // The first page is short, so it is shown before the others are read.
          const data = await hrm.api.get("trajectories", { place, run, after, limit: after ? 2000 : 200 });
          if (mine !== asked.current) return;
          rows = rows.concat(named(data.columns, data.rows));
          after = data.next;
          const so_far = rows;
          set((before) => (after !== null && before.rows.length > so_far.length ? before : { rows: so_far, total: data.total, error: null, done: after === null }));
        } while (after !== null);
      } catch (error) {
        if (mine === asked.current) set((before) => ({ ...before, error, done: true }));
      }
    };
    useEffect(() => void load(), [place, run]);
    hrm.useChanges(place, async () => {
      await load();
      await new Promise((resolve) => setTimeout(resolve, 3000)); // a long list is not read again at every change
    });
    return held;
  }

  const LIST = (place) => [
    { key: "trajectory", label: "Trajectory", width: "10rem", value: (row) => row.trajectory, render: (row) => html`<a class="mono" href=${hrm.link("trajectory", { place, id: row.trajectory })}><${Text} of=${row.trajectory} clip=${24} /></a>` },
    { key: "status", label: "Status", width: "7.5rem", first: true, value: (row) => row.status, render: (row) => html`<${Badge} of=${row.status} />` },
    { key: "reward", label: "Reward", width: "5rem", align: "right", first: true, value: (row) => row.reward, render: (row) => html`<${Num} of=${row.reward} digits=${2} />` },
    { key: "verdict", label: "Verdict", width: "7.5rem", first: true, value: (row) => row.verdict, render: (row) => html`<${Badge} of=${row.verdict}>${row.verdict === "group_rejected" ? "rejected" : undefined}</${Badge}>` },
    { key: "advantage", label: "Advantage", width: "6rem", align: "right", wide: true, value: (row) => row.advantage, render: (row) => html`<${Num} of=${row.advantage} digits=${2} sign=${true} />` },
    { key: "step", label: "Step", width: "4rem", align: "right", value: (row) => row.step, render: (row) => html`<${Num} of=${row.step} as="count" />` },
    { key: "task", label: "Task", width: "minmax(8rem, 1fr)", long: true, value: (row) => row.task, render: (row) => html`<${Text} of=${row.task} clip=${80} />` },
    { key: "stop_reason", label: "Ended by", width: "8rem", wide: true, value: (row) => row.stop_reason, render: (row) => html`<${Text} of=${row.stop_reason && row.stop_reason.replaceAll("_", " ")} />` },
    { key: "tokens", label: "Tokens", width: "4.6rem", align: "right", value: (row) => row.tokens, render: (row) => html`<${Num} of=${row.tokens} as="count" />` },
    { key: "tool_calls", label: "Tools", width: "4rem", align: "right", wide: true, value: (row) => row.tool_calls, render: (row) => html`<${Num} of=${row.tool_calls} as="count" />` },
    { key: "started_at", label: "Begun", width: "6.4rem", align: "right", wide: true, value: (row) => row.started_at, render: (row) => html`<${Time} at=${row.started_at} />` },
  ];

  function Select({ label, value, of, on }) {
    return html`<label>${label} <select value=${value} onChange=${(event) => on(event.target.value)}><option value="">all</option>${of.map((one) => html`<option key=${one} value=${one} selected=${one === value}>${String(one).replaceAll("_", " ")}</option>`)}</select></label>`;
  }

  function List({ params }) {
    const { place, run = "" } = params;
    const { rows, total, error, done } = useTrajectories(place, run);
    const [order, set_order] = hrm.useParam("sort");
    const [status, set_status] = hrm.useParam("status");
    const [verdict, set_verdict] = hrm.useParam("verdict");
    const [text, set_text] = useState("");
    const wanted = text.trim().toLowerCase();
    const columns = useMemo(() => LIST(place), [place]);
    const shown = useMemo(
      () => rows.filter((row) => (!status || row.status === status) && (!verdict || row.verdict === verdict) && (!wanted || `${row.task} ${row.trajectory} ${row.thread}`.toLowerCase().includes(wanted))),
      [rows, status, verdict, wanted],
    );
    const values = (key) => [...new Set(rows.map((row) => row[key]).filter(Boolean))].sort();
    return html`<${Page} title=${run_name(place, run)} crumbs=${run_crumbs(place, run)} tabs=${html`<${RunTabs} place=${place} run=${run} current="list" />`}>
      ${error && html`<${Problem} error=${error} />`}
      ${total === null ? !error && html`<${Loading} />` : html`
        <div class="controls">
          <label>Task or id <input type="search" value=${text} onInput=${(event) => set_text(event.target.value)} /></label>
          <${Select} label="Status" value=${status} of=${values("status")} on=${set_status} />
          <${Select} label="Verdict" value=${verdict} of=${values("verdict")} on=${set_verdict} />
          <span role="status">${format.count(shown.length)}${shown.length === total ? "" : ` of ${format.count(total)}`} ${total === 1 ? "trajectory" : "trajectories"}${done ? "" : ", reading"}</span>
        </div>
        ${shown.length ? html`<${Table} rows=${shown} columns=${columns} id=${(row) => row.seq} label="Trajectories" order=${order} on_order=${set_order}
          href=${(row) => hrm.link("trajectory", { place, id: row.trajectory })} mark=${(row) => (row.verdict && row.verdict !== "kept" ? "dim" : "")} />` : html`<${Empty}>None matches.</${Empty}>`}
      `}
    </${Page}>`;
  }

  hrm.usePages = usePages;
  Object.assign(hrm.pages, { step: Step, groups: RunGroups, list: List });
})();
