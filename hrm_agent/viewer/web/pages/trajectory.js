/* One run: the tree of its steps, the chosen step in full, and the state at any of its checkpoints.

   The step that failed is shown first, or else the step that answered. The address has what is shown: `item` is a step,
   `moment` a checkpoint. */
(() => {
  "use strict";
  const { html } = hrm;
  const { useEffect, useMemo, useRef, useState } = hrm.hooks;

  const PAGE = 200;
  const UNASKED = 2000; // steps that are read without being scrolled to

  /* {items, more(), loading}: the steps in order of time, read page by page. `stamp`: value that changes when the
     run continues. */
  function useItems(place, id, stamp) {
    const [held, set] = useState({ of: null, items: [], next: 0, error: null });
    const newest = useRef(held), busy = useRef(null), of = `${place} ${id}`;
    newest.current = held.of === of ? held : { of, items: [], next: 0, error: null };
    const current = newest.current;
    const more = async () => {
      const { next, items } = newest.current;
      if (next === null || busy.current === of) return;
      busy.current = of;
      try {
        const page = await hrm.api.get("items", { place, id, after: next, limit: PAGE });
        if (busy.current === of) set({ of, items: [...items, ...page.items], next: page.next, error: null });
      } catch (error) {
        if (busy.current === of) set({ of, items, next: null, error });
      }
      if (busy.current === of) busy.current = null;
    };
    useEffect(() => { if (current.next !== null && current.items.length < UNASKED) more(); }, [of, current.items.length]);
    useEffect(() => {
      const { items, next } = newest.current;
      if (stamp === null || next !== null || !items.length || hrm.api.is_static()) return;
      const from = Math.max(0, items.length - 50); // the newest may have ended since
      hrm.api.get("items", { place, id, after: from, limit: PAGE }).then(
        (page) => set({ of, items: [...items.slice(0, from), ...page.items], next: page.next, error: null }), () => {});
    }, [stamp]);
    return { ...current, more, loading: current.next !== null };
  }

  /* The step to begin with: the step that the server names, else the newest failed tool call of a run that is not
     right, else the last call. */
  function firstOf(data, items) {
    const named = data.focus && items.find((item) => item.id === data.focus.id);
    if (named || !items.length) return named || null;
    const last = (fits) => items.findLast(fits);
    const failed = (item) => item.kind === "tool" && item.status && item.status !== "ok";
    if (data.header.status === "failed") return items[items.length - 1];
    return (data.header.rewards.correct !== 1 && last(failed)) || last((item) => item.kind === "call") || items[items.length - 1];
  }

  /* [previous sibling, next sibling] that can be shown. A copy may have only some of them. */
  function nearest(data, place) {
    const siblings = data.siblings || [], at = siblings.indexOf(data.header.trajectory);
    const there = (id) => hrm.api.has("trajectory", { place, id });
    return at < 0 ? [] : [siblings.slice(0, at).findLast(there), siblings.slice(at + 1).find(there)];
  }

  function Siblings({ data, place }) {
    const siblings = data.siblings || [], id = data.header.trajectory, at = siblings.indexOf(id);
    if (siblings.length < 2 || at < 0) return null;
    const to = (other) => hrm.link("trajectory", { place, id: other });
    const [before, after] = nearest(data, place);
    const pair = { place, a: id, b: after || before };
    const arrow = (other, sign, word, key) => (other
      ? html`<a class="step-link" href=${to(other)} title=${`${word} (${key})`}><span aria-hidden="true">${sign}</span><span class="unseen">${word}</span></a>`
      : html`<span class="step-link muted" aria-hidden="true">${sign}</span>`);
    return html`<nav class="siblings" aria-label="Siblings">
      ${arrow(before, "◂", "Sibling before", "k")}
      <span class="muted">${at + 1} of ${siblings.length}</span>
      ${arrow(after, "▸", "Sibling after", "j")}
      ${pair.b && hrm.api.has("compare", pair) ? html`<a href=${hrm.link("compare", pair)}>Compare with ${after ? "next" : "the one before"}</a>` : null}
    </nav>`;
  }

  function Head({ data, place }) {
    const { Text } = hrm.ui, { Judgement, plain } = hrm.parts, { header } = data;
    const overlay = data.overlays[data.overlays.length - 1];
    const to = (id) => hrm.link("trajectory", { place, id });
    const expected = plain(header.task.answer);
    const wanted = expected && expected !== plain(header.answer);
    return html`<section class="trace-head" aria-label="The run">
      <div class="trace-line"><${Judgement} header=${header} overlay=${overlay} /><${Siblings} data=${data} place=${place} /></div>
      <dl class="answer-line">
        <div><dt>Answer</dt><dd>${plain(header.answer) ? html`<${Text} of=${plain(header.answer)} clip=${300} />` : html`<span class="muted">none</span>`}</dd></div>
        ${wanted ? html`<div><dt>Expected</dt><dd><${Text} of=${expected} clip=${300} /></dd></div>` : null}
      </dl>
      ${plain(header.error) ? html`<p class="warning"><strong>Failed:</strong> <${Text} of=${plain(header.error)} clip=${400} /></p>` : null}
      ${data.forked_from ? html`<p class="small">Forked from <a href=${to(data.forked_from.trajectory_id)}>another run</a>;${" "}
        <a href=${hrm.link("compare", { place, a: data.forked_from.trajectory_id, b: header.trajectory })}>compare both</a>.</p>` : null}
      <${More} data=${data} place=${place} />
    </section>`;
  }

  function More({ data, place }) {
    const { Cut, Text } = hrm.ui, { Facts, number, seconds } = hrm.parts, { header, counts } = data;
    const scorings = data.scorings || [];
    return html`<details class="part more"><summary><span>Task, facts and commands</span></summary>
      <${Cut} value=${header.task.prompt} place=${place} />
      <${Facts} rows=${[
        ["graph", html`<${Text} of=${header.graph} />`], ["policy", html`<${Text} of=${header.policy} />`],
        ["task", html`<${Text} of=${`${header.task.family} ${header.task.id}`} />`],
        ["model calls", counts.model_calls], ["tool calls", counts.tool_calls], ["tokens", counts.tokens],
        ["thoughts", counts.reasoning_tokens ? `${counts.reasoning_tokens} of these` : null],
        ["time", seconds(counts.seconds)], ["cost", counts.cost], ["trajectory", html`<code><${Text} of=${header.trajectory} /></code>`],
        ["thread", html`<code><${Text} of=${header.thread} /></code>`],
      ]} />
      ${data.overlays.length > 1 || scorings.length ? html`<ul class="plain-list">
        ${data.overlays.map((one, index) => html`<li key=${index}>step ${one.step} of <${Text} of=${one.run} />:
          ${" "}${one.verdict.replaceAll("_", " ")}, reward ${number(one.reward)}</li>`)}
        ${scorings.map((one, index) => html`<li key=${`s${index}`}>rubric <${Text} of=${one.rubric} />: ${
          one.fault ? html`<${Text} of=${one.fault} clip=${200} />` : number(one.total)}
          <ul class="plain-list">${one.scores.map((score, place_) => html`<li key=${place_}><${Text} of=${score.name} />: ${
            score.fault || number(score.value)}${score.reason && html`<${Cut} value=${score.reason} place=${place} />`}</li>`)}</ul></li>`)}</ul>` : null}
      <ul class="plain-list commands">${Object.entries(data.commands || {}).map(([name, line]) => html`
        <li key=${name}><code><${Text} of=${line} /></code></li>`)}</ul>
    </details>`;
  }

  const NOTE = { step: "Step", conversation: "Conversation", state: "State" };

  /* A row of buttons, of which one is pressed. Arrow keys move along the row. */
  function Switch({ value, onChoose, options, label }) {
    const keys = (event) => {
      const names = Object.keys(options), at = names.indexOf(value);
      const next = { ArrowRight: at + 1, ArrowLeft: at - 1 }[event.key];
      if (next === undefined || !names[next]) return;
      event.preventDefault();
      onChoose(names[next]);
      event.currentTarget.children[next].focus();
    };
    return html`<div class="switch" role="tablist" aria-label=${label} onKeyDown=${keys}>${Object.entries(options).map(([name, text]) => html`
      <button type="button" role="tab" key=${name} id=${`tab-${name}`} aria-selected=${String(name === value)}
        tabindex=${name === value ? 0 : -1} onClick=${() => onChoose(name)}>${text}</button>`)}</div>`;
  }

  function GraphFold({ place, thread, lit }) {
    const [open, setOpen] = useState(false);
    const { data, error } = hrm.useData("graph", open ? { place, thread } : null);
    return html`<details class="part graph-fold" onToggle=${(event) => setOpen(event.currentTarget.open)}>
      <summary><span>Graph</span>${lit.length ? html`<span class="muted small">now: ${[...new Set(lit)].join(", ")}</span>` : null}</summary>
      ${error ? html`<${hrm.ui.Problem} error=${error} />` : data ? html`<${hrm.parts.Graph} graph=${data} lit=${lit} />` : null}
    </details>`;
  }

  function Trace({ data, place, params }) {
    const { Problem } = hrm.ui, { Details, Moment, Slider, Tree } = hrm.parts, { header } = data;
    const id = header.trajectory, thread = header.thread;
    const about = hrm.useData("about", {}).data;
    const stamp = `${data.items} ${header.status} ${data.thread_moments}`;
    const { items, more, loading, error } = useItems(place, id, stamp);
    const moments = hrm.useMoments(place, data.thread_moments ? thread : null, stamp);
    const [row, setRow] = useState(null); // key of a chosen row that is no step: a fork, a subgraph
    const [tab, setTab] = useState(params.moment ? "conversation" : "step");
    const [ahead, setAhead] = useState(null); // the first step to show, where its page is not read yet
    const [position, setPosition] = useState(null), [found, setFound] = useState(null);

    const chosen = (params.item && items.find((item) => item.id === params.item))
      || (params.item ? null : firstOf(data, items));
    const item = chosen || (ahead && (!params.item || ahead.id === params.item) ? ahead : null);
    useEffect(() => {
      setTab((old) => (!params.moment ? "step" : old === "step" ? "conversation" : old));
    }, [params.item, params.moment]);
    useEffect(() => { if (params.item && !chosen && loading) more(); }, [params.item, items.length]);
    useEffect(() => {
      if (params.item || !data.focus || data.focus.index < PAGE) return;
      hrm.api.get("items", { place, id, after: data.focus.index, limit: 1 }).then(
        (page) => setAhead(page.items.find((one) => one.id === data.focus.id) || null), () => {});
    }, [place, id]);

    const change = (next) => hrm.go("trajectory", { place, id, item: params.item, moment: params.moment, ...next }, { replace: true });
    const select = (node, entered) => {
      if (node.kind === "fork") {
        if (entered) hrm.go("trajectory", { place, id: node.fork.trajectory });
        else setRow(node.key);
        return;
      }
      setRow(node.item ? null : node.key);
      if (!node.item) return;
      setTab("step");
      change({ item: node.item.id, moment: "" });
    };
    const wanted = params.moment || (item && (item.step || item.checkpoint)) || null;
    useEffect(() => {
      let gone = false;
      if (wanted && moments.total) moments.find(wanted).then((at) => {
        if (gone) return;
        if (at !== null) setPosition(at);
        setFound(wanted);
      });
      return () => { gone = true; };
    }, [wanted, moments.total === null]);
    const position_now = position ?? Math.max(0, (moments.total || 1) - 1);
    const placed = moments.total && (position !== null || !wanted || found === wanted);
    const settled = hrm.useSettled(placed ? position_now : null), moment = moments.total && settled !== null ? moments.at(settled) : null;
    const steady = settled === position_now && (!wanted || found === wanted); // else a link would lead to another moment
    const pending = useRef(null);
    const move = (next) => {
      if (next < 0 || next >= moments.total) return;
      setPosition(next);
      setTab((old) => (old === "step" ? "conversation" : old));
      pending.current = next;
    };
    useEffect(() => { // the address follows once the moment's page is here
      if (pending.current === settled && moment) {
        pending.current = null;
        change({ moment: moment.checkpoint });
      }
    });
    const sibling = (other) => other && hrm.go("trajectory", { place, id: other });
    hrm.useKeys({
      "[": { run: () => move(position_now - 1), help: "checkpoint before" },
      "]": { run: () => move(position_now + 1), help: "checkpoint after" },
      j: { run: () => sibling(nearest(data, place)[1]), help: "sibling after" },
      k: { run: () => sibling(nearest(data, place)[0]), help: "sibling before" },
    });
    const lit = params.moment && moment ? (moment.next.length ? moment.next : ["__end__"]) : item ? [item.role, item.node].filter(Boolean) : [];
    const key = row || (item && `${item.kind}:${item.id}`);
    return html`
      <${Head} data=${data} place=${place} />
      ${moments.problem ? html`<${Problem} error=${moments.problem} />` : null}
      <${Slider} moment=${moments.total ? moments.peek(position_now) : null} position=${position_now} total=${moments.total} onMove=${move} />
      <${GraphFold} place=${place} thread=${thread} lit=${lit} />
      ${error ? html`<${Problem} error=${error} />` : null}
      <div class="trace">
        <section class="trace-left" aria-label="Steps of the run">
          ${items.length || loading ? html`<${Tree} items=${items} forks=${data.forks} selected=${key} loading=${loading} total=${data.items}
            until=${params.moment || null} onSelect=${select} onNear=${() => loading && items.length >= UNASKED && more()} />`
            : html`<p class="muted">No steps were recorded.</p>`}
        </section>
        <section class="trace-right" aria-label="The chosen step">
          <div class="trace-tabs">
            <${Switch} label="What is shown" value=${tab} onChoose=${setTab} options=${moments.total ? NOTE : { step: NOTE.step }} />
            ${about && about.fork && moment && steady ? html`<a class="action" href=${hrm.link("fork", { place, thread, checkpoint: moment.checkpoint, origin: id })}>Edit and fork here</a>` : null}
            ${header.graph === "research" ? html`<a class="action" href=${hrm.link("research", { place, id })}>Citations</a>` : null}
          </div>
          <div role="tabpanel" aria-labelledby=${`tab-${tab}`} class="trace-panel" data-tab=${tab}>
            ${tab === "step" ? (item ? html`<${Details} key=${item.id} item=${item} place=${place} run=${header.run} />`
                : html`<p class="muted">${loading || params.item ? "Loading …" : "Choose a step."}</p>`)
              : moment ? html`
                <h2 class="as-of">As of checkpoint ${settled + 1}</h2>
                <${Moment} place=${place} thread=${thread} checkpoint=${moment.checkpoint} show=${tab} />`
              : html`<p class="muted">Loading …</p>`}
          </div>
        </section>
      </div>`;
  }

  function crumbs(place, { run, group }) {
    const step = /\/step-(\d+)\//.exec(group || ""), number = step && Number(step[1]) + 1;
    return hrm.parts.crumbsOf(place, run, ...(step ? [{ text: `step ${number}`, href: hrm.link("step", { place, run, step: number }) }] : []));
  }

  function TrajectoryPage({ params }) {
    const { Answer, Page, Text } = hrm.ui, { place, id } = params;
    const answer = hrm.useData("trajectory", { place, id });
    const header = answer.data && answer.data.header;
    const title = header ? hrm.parts.plain(header.task.prompt).replace(/\s+/g, " ").trim() || header.trajectory : "Trajectory";
    return html`<${Page} title=${title} crumbs=${crumbs(place, header || {})}>
      <${Answer} of=${answer}>${(data) => html`<${Trace} key=${`${place} ${id}`} data=${data} place=${place} params=${params} />`}<//>
    <//>`;
  }

  hrm.parts = { ...hrm.parts, GraphFold, Head, Switch };
  hrm.pages.trajectory = TrajectoryPage;
})();
