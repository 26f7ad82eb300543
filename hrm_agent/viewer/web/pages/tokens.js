/* A call's whole context as the model saw it, token by token, shaded by one of several lenses.

   The first lens shows the tokens that are trained on, which the policy sampled in a kept rollout. All others are grey. */
(() => {
  "use strict";
  const { html } = hrm;
  const { useEffect, useMemo, useRef, useState } = hrm.hooks;

  /* Minimum value of each shade except the palest. Log-probs are shown as probabilities: p < 0.9, < 0.75 ... */
  const UNLIKELY = [0.9, 0.75, 0.5, 0.3, 0.1, 0.01];
  const NATS = [0.05, 0.2, 0.5, 1, 1.5, 2];
  const SIGNED = 4; // shades on each side of 0

  const shade = (value, steps) => steps.filter((step) => value >= step).length;

  /* Lenses, each with its name, a function for the class of a token, and its legend. `known`: true if there is
     anything to show. */
  const LENSES = {
    trained: {
      name: "Trained",
      of: (columns) => (index) => (!columns.mask[index] ? "off" : isTrained(columns, index) ? "trained" : "sampled"),
      legend: () => [["trained", "trained on"], ["sampled", "sampled, not trained on"], ["off", "prompt or tool output"]],
    },
    logprob: {
      name: "Log-prob",
      of: (columns) => (index) => {
        const value = columns.logprob[index];
        return !columns.mask[index] || value == null ? "off" : `q${UNLIKELY.filter((least) => Math.exp(value) < least).length}`;
      },
      legend: () => [["q0", "p ≥ 0.9"], ...UNLIKELY.map((least, at) => [`q${at + 1}`, `p < ${least}`]), ["off", "not sampled"]],
    },
    entropy: {
      name: "Entropy",
      of: (columns) => (index) => (columns.entropy[index] == null ? "off" : `q${shade(columns.entropy[index], NATS)}`),
      legend: () => [["q0", `< ${NATS[0]} nats`], ...NATS.map((least, at) => [`q${at + 1}`, `≥ ${least}`]), ["off", "not computed"]],
    },
    weight: {
      name: "Advantage",
      of: (columns) => {
        const most = largest(columns);
        return (index) => {
          const value = columns.weight[index];
          if (!columns.mask[index] || value == null) return "off";
          if (value === 0) return "zero";
          return `${value < 0 ? "minus" : "plus"}${Math.max(1, Math.ceil((Math.abs(value) / most) * SIGNED))}`;
        };
      },
      legend: (columns) => {
        const most = largest(columns), digits = (value) => hrm.parts.number(value, 2);
        return [[`minus${SIGNED}`, digits(-most)], ["minus2", digits(-most / 2)], ["zero", "0"], ["plus2", `+${digits(most / 2)}`],
          [`plus${SIGNED}`, `+${digits(most)}`], ["off", "no part in the loss"]];
      },
    },
    calls: {
      name: "Roles and calls",
      of: (columns) => {
        const roles = rolesOf(columns);
        return (index) => {
          const part = columns.facts.path[columns.call_of[index]];
          return part ? `role${roles.indexOf(part.role) % 5}${columns.mask[index] ? " wrote" : ""}` : "off";
        };
      },
      legend: (columns) => [...rolesOf(columns).map((role, at) => [`role${at % 5} wrote`, `${role || "none"}: sampled`]),
        ["role0", "paler: its prompt"]],
    },
  };

  const rolesOf = (columns) => [...new Set(columns.facts.path.map((part) => part.role))];
  const largest = (columns) => columns.weight.reduce((most, value) => Math.max(most, Math.abs(value ?? 0)), 0) || 1;
  const isTrained = (columns, index) => columns.facts.verdict === "kept" && columns.weight[index] != null;

  /* Argument for a command: the folder of the place, or else its name. */
  function folderOf(place, about) {
    const found = about && about.places.find((one) => one.id === place);
    return found ? found.where.replace(/\/store\.db$/, "") : place;
  }

  /* The command analyses a sample of steps. To include this call, it names the call's step. */
  function NoEntropy({ of, folder }) {
    const { Text } = hrm.ui, command = html`<code>hrm-agent analyze <${Text} of=${folder} />${of.steps ? html` --steps <${Text} of=${of.steps} />` : ""}</code>`;
    if (of.there) return html`The analysis on record does not hold this call: it takes some steps, and some rollouts of each.
      ${" "}${command}${of.steps ? "" : " again"}, with a <code>--limit</code> as large as the number of rollouts, takes it in, in place of that analysis.`;
    if (!of.folder) return html`Entropy is not recorded while sampling, and shown for runs that have a folder. ${command} with <code>--out</code> writes it to a page of its own.`;
    return html`Entropy is not recorded while sampling. ${command} computes it, with forking and reflection tokens${of.steps ? "" : ", of some rollouts"}.`;
  }

  /* Reason why a lens shows nothing (null if it shows something). */
  function lacking(lens, columns, place, about) {
    const { facts } = columns, any = (values) => values.some((value) => value != null);
    if (lens === "trained" && !facts.verdict) return "No training run has judged this run: its sampled tokens are marked, none is trained on.";
    if (lens === "trained" && facts.verdict !== "kept") return html`Not trained on: ${facts.verdict.replaceAll("_", " ")}${
      hrm.parts.plain(facts.reason) ? html`, <${hrm.ui.Text} of=${hrm.parts.plain(facts.reason)} />` : ""}.`;
    if (lens === "logprob" && !any(columns.logprob)) return "The model gave no log-probs.";
    if (lens === "weight" && !any(columns.weight)) return "No training run gave these tokens a weight.";
    if (lens === "entropy" && !any(columns.entropy)) return html`<${NoEntropy} of=${facts.analysis} folder=${folderOf(place, about)} />`;
    return null;
  }

  function Legend({ lens, columns }) {
    const counted = columns.mask.filter(Boolean).length, marks = new Set(columns.marks);
    return html`<div class="legend" aria-label="Legend" role="group">
      ${LENSES[lens].legend(columns).map(([name, text]) => html`<span key=${name} class="legend-one"><span class=${`t swatch ${name}`} aria-hidden="true">abc</span>${text}</span>`)}
      ${marks.has("forking") ? html`<span class="legend-one"><span class="t swatch forking" aria-hidden="true">abc</span>forking token</span>` : null}
      ${marks.has("reflection") ? html`<span class="legend-one"><span class="t swatch reflection" aria-hidden="true">abc</span>reflection token</span>` : null}
      <span class="muted">${counted.toLocaleString("en")} sampled of ${columns.total.toLocaleString("en")} tokens</span>
    </div>`;
  }

  const repr = (text) => JSON.stringify(text).replace(/[\u007f-\uffff]/g, (one) => (hrm.ui.pieces(one).every((piece) => typeof piece === "string") ? one : `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`));

  function Focused({ columns, index, place, run }) {
    const { Text } = hrm.ui, { Facts, number } = hrm.parts;
    if (index < 0 || !columns.has(index)) return html`<p class="muted small">Point at a token, or move with the arrow keys.</p>`;
    const part = columns.facts.path[columns.call_of[index]], logprob = columns.mask[index] ? columns.logprob[index] : null;
    return html`
      <p class="focused-text"><code>${columns.has_text ? html`<${Text} of=${repr(columns.text[index] ?? "")} />` : columns.ids[index]}</code></p>
      <${Facts} rows=${[
        ["token", `${(index + 1).toLocaleString("en")} of ${columns.total.toLocaleString("en")}`],
        ["id", String(columns.ids[index])],
        ["from", columns.mask[index] ? "the policy" : "prompt, tools"],
        ["log-prob", logprob == null ? null : number(logprob, 4)],
        ["probability", logprob == null ? null : number(Math.exp(logprob), 4)],
        ["entropy", columns.entropy[index] == null ? null : `${number(columns.entropy[index], 3)} nats`],
        ["weight", columns.weight[index] == null ? null : number(columns.weight[index], 4)],
        ["mark", columns.marks[index]],
        ["call", part ? html`<a href=${hrm.link("tokens", { place, call: part.call, run })}><${Text} of=${`${part.role || "none"}, ${part.index + 1}`} /></a>` : null],
      ]} />`;
  }

  function TokenView({ columns, params }) {
    const { Problem, Text } = hrm.ui, { Switch, copyPlain } = hrm.parts, { facts } = columns;
    const lens = LENSES[params.lens] ? params.lens : "trained";
    const root = useRef(null), view = useRef(null);
    const [index, setIndex] = useState(params.from ? Number(params.from) : -1), [hovered, setHovered] = useState(-1);
    const [problem, setProblem] = useState(null), [, redraw] = useState(0);
    const change = (next) => hrm.go("tokens", { ...hrm.current().params, ...next }, { replace: true });

    useEffect(() => {
      view.current = new hrm.TokenText(root.current, columns, LENSES[lens].of(columns), setProblem);
      if (index >= 0) view.current.focus(Math.min(index, columns.total - 1));
      const later = setInterval(() => { // the legend counts what has been read so far
        redraw((count) => count + 1);
        if (root.current?.dataset.filled) clearInterval(later);
      }, 500);
      return () => { clearInterval(later); view.current.end(); };
    }, [columns]);
    const painted = useRef(lens);
    useEffect(() => {
      if (painted.current !== lens) view.current.paint(LENSES[lens].of(columns));
      painted.current = lens;
    }, [lens]);

    const move = (next) => {
      const to = Math.max(0, Math.min(columns.total - 1, next));
      setIndex(to);
      setHovered(-1);
      view.current.focus(to);
    };
    useEffect(() => { // another address on the same page
      if (params.from && Number(params.from) !== index && Number(params.from) >= 0) move(Number(params.from));
    }, [params.from]);
    const keys = (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
      const here = Math.max(0, index);
      const next = { ArrowRight: () => index + 1, ArrowLeft: () => here - 1, ArrowDown: () => view.current.line(here, 1),
        ArrowUp: () => view.current.line(here, -1), Home: () => 0, End: () => columns.total - 1 }[event.key];
      if (!next) return;
      event.preventDefault();
      move(next());
    };
    const marked = (step) => {
      for (let at = index + step; at >= 0 && at < columns.total; at += step) if (columns.marks[at]) return move(at);
    };
    hrm.useKeys({
      n: { run: () => marked(1), help: "next forking or reflection token" },
      p: { run: () => marked(-1), help: "forking or reflection token before" },
    });
    const about = hrm.useData("about", {}, { live: false }).data;
    const lack = lacking(lens, columns, params.place, about), options = {};
    Object.entries(LENSES).forEach(([name, one]) => { options[name] = one.name; });
    return html`
      <div class="token-bar">
        <${Switch} label="Lens" value=${lens} onChoose=${(name) => change({ lens: name === "trained" ? "" : name })} options=${options} />
        <${Legend} lens=${lens} columns=${columns} />
        ${lack ? html`<p class="notice">${lack}</p>` : null}
        ${columns.has_text ? null : html`<p class="notice">Ids are shown, no text: <${Text} of=${facts.why_no_text} /></p>`}
        ${columns.total < facts.total ? html`<p class="notice">This copy holds the first ${columns.total.toLocaleString("en")} of ${facts.total.toLocaleString("en")} tokens.</p>` : null}
        ${problem ? html`<${Problem} error=${problem} />` : null}
      </div>
      <div class="token-page" role="tabpanel" aria-labelledby=${`tab-${lens}`}>
        <div class=${`tokens lens-${lens}${columns.has_text ? "" : " ids"}`} ref=${root} tabindex="0" role="group" data-total=${columns.total}
          aria-label="Tokens. The arrow keys move from token to token." aria-describedby="token-details" dir="ltr"
          onKeyDown=${keys} onCopy=${copyPlain}
          onMouseMove=${(event) => { // ignore events that come from scrolling under a resting mouse
            if (view.current && (event.movementX || event.movementY)) setHovered(view.current.index_of(event.target));
          }}
          onMouseLeave=${() => setHovered(-1)}
          onClick=${(event) => {
            const at = view.current.index_of(event.target);
            if (at >= 0 && getSelection().isCollapsed) { setIndex(at); view.current.focus(at, false); change({ from: at }); }
          }}></div>
        <aside class="token-details" aria-label="The chosen token"><div id="token-details" aria-live="polite">
          <${Focused} columns=${columns} index=${hovered >= 0 ? hovered : index} place=${params.place} run=${params.run} /></div></aside>
      </div>`;
  }

  function TokensPage({ params }) {
    const { Loading, Page, Problem, Text } = hrm.ui, { place, call, run } = params;
    const [held, set] = useState({ columns: null, error: null });
    useEffect(() => {
      let gone = false;
      const columns = new hrm.TokenColumns({ place, call, run });
      set({ columns: null, error: null });
      columns.piece(0).then(() => !gone && set({ columns, error: null }), (error) => !gone && set({ columns: null, error }));
      return () => { gone = true; };
    }, [place, call, run]);
    const facts = held.columns && held.columns.facts;
    const trajectory = facts && facts.trajectory;
    const crumbs = hrm.parts.crumbsOf(place, run || (facts && facts.run),
      ...(trajectory ? [{ text: "trajectory", href: hrm.link("trajectory", { place, id: trajectory, item: call }) }] : []));
    return html`<${Page} title="Tokens of a call" crumbs=${crumbs}>
      ${facts ? html`<p class="muted small token-facts"><${Text} of=${facts.model} />${facts.codec ? html`, text by <${Text} of=${facts.codec} />` : null}${
        facts.temperature == null ? null : `, temperature ${facts.temperature}`}</p>` : null}
      ${held.error ? html`<${Problem} error=${held.error} />` : null}
      ${held.columns ? (held.columns.total ? html`<${TokenView} key=${`${place} ${call} ${run}`} columns=${held.columns} params=${params} />`
        : html`<p class="empty">This call has no tokens on record: its model reports none.</p>`) : held.error ? null : html`<${Loading} />`}
    <//>`;
  }

  hrm.pages.tokens = TokensPage;
})();
