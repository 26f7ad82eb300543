/* One step in full. For a model call: the new messages of the request, and the model's thoughts, text and calls. For
   a tool call: arguments, result, time, and refused system calls. Also small views that several pages share. */
(() => {
  "use strict";
  const { html } = hrm;
  const { plain } = hrm.parts;

  const { Glyph, format } = hrm.ui;
  const { seconds, bytes } = format;
  const number = (value, digits = 3) => (value == null ? "–" : Number(value.toFixed(digits)).toString().replace("-", "−"));

  /* The outcome of a tool call: a shape for each outcome, with a name for screen readers. */
  function Mark({ status }) {
    const word = (status || "under way").replaceAll("_", " ");
    return html`<span class="mark" title=${word}><${Glyph} of=${status || "running"} label=${word} /></span>`;
  }

  /* Pairs of name and value. Pairs without a value are left out. */
  function Facts({ rows }) {
    const told = rows.filter(([, value]) => value != null && value !== "" && value !== false);
    if (!told.length) return null;
    return html`<dl class="facts">${told.map(([name, value]) => html`
      <div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
  }

  /* A titled part of a step. `folded`: closed at first. */
  function Part({ title, note, folded, children }) {
    return html`<details class="part" open=${!folded}>
      <summary><span>${title}</span>${note ? html`<span class="muted small">${note}</span>` : null}</summary>
      ${children}
    </details>`;
  }

  /* The thoughts of a model. They are closed at first, and shown apart from its text. */
  function Thoughts({ value, place }) {
    if (!plain(value)) return null;
    const chars = value.chars ?? plain(value).length;
    return html`<${Part} title="Thoughts" folded note=${`${chars.toLocaleString("en")} characters`}>
      <${hrm.ui.Cut} value=${value} place=${place} /><//>`;
  }

  /* JSON with indentation. A text that is cut, or is not JSON, is unchanged. */
  function pretty(value) {
    if (value === null || typeof value !== "object") return value;
    if (!("text" in value && "chars" in value)) return JSON.stringify(value, null, 2);
    if (value.cut) return value;
    try {
      return { ...value, text: JSON.stringify(JSON.parse(value.text), null, 2) };
    } catch {
      return value;
    }
  }

  function Json({ value, place }) {
    return html`<${hrm.ui.Cut} value=${pretty(value)} place=${place} lang="json" />`;
  }

  /* A program among a call's arguments is shown as a program. */
  function Arguments({ value, code, place }) {
    if (code != null && plain(code)) return html`<${hrm.ui.Cut} value=${code} place=${place} lang="python" />`;
    const program = programOf(value);
    if (program !== null) return html`<${hrm.ui.Cut} value=${program} lang="python" />`;
    return html`<${Json} value=${value} place=${place} />`;
  }

  /* The only argument, if it is a program; null otherwise. */
  function programOf(value) {
    let given = value;
    if (value && typeof value === "object" && "chars" in value) {
      if (value.cut) return null;
      try { given = JSON.parse(value.text); } catch { return null; }
    }
    if (given === null || typeof given !== "object") return null;
    const [only, ...others] = Object.entries(given);
    return only && !others.length && typeof only[1] === "string" && /^(code|program|python|source)$/.test(only[0]) ? only[1] : null;
  }

  function Message({ message, place }) {
    const { Cut, Text } = hrm.ui;
    const kind = message.role || message.type;
    return html`<article class=${`message ${kind}`}>
      <h4>${kind}${message.name ? html` <span class="muted"><${Text} of=${message.name} /></span>` : null}
        ${message.status === "error" ? html` <${Mark} status="error" />` : null}</h4>
      <${Thoughts} value=${message.reasoning} place=${place} />
      <${Cut} value=${message.text} place=${place} />
      ${(message.tool_calls || []).map((call) => html`<div class="asked" key=${call.id}>
        <span class="muted">calls </span><strong><${Text} of=${call.name} /></strong>
        <${Arguments} value=${call.arguments} place=${place} /></div>`)}
    </article>`;
  }

  /* Reason why a call does not continue the tokens of the previous call (nothing for a first call). */
  const BRANCHES = {
    template: "the chat template rewrites earlier turns",
    rewritten: "earlier messages were edited",
    tools: "other tools are offered",
    model: "another model answered before",
    no_tokens: "the model reports no token ids",
  };

  function CallDetails({ item, place, run }) {
    const { Cut, Text } = hrm.ui;
    const news = item.prompt_messages || [], said = plain(item.text);
    return html`
      <${Facts} rows=${[
        ["model", html`<${Text} of=${item.model || ""} />`],
        ["weights", item.policy_version || item.credit != null ? `version ${item.policy_version}` : null],
        ["sampled", item.sampled_tokens ? `${item.sampled_tokens} tokens` : null],
        ["thoughts", item.reasoning_tokens ? `${item.reasoning_tokens} of these` : null],
        ["prompt", item.prompt_tokens ? `${item.prompt_tokens} tokens` : null],
        ["time", seconds(item.seconds)],
        ["queued", item.queue_seconds >= 0.001 ? seconds(item.queue_seconds) : null],
        ["ended by", item.finish_reason],
        ["rewards", item.rewards ? html`<${Text} of=${item.rewards} />` : null],
        ["weight in the loss", item.credit == null ? null : number(item.credit)],
        ["new context", item.parent ? null : BRANCHES[item.branch_reason]],
        ["not trained", item.why_untrainable],
      ]} />
      ${item.has_tokens ? html`<p class="small"><a href=${hrm.link("tokens", { place, call: item.id, run })}>Tokens of this call</a></p>` : null}
      <${Part} title=${item.continues ? "New in the prompt" : "Prompt"} folded
        note=${`${news.length} message${news.length === 1 ? "" : "s"}${item.messages_before ? `, after ${item.messages_before} seen before` : ""}`}>
        ${item.problem ? html`<p class="warning"><${Text} of=${item.problem} /></p>` : news.length ? news.map((message, index) => html`<${Message} key=${index} message=${message} place=${place} />`)
          : html`<p class="muted">${item.request_known ? "Nothing new: only what was seen before." : "The messages of this prompt are not on record."}</p>`}
      <//>
      <${Thoughts} value=${item.reasoning} place=${place} />
      ${said || !(item.code_calls || []).length
        ? html`<${Part} title="Answer of the model">${said ? html`<${Cut} value=${item.text} place=${place} />`
          : html`<p class="muted">It wrote no text.</p>`}<//>` : null}
      ${(item.code_calls || []).map((call) => html`
        <${Part} key=${call.id} title=${html`Calls <${Text} of=${call.name} />`}>
          ${call.error ? html`<p class="warning"><${Text} of=${call.error} /></p>` : null}
          <${Arguments} value=${call.arguments} place=${place} /><//>`)}`;
  }

  function ToolDetails({ item, place }) {
    const { Badge, Cut, Text } = hrm.ui;
    const refused = Object.entries(item.refused || {});
    const output = [["stdout", "Printed"], ["stderr", "Errors"], ["value", "Value"]].filter(([name]) => plain(item[name]));
    const alike = output.length === 1 && plain(item.content).trim() === plain(item[output[0][0]]).trim();
    return html`
      <${Facts} rows=${[
        ["ended", html`<${Badge} of=${item.status || "running"}>${(item.status || "under way").replaceAll("_", " ")}<//>`],
        ["time", seconds(item.duration_seconds ?? item.seconds)],
        ["queued", item.queued_seconds >= 0.001 ? seconds(item.queued_seconds) : null],
        ["CPU", item.cpu_seconds == null ? null : seconds(item.cpu_seconds)],
        ["memory", item.peak_memory_bytes == null ? null : bytes(item.peak_memory_bytes)],
        ["isolation", item.isolation],
        ["session", item.session],
        ["attempt", item.attempt > 1 ? item.attempt : null],
        ["gave another result", (item.changed_cells || []).length ? `cells ${item.changed_cells.join(", ")}` : null],
        ["rewards", item.rewards ? html`<${Text} of=${item.rewards} />` : null],
        ["same as", item.repeated_of ? "an earlier call: not counted again" : null],
      ]} />
      ${refused.length ? html`<p class="warning"><strong>Refused:</strong> ${refused.map(([name, times]) =>
        html`<span class="refused" key=${name}><code><${Text} of=${name} /></code> ×${times}</span>`)}</p>` : null}
      <${Part} title=${item.code != null ? "Code" : "Arguments"}>
        <${Arguments} value=${item.arguments} code=${item.code} place=${place} /><//>
      ${output.map(([name, title]) => html`<${Part} key=${name} title=${title}>
        <${Cut} value=${item[name]} place=${place} lang="text" /><//>`)}
      ${alike ? null : html`<${Part} title="What the model is shown" folded=${output.length > 0}>
        <${Cut} value=${item.content} place=${place} lang="text" /><//>`}`;
  }

  function TurnDetails({ item, place }) {
    const before = item.before;
    return html`
      ${before ? html`<p class="muted">The turn before ended: ${before.status}${before.stop_reason ? `, ${before.stop_reason}` : ""}.</p>` : null}
      <${Part} title="The person said"><${Cut} value=${item.prompt} place=${place} /><//>`;
  }

  const WORDS = { call: "Model call", tool: "Tool call", turn: "Turn" };

  function Details({ item, place, run }) {
    const { Cut, Text } = hrm.ui;
    const View = { call: CallDetails, tool: ToolDetails, turn: TurnDetails }[item.kind];
    const name = item.kind === "tool" ? item.name : item.node || item.role;
    return html`<article class="step" aria-labelledby="step-title">
      <h3 id="step-title">${WORDS[item.kind]}${name ? html`: <${Text} of=${name} />` : null}
        ${item.role && item.role !== name ? html` <span class="muted small">of <${Text} of=${item.role} /></span>` : null}
        ${item.inherited ? html` <span class="muted small">inherited from the run that was forked</span>` : null}</h3>
      ${item.problem && item.model === undefined && item.name === undefined ? html`<p class="warning"><${Text} of=${item.problem} /></p>`
        : html`<${View} item=${item} place=${place} run=${run} />`}
    </article>`;
  }

  /* Rewards and the newest judgement of a run, in a line. */
  function Judgement({ header, overlay }) {
    const { Badge, Text } = hrm.ui;
    return html`<p class="judgement">
      <${Badge} of=${header.status} />
      ${header.stop_reason && header.stop_reason !== "answer" ? html`<span>${header.stop_reason.replaceAll("_", " ")}</span>` : null}
      ${Object.entries(header.rewards || {}).map(([name, value]) => html`
        <span class="reward" key=${name}><span class="muted"><${Text} of=${name} /></span> <strong>${number(value)}</strong></span>`)}
      ${overlay ? html`<${Badge} of=${overlay.verdict} />
        ${overlay.advantage == null ? null : html`<span class="reward"><span class="muted">advantage</span> <strong>${number(overlay.advantage)}</strong></span>`}
        ${overlay.reason ? html`<span class="reason"><${Text} of=${overlay.reason} /></span>` : null}` : null}
    </p>`;
  }

  /* Breadcrumbs of a page: all runs, the place if its name differs, the run, and the given parts. */
  function crumbsOf(place, run, ...more) {
    const of = [{ text: "Runs", href: "#/" }];
    if (run === "") of.push({ text: hrm.ui.run_name(place, run), href: hrm.link("groups", { place }) });
    else if (place !== run) of.push({ text: place });
    if (run) of.push({ text: run, href: hrm.link("run", { place, run }) });
    return [...of, ...more];
  }

  hrm.parts = { ...hrm.parts, Details, Facts, Json, Judgement, Mark, Message, Part, Thoughts, crumbsOf, number, programOf, seconds };
})();
