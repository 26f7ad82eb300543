/* Two runs side by side, step by step from the step where they part; and the page to edit a run and fork it. */
(() => {
  "use strict";
  const { html } = hrm;
  const { useEffect, useMemo, useRef, useState } = hrm.hooks;

  // --- compare -------------------------------------------------------------------------------------------------------

  const textOf = (item) => {
    const { plain, argumentText, programOf } = hrm.parts;
    if (item.kind === "turn") return plain(item.prompt);
    if (item.kind === "tool") return plain(item.code) || argumentText(item.arguments);
    const calls = (item.code_calls || []).map((call) => `${call.name}: ${programOf(call.arguments) ?? argumentText(call.arguments)}`);
    return [plain(item.text), ...calls].filter(Boolean).join("\n\n");
  };
  const thoughtsOf = (item) => hrm.parts.plain(item.reasoning);
  const shownOf = (item) => hrm.parts.plain(item.content) || [item.stdout, item.stderr, item.value].map(hrm.parts.plain).filter(Boolean).join("\n");

  function Side({ item, other, side, place, id }) {
    const { Text, format } = hrm.ui, { Mark, WordDiff } = hrm.parts;
    if (!item) return html`<div class="pair-side absent muted">no such step</div>`;
    const name = item.kind === "tool" ? item.name : item.kind === "turn" ? "person" : item.node || item.role;
    const pair = (of) => (side === "a" ? [of(item), other ? of(other) : of(item)] : [other ? of(other) : of(item), of(item)]);
    const [a, b] = pair(textOf), [from, to] = pair(shownOf), [before, after] = pair(thoughtsOf);
    return html`<div class=${`pair-side ${item.kind}`}>
      <p class="pair-head">${item.kind === "tool" ? html`<${Mark} status=${item.status} />` : null}
        <a href=${hrm.link("trajectory", { place, id, item: item.id })}><${Text} of=${name} /></a>
        <span class="muted small">${[item.sampled_tokens ? `${item.sampled_tokens} tok` : "", item.seconds == null ? "" : format.seconds(item.seconds)].filter(Boolean).join(" · ")}</span></p>
      ${thoughtsOf(item) ? html`<${hrm.parts.Part} title="Thoughts" folded note=${before === after ? "the same" : "they differ"}>
        <${WordDiff} a=${before} b=${after} side=${side} /><//>` : null}
      <${WordDiff} a=${a} b=${b} side=${side} />
      ${item.kind === "tool" ? html`<div class="pair-output"><${WordDiff} a=${from} b=${to} side=${side} /></div>` : null}
    </div>`;
  }

  /* Rows in runs: equal rows are folded into one line, differing rows are shown. */
  function runsOf(rows) {
    const runs = [];
    for (const row of rows) {
      const last = runs[runs.length - 1];
      if (row.equal && last && last.equal) last.rows.push(row);
      else runs.push({ equal: row.equal, rows: [row] });
    }
    return runs;
  }

  function Pairs({ data, place }) {
    const [open, setOpen] = useState(() => new Set());
    const runs = useMemo(() => runsOf(data.rows), [data.rows]);
    const toggle = (at) => setOpen((old) => new Set(old.has(at) ? [...old].filter((one) => one !== at) : [...old, at]));
    return html`<div class="pairs">
      ${runs.map((run, at) => (run.equal && !open.has(at)
        ? html`<button type="button" class="pair-equal" key=${at} onClick=${() => toggle(at)}>${run.rows.length} ${run.rows.length === 1 ? "step is" : "steps are"} the same${
          run.rows.every((row) => row.shared) ? ", from before they parted" : ""}</button>`
        : run.rows.map((row, index) => html`<div class=${`pair${row.equal ? " equal" : ""}`} key=${`${at}.${index}`}>
            <${Side} item=${row.a} other=${row.b} side="a" place=${place} id=${data.a.trajectory} />
            <${Side} item=${row.b} other=${row.a} side="b" place=${place} id=${data.b.trajectory} />
          </div>`)))}
      ${data.rows.length ? null : html`<p class="muted">Neither has a step.</p>`}
    </div>`;
  }

  function Column({ header, overlay, name, place, other, side }) {
    const { Text } = hrm.ui, { Judgement, WordDiff, plain } = hrm.parts;
    const [a, b] = side === "a" ? [header, other] : [other, header];
    return html`<section class="pair-side" aria-label=${`Run ${name}`}>
      <h2><a href=${hrm.link("trajectory", { place, id: header.trajectory })}>${name}: <${Text} of=${header.thread} /></a></h2>
      <${Judgement} header=${header} overlay=${overlay} />
      <div class="answer-row"><span class="muted small">Answer</span>
        ${plain(header.answer) ? html`<${WordDiff} a=${plain(a.answer)} b=${plain(b.answer)} side=${side} />` : html`<span class="muted">no answer</span>`}</div>
      ${plain(header.error) ? html`<p class="warning"><${Text} of=${header.error} /></p>` : null}
    </section>`;
  }

  function Comparison({ data, place }) {
    const { Text } = hrm.ui, { LineDiff, Part, plain } = hrm.parts, { a, b } = data;
    const same = plain(a.task.prompt) === plain(b.task.prompt);
    const newest = (header) => header.overlay || (data.overlays && data.overlays[header.trajectory]) || null;
    return html`
      ${same ? html`<p class="task-line"><span class="muted small">Task</span> <${Text} of=${plain(a.task.prompt)} clip=${400} /></p>`
        : html`<p class="notice">These are runs of different tasks.</p>`}
      <div class="pair heads">
        <${Column} header=${a} overlay=${newest(a)} other=${b} name="A" side="a" place=${place} />
        <${Column} header=${b} overlay=${newest(b)} other=${a} name="B" side="b" place=${place} />
      </div>
      <h2>Steps</h2>
      <p class="muted small">${data.shared ? "They share their first steps, up to the checkpoint where they parted." : "They share no checkpoint: steps are aligned by their place."}
        ${" "}<del>Struck through</del>: only in A. <ins>Underlined</ins>: only in B.</p>
      <${Pairs} data=${data} place=${place} />
      ${(data.left_out || []).some(Boolean) ? html`<p class="notice">Only the first steps of each are compared: ${data.left_out[0].toLocaleString("en")} of A and ${
        data.left_out[1].toLocaleString("en")} of B are left out.</p>` : null}
      ${data.states && data.states.length ? html`<h2>State at the end</h2>
        ${data.states.map((change, index) => html`<${Part} key=${index} title=${html`<${Text} of=${`${change.channel}${change.part || ""}`} />`}
          note=${`${change.lines.length} lines`} folded=${change.lines.length > 40}><${LineDiff} lines=${change.lines} />
            ${change.left_out ? html`<p class="muted small">${change.left_out.toLocaleString("en")} more lines</p>` : null}<//>`)}` : null}`;
  }

  function ComparePage({ params }) {
    const { Answer, Page } = hrm.ui, { place, a, b } = params;
    const answer = hrm.useData("compare", { place, a, b });
    return html`<${Page} title="Two runs compared" crumbs=${hrm.parts.crumbsOf(place, answer.data && answer.data.a.run)}>
      <${Answer} of=${answer}>${(data) => html`<${Comparison} data=${data} place=${place} />`}<//>
    <//>`;
  }

  // --- jobs ----------------------------------------------------------------------------------------------------------

  /* The job with this id, requested again and again until it ends. */
  function useJob(id) {
    const [job, set] = useState(null);
    useEffect(() => {
      if (!id) return undefined;
      let timer = null, gone = false;
      const ask = async () => {
        try {
          const { jobs } = await hrm.api.get("jobs", {});
          const found = jobs.find((one) => one.job === id) || null;
          if (gone) return;
          set(found);
          if (!found || found.state === "running") timer = setTimeout(ask, 700);
        } catch (error) {
          if (!gone) set({ job: id, state: "failed", error: error.message });
        }
      };
      ask();
      return () => { gone = true; clearTimeout(timer); };
    }, [id]);
    return id ? job : null;
  }

  function JobState({ job, what }) {
    const { Badge, Problem, format } = hrm.ui;
    if (!job) return html`<p class="muted" role="status">Starting …</p>`;
    if (job.state === "running") return html`<p role="status"><${Badge} of="running" /> ${what}, ${format.seconds(job.seconds)} so far</p>`;
    if (job.state === "failed") return html`<${Problem} error=${typeof job.error === "string" || !job.error ? { message: job.error || `${what} failed.`, hint: "" } : job.error} />`;
    return html`<p role="status" class="good-text">${what}: done in ${format.seconds(job.seconds)}.</p>`;
  }

  /* Replays the recorded run without a model, and shows if the result is still the same. */
  function TrueReplay({ place, id }) {
    const { Badge } = hrm.ui;
    const [started, setStarted] = useState(null), [error, setError] = useState(null);
    const job = useJob(started);
    const begin = async () => {
      setError(null);
      try {
        setStarted((await hrm.api.post("replay", { place, id })).job);
      } catch (caught) {
        setError(caught);
      }
    };
    const result = job && job.state === "done" ? job.result || {} : null;
    const verdict = result && (result.verdict || "done");
    return html`<section class="replay" aria-label="True replay">
      <h2>True replay</h2>
      <p class="muted small">Runs the graph again on the recorded answers of models and tools, and compares every checkpoint. Nothing is sampled.</p>
      ${error ? html`<${hrm.ui.Problem} error=${error} />` : null}
      ${started && !error ? html`<${JobState} job=${job} what="Replay" />` : html`<button type="button" onClick=${begin}>Replay the recorded run</button>`}
      ${result ? html`<p class="replay-verdict" data-verdict=${verdict}><${Badge} of=${verdict === "equal" ? "ok" : "error"}>${result.words || verdict}<//>
        ${result.checkpoints ? html` <span>${result.checkpoints} checkpoints compared</span>` : null}</p>` : null}
    </section>`;
  }

  // --- edit and fork -------------------------------------------------------------------------------------------------

  /* Asks the user once for the token for forks, which this window keeps. */
  function ForkToken({ onGiven }) {
    const field = useRef(null);
    const give = (event) => {
      event.preventDefault();
      const token = field.current.value.trim();
      if (!token) return;
      sessionStorage.setItem("hrm-fork-token", token);
      onGiven();
    };
    return html`<form class="panel fork-token" onSubmit=${give}>
      <label for="fork-token">Fork token</label>
      <p class="muted small">A fork calls models and tools again. <code>hrm-agent view --allow-fork</code> printed a token for it when it started.</p>
      <input id="fork-token" ref=${field} type="text" autocomplete="off" spellcheck="false" /> <button>Use it</button>
    </form>`;
  }

  const EDITED = { messages: {}, tools: {}, values: {}, as_node: "" };

  /* One text that can be changed. `value`: the edit (undefined while the text is as recorded). */
  function Editable({ id, label, recorded, value, onEdit, problem, locked }) {
    const { Text } = hrm.ui;
    const changed = value !== undefined, rows = Math.min(14, (value ?? recorded).split("\n").length + 1);
    if (locked) return html`<div class="editable"><p class="edit-label">${label}</p><p class="muted small">${locked}</p></div>`;
    return html`<div class=${`editable${changed ? " changed" : ""}`}>
      <p class="edit-label"><label for=${id}>${label}</label>
        ${changed ? html`<span class="warn-text small">edited</span><button type="button" class="quiet" onClick=${() => onEdit(undefined)}>Undo</button>` : null}</p>
      <textarea id=${id} rows=${rows} spellcheck="false" dir="auto" aria-invalid=${problem ? "true" : null} aria-describedby=${problem ? `${id}-problem` : null}
        value=${value ?? recorded} onInput=${(event) => onEdit(event.target.value === recorded ? undefined : event.target.value)}></textarea>
      ${problem ? html`<p class="bad-text small" id=${`${id}-problem`}>${problem}</p>` : null}
    </div>`;
  }

  const jsonOf = (channel) => channel.kind === "text" ? JSON.stringify(hrm.parts.plain(channel.text))
    : JSON.stringify(channel.value === undefined ? null : channel.value, null, 2);

  const whyBad = (text) => {
    try { JSON.parse(text); return null; } catch (error) { return `Not JSON: ${error.message}`; }
  };

  function Editor({ moment, edit, change }) {
    const { Text } = hrm.ui, { Part, plain } = hrm.parts;
    const put = (kind, key) => (value) => {
      const { [key]: _, ...rest } = edit[kind];
      change({ ...edit, [kind]: value === undefined ? rest : { ...rest, [key]: value } });
    };
    const talks = moment.channels.filter((channel) => channel.kind === "messages"), others = moment.channels.filter((channel) => channel.kind !== "messages");
    const tooLong = (value) => (value && typeof value === "object" && value.cut ? `${value.chars.toLocaleString("en")} characters: too long to edit here. On a terminal: hrm-agent fork --message or --tool.` : null);
    return html`
      ${talks.map((channel) => html`<${Part} key=${channel.name} title=${html`<${Text} of=${channel.name} />`} note=${`${channel.messages.length} messages`}>
        ${channel.messages.map((message, index) => {
          const tool = message.type === "tool" && message.tool_call_id, kind = tool ? "tools" : "messages", key = tool || message.id || String(index);
          return html`<${Editable} key=${key} id=${`edit-${channel.name}-${index}`} recorded=${plain(message.text)} value=${edit[kind][key]} onEdit=${put(kind, key)}
            locked=${tooLong(message.text)}
            label=${html`${index + 1}. ${message.type}${message.name ? html` <${Text} of=${message.name} />` : ""}${tool ? " result" : ""}`} />`;
        })}<//>`)}
      ${others.length ? html`<${Part} title="Channels of the state" note="as JSON" folded>
        ${others.map((channel) => html`<${Editable} key=${channel.name} id=${`edit-channel-${channel.name}`} recorded=${channel.kind === "unread" ? "" : jsonOf(channel)}
          value=${edit.values[channel.name]} onEdit=${put("values", channel.name)} problem=${edit.values[channel.name] === undefined ? null : whyBad(edit.values[channel.name])}
          locked=${channel.kind === "unread" ? "Its type is not loaded from a store, so it cannot be edited here." : tooLong(channel.text || channel.value)}
          label=${html`<${Text} of=${channel.name} />`} />`)}<//>` : null}`;
  }

  const isEdited = (edit) => Boolean(edit.as_node) || ["messages", "tools", "values"].some((kind) => Object.keys(edit[kind]).length);
  /* The edit in the form that the server accepts, with channels as JSON values. */
  const sent = (edit) => ({ messages: edit.messages, tools: edit.tools, as_node: edit.as_node || null,
    values: Object.fromEntries(Object.entries(edit.values).map(([name, text]) => [name, JSON.parse(text)])) });

  function Plan({ plan }) {
    const { Text } = hrm.ui;
    const names = (list) => list.map((name, index) => html`${index ? ", " : ""}<strong key=${index}><${Text} of=${name} /></strong>`);
    return html`<section class="panel plan" aria-label="What will run again">
      <h2>Will run again</h2>
      <ul>
        <li>Nodes: ${plan.runs_again.length ? names(plan.runs_again) : "none: the run had ended here"}</li>
        <li>Model, sampled anew: <strong><${Text} of=${plan.model} /></strong></li>
        <li>Tools that ran here: ${plan.tools.length ? names(plan.tools) : "none"}${plan.isolation ? html`, isolation <strong><${Text} of=${plan.isolation} /></strong>` : null}</li>
        ${plan.effects ? html`<li class="warn-text"><${Text} of=${plan.effects} /></li>` : null}
      </ul>
      <p class="small muted">On a terminal: <code><${Text} of=${plan.command} /></code></p>
    </section>`;
  }

  function Forking({ place, thread, checkpoint, moment, origin }) {
    const { Problem } = hrm.ui;
    const [edit, setEdit] = useState(EDITED), [count, setCount] = useState(1);
    const [plan, setPlan] = useState(null), [error, setError] = useState(null), [busy, setBusy] = useState(false);
    const [started, setStarted] = useState(null), [token, setToken] = useState(hrm.api.can_fork());
    const job = useJob(started), shown = useRef(null);
    const bad = Object.values(edit.values).some((text) => whyBad(text) !== null);
    const change = (next) => { setEdit(next); setPlan(null); setStarted(null); };
    const ask = async (name, more) => {
      setBusy(true);
      setError(null);
      try {
        return await hrm.api.post(name, { place, thread, checkpoint, edit: sent(edit), ...more });
      } catch (caught) {
        setError(caught);
        if (caught.status === 403) setToken(false);
        return null;
      } finally {
        setBusy(false);
      }
    };
    const showPlan = async () => setPlan(await ask("fork/plan", {}));
    const go = async () => {
      const begun = await ask("fork", { digest: plan.digest, count });
      if (begun) setStarted(begun.job);
    };
    const made = job && job.state === "done" ? job.trajectories || [] : [];
    useEffect(() => { if (made.length && shown.current) shown.current.focus(); }, [made.length]);
    if (!token) return html`${error ? html`<${Problem} error=${error} />` : null}<${ForkToken} onGiven=${() => { setError(null); setToken(true); }} />`;
    return html`
      <div class="fork-layout">
        <section class="fork-edit" aria-label="What to edit"><${Editor} moment=${moment} edit=${edit} change=${change} /></section>
        <section class="fork-act" aria-label="Fork">
          ${plan ? html`<${Plan} plan=${plan} />` : html`<p class="muted">${isEdited(edit) ? "Edited." : "Nothing is edited yet: a fork as it is samples another way on."} See first what will run again.</p>`}
          ${error ? html`<${Problem} error=${error} />` : null}
          <div class="controls">
            <label>Forks <input type="number" min="1" max="16" value=${count} onInput=${(event) => { setCount(Math.max(1, Math.min(16, Number(event.target.value) || 1))); }} /></label>
            <label>As node <input type="text" size="10" value=${edit.as_node} placeholder="as recorded" onInput=${(event) => change({ ...edit, as_node: event.target.value.trim() })} /></label>
          </div>
          ${plan ? html`<button type="button" class="main" disabled=${busy || (started && (!job || job.state === "running"))} onClick=${go}>Fork and run${count > 1 ? ` ${count}` : ""}</button>`
            : html`<button type="button" class="main" disabled=${busy || bad} onClick=${showPlan}>Show what will run again</button>`}
          ${started ? html`<${JobState} job=${job} what="Fork" />` : null}
          ${origin ? html`<${TrueReplay} place=${place} id=${origin} />` : null}
        </section>
      </div>
      ${made.length && origin ? html`<section class="fork-result" aria-label="Both branches" ref=${shown} tabindex="-1">
        <h2>Both branches</h2>
        ${made.length > 1 ? html`<ul class="plain-list">${made.map((id) => html`<li key=${id}><a href=${hrm.link("compare", { place, a: origin, b: id })}>Compare with ${id}</a></li>`)}</ul>` : null}
        <${Both} place=${place} a=${origin} b=${made[0]} />
      </section>` : null}`;
  }

  function Both({ place, a, b }) {
    const answer = hrm.useData("compare", { place, a, b });
    return html`<p><a href=${hrm.link("trajectory", { place, id: b })}>Open the fork</a></p>
      <${hrm.ui.Answer} of=${answer}>${(data) => html`<${Comparison} data=${data} place=${place} />`}<//>`;
  }

  function ForkPage({ params }) {
    const { Answer, Page, Problem } = hrm.ui, { place, thread, checkpoint } = params;
    const about = hrm.useData("about", {});
    const moment = hrm.useData("moment", { place, thread, checkpoint }, { live: false });
    const origin = moment.data && (moment.data.trajectory || params.origin);
    const back = params.origin ? [{ text: "trajectory", href: hrm.link("trajectory", { place, id: params.origin, moment: checkpoint }) }] : [];
    const closed = about.data && !about.data.fork;
    return html`<${Page} title="Edit and fork" crumbs=${hrm.parts.crumbsOf(place, null, ...back)}>
      ${closed ? html`<${Problem} error=${{ message: "This viewer only reads.", hint: "Start it with --allow-fork to fork from here, or type: hrm-agent fork." }} />`
        : html`<${Answer} of=${moment}>${(data) => html`<${Forking} key=${`${thread} ${checkpoint}`} place=${place} thread=${thread} checkpoint=${checkpoint} moment=${data} origin=${origin} />`}<//>`}
    <//>`;
  }

  hrm.pages.compare = ComparePage;
  hrm.pages.fork = ForkPage;
})();
