/* The result of `hrm-agent film`: the runs of some tasks under each version of the weights. A slider goes over the
   versions. The token at which a version changes a run is marked, with what follows it. */
(() => {
  "use strict";
  const { html } = hrm;
  const { useEffect, useMemo, useState } = hrm.hooks;
  const { Badge, Code, Empty, Glyph, Text, pieces, plain } = hrm.ui;

  const PAUSE = 200, PAUSE_AT_FLIP = 2600; // milliseconds of a version while the film plays

  // The file may hold anything: values of another type are treated as missing.
  const number = (value) => (typeof value === "number" ? value : null);
  const text = (value) => (typeof value === "string" ? value : "");
  const list = (value) => (Array.isArray(value) ? value : []);
  const table = (value) => (value !== null && typeof value === "object" && !Array.isArray(value) ? value : {});

  /* A call as it is shown. `fresh`: index of its first token that the previous scene has not. */
  function read_call(call, before) {
    const same = before[number(call.same) ?? -1];
    if (same) return { ...same, fresh: same.tokens.length, was: null };
    const like = before[number(call.like) ?? -1];
    const kept = like ? like.tokens.slice(0, Math.max(0, number(call.kept) ?? 0)) : [];
    const tools = list(call.tools).map(table).map((one) => ({ name: text(one.name), status: text(one.status), content: text(one.content) }));
    return { role: text(call.role), prompt: like ? like.prompt : text(call.prompt), tokens: [...kept, ...list(call.tokens).map(text)], fresh: kept.length, tools, was: null };
  }

  function read_scene(scene, before) {
    const calls = list(scene.calls).map((call) => read_call(table(call), before ? before.calls : []));
    const flips = list(scene.flips).map(table).map((one) => ({
      call: number(one.call), token: number(one.token), old: text(one.old), fresh: text(one.new),
      old_before: number(one.old_before), old_now: number(one.old_now), new_now: number(one.new_now),
    })).filter((one) => one.call !== null && calls[one.call]);
    for (const flip of flips) calls[flip.call].was = flip;
    if (!before) for (const call of calls) call.fresh = call.tokens.length;
    const right = typeof scene.right === "boolean" ? scene.right : null;
    return { version: number(scene.version), status: text(scene.status), right, answer: text(scene.answer), caption: list(scene.caption).map(text).join(" "), flips, calls };
  }

  function read(result) {
    const versions = list(result.versions).map(number).filter((one) => one !== null);
    const tasks = list(result.tasks).map(table).map((task) => {
      const scenes = [];
      for (const one of list(task.scenes)) scenes.push(read_scene(table(one), scenes[scenes.length - 1]));
      const known = scenes.filter((one) => versions.includes(one.version));
      // Each scene lasts until the next one begins: `from` and `to` are positions among the versions.
      // The steps between the previous version of the film and that of the scene may be several.
      for (const one of known) one.first_step = (versions[versions.indexOf(one.version) - 1] ?? -1) + 1;
      known.forEach((one, index) => Object.assign(one, { from: versions.indexOf(one.version), to: index + 1 < known.length ? versions.indexOf(known[index + 1].version) : versions.length }));
      return { prompt: text(task.prompt), expected: text(task.expected), why: text(task.why), scenes: known };
    });
    return { versions, tasks: tasks.filter((one) => one.scenes.length && one.scenes[0].from === 0) };
  }

  const moment = (version) => (version ? `After step ${version}` : "Before the training");
  const verdict = (right) => (right === null ? "not verified" : right ? "right" : "wrong");
  const glyph = (right) => (right === null ? "unknown" : right ? "correct" : "wrong");
  const share = (value) => (value === null ? "?" : value >= 0.001 || value === 0 ? value.toFixed(3) : value.toExponential(1));
  const scene_at = (task, at) => task.scenes.findLast((one) => one.from <= at) || task.scenes[0];

  /* Facts on all tasks at a position: right ones, those that call a tool, and failed tool calls. */
  function summary(tasks, at) {
    const scenes = tasks.map((task) => scene_at(task, at));
    const tools = scenes.flatMap((scene) => scene.calls.flatMap((call) => call.tools));
    const called = scenes.filter((scene) => scene.calls.some((call) => call.tools.length)).length;
    const failed = tools.filter((tool) => tool.status !== "ok").length;
    const right = scenes.filter((scene) => scene.right === true).length;
    return { right: `${right} of ${tasks.length}`, called: `${called} of ${tasks.length}`, failed: `${failed} of ${tools.length}` };
  }

  /* What the whole training changes, with the chosen version between its ends. */
  function Summary({ tasks, versions, at }) {
    const rows = [0, at, versions.length - 1].map((position) => [moment(versions[position]), summary(tasks, position)]);
    return html`<table class="plain film-summary"><thead><tr><th scope="col">Of all tasks</th><th scope="col">right</th><th scope="col">with a tool call</th><th scope="col">failed tool calls</th></tr></thead>
      <tbody>${rows.map(([name, one], index) => html`<tr key=${index}><th scope="row">${index === 1 ? html`<strong>Shown: ${name.toLowerCase()}</strong>` : name}</th><td>${one.right}</td><td>${one.called}</td><td>${one.failed}</td></tr>`)}</tbody></table>`;
  }

  /* The first task that the training turns from wrong to right, or else the first one. */
  function first_shown(tasks) {
    const found = tasks.findIndex((task) => task.scenes[0].right === false && task.scenes[task.scenes.length - 1].right === true);
    return found < 0 ? 0 : found;
  }

  /* One row a task. Each scene is a button as long as its versions. */
  function Strip({ tasks, versions, at, chosen, on }) {
    const percent = (position) => `${(100 * position) / versions.length}%`;
    const told = (scene) => `${moment(scene.version)}${scene.to - scene.from > 1 ? ` until step ${versions[scene.to - 1]}` : ""}: ${verdict(scene.right)}. ${plain(scene.caption)}`;
    return html`<div class="film-strip">${tasks.map((task, row) => html`<div key=${row} class=${`film-row${row === chosen ? " chosen" : ""}`}>
      <button type="button" class="film-task" aria-pressed=${String(row === chosen)} onClick=${() => on(row, at)}><${Text} of=${task.prompt} clip=${80} /></button>
      <div class="film-bar">
        ${task.scenes.map((scene) => html`<button type="button" key=${scene.from} class=${`film-scene ${glyph(scene.right)}`} style=${{ left: percent(scene.from), width: percent(scene.to - scene.from) }}
          aria-label=${told(scene)} title=${told(scene)} onClick=${() => on(row, scene.from)}>
          <${Glyph} of=${glyph(scene.right)} /></button>`)}
        <span class="film-now" aria-hidden="true" style=${{ left: percent(at), width: percent(1) }}></span>
      </div>
    </div>`)}</div>`;
  }

  /* The tokens of an answer: taken over, the flip, which links to its step if that is known, and what follows it. */
  function Answer({ call, marked, step }) {
    const join = (from, to) => pieces(call.tokens.slice(from, to).join(""));
    const size = call.tokens.length;
    if (!marked || call.fresh >= size) return html`<pre class="film-text" dir="auto">${join(0, size)}</pre>`;
    if (!call.was) return html`<pre class="film-text" dir="auto">${join(0, call.fresh)}<ins>${join(call.fresh, size)}</ins></pre>`;
    const flip = join(call.fresh, call.fresh + 1);
    return html`<pre class="film-text" dir="auto">${join(0, call.fresh)}<del>${pieces(call.was.old)}</del><mark key=${call.fresh}>${step ? html`<a href=${hrm.link("step", step)} title=${`Update and rollouts of step ${step.step}`}>${flip}</a>` : flip}</mark><ins>${join(call.fresh + 1, size)}</ins></pre>`;
  }

  function Call({ call, index, marked, step }) {
    return html`<li class="film-call">
      <h3>Call ${index + 1}${call.role ? html`, <${Text} of=${call.role} clip=${40} />` : null}</h3>
      <details><summary>Prompt</summary><pre class="film-text muted" dir="auto">${pieces(call.prompt)}</pre></details>
      <${Answer} call=${call} marked=${marked} step=${step} />
      ${call.tools.map((tool, place) => html`<div key=${place} class="film-tool"><${Badge} of=${tool.status || "unknown"} /> <code><${Text} of=${tool.name} clip=${60} /></code>
        <pre class="film-text" dir="auto">${pieces(tool.content)}</pre></div>`)}
    </li>`;
  }

  function Flip({ flip }) {
    const shown = (value) => html`<code><${Text} of=${JSON.stringify(value)} clip=${60} /></code>`;
    return html`<li>Call ${flip.call + 1}, token ${(flip.token ?? 0) + 1}: ${shown(flip.old)} (P ${share(flip.old_before)} before, ${share(flip.old_now)} now) becomes ${shown(flip.fresh)} (P ${share(flip.new_now)} now).</li>`;
  }

  function Scene({ scene, task, place, run, first }) {
    const exact = scene.first_step === scene.version;
    const step = exact ? { place, run, step: scene.version } : null;
    const ended = scene.status && scene.status !== "completed";
    const marked = first && scene.flips.length > 0;
    return html`
      <div class="film-told" aria-live="polite">
        <p><strong>${moment(scene.version)}.</strong> ${ended && html`<${Badge} of=${scene.status} /> `}<${Text} of=${scene.caption} />${first ? "" : html` <span class="muted">Unchanged since then.</span>`}</p>
      </div>
      ${marked && html`<ul class="film-flips">${scene.flips.map((flip, index) => html`<${Flip} key=${index} flip=${flip} />`)}</ul>`}
      ${scene.flips.length > 0 && html`<details class="part film-why" open=${first}><summary>${exact ? `Step ${scene.version}` : `Between step ${scene.first_step} and ${scene.version}`}</summary>
        <p>${exact ? html`<a href=${hrm.link("step", step)}>Update and rollouts of step ${scene.version}</a>` : "The film has no version between these steps, so the step of the flip is unknown."}</p>
        ${task.why && html`<p>${exact ? html`The rollouts of the step by their effect on this token (without <code>--step</code>, those of the step that taught it most):` : "The step that taught this token most, and its rollouts:"}</p>
        <${Code} code=${`${task.why} --flip ${scene.version}${exact ? ` --step ${scene.version}` : ""}`} />`}
      </details>`}
      <ol class="film-calls">${scene.calls.map((call, index) => html`<${Call} key=${index} call=${call} index=${index} marked=${marked} step=${step} />`)}</ol>`;
  }

  function Film({ place, run, result }) {
    const { versions, tasks } = useMemo(() => read(result), [result]);
    const preferred = first_shown(tasks);
    const [task_param, set_task] = hrm.useParam("task", String(preferred));
    const [at_param, set_at] = hrm.useParam("at", "0");
    const [playing, set_playing] = useState(false);
    const last = versions.length - 1;
    const bounded = (value, most) => Math.min(most, Math.max(0, Math.trunc(Number(value)) || 0));
    const chosen = bounded(task_param, tasks.length - 1), at = bounded(at_param, last), task = tasks[chosen];
    const scene = task && scene_at(task, at);
    const first = Boolean(scene) && scene.from === at;
    const move = (to) => set_at(String(bounded(to, last)));
    const flips = task ? task.scenes.slice(1).map((one) => one.from) : [];
    const before = flips.findLast((one) => one < at) ?? (at > 0 ? 0 : undefined), after = flips.find((one) => one > at);
    const jump = (to) => to !== undefined && move(to);
    const play = () => {
      if (!playing && at === last) move(0);
      set_playing(!playing);
    };
    useEffect(() => {
      if (!playing) return undefined;
      if (at === last) {
        set_playing(false);
        return undefined;
      }
      const timer = setTimeout(() => move(at + 1), first && at > 0 ? PAUSE_AT_FLIP : PAUSE);
      return () => clearTimeout(timer);
    }, [playing, at, chosen]);
    hrm.useKeys({
      "[": { run: () => move(at - 1), help: "version before" },
      "]": { run: () => move(at + 1), help: "next version" },
      p: { run: () => jump(before), help: "change before" },
      n: { run: () => jump(after), help: "next change" },
      j: { run: () => set_task(String(bounded(chosen + 1, tasks.length - 1))), help: "next task" },
      k: { run: () => set_task(String(bounded(chosen - 1, tasks.length - 1))), help: "task before" },
    });
    const choose = (row, position) => {
      const { name, params } = hrm.current();
      hrm.go(name, { ...params, task: row === preferred ? "" : String(row), at: position ? String(position) : "" }, { replace: true });
    };
    if (!task) return html`<${Empty}>The film has no scenes.</${Empty}>`;
    return html`
      <p class="muted">Each task was run under the weights before the training and after its steps, always with the same random numbers. So a run stays the same until a step changes one token of it.
        ${" "}<span class="film-key"><${Glyph} of="correct" /> right</span> <span class="film-key"><${Glyph} of="wrong" /> wrong</span> A bar begins where the run changes.</p>
      <${Strip} tasks=${tasks} versions=${versions} at=${at} chosen=${chosen} on=${choose} />
      <div class="film-controls" role="group" aria-label="Version of the weights">
        <div class="film-buttons">
          <button type="button" class="main" onClick=${play}>${playing ? "Pause" : "Play"}</button>
          <button type="button" disabled=${before === undefined} onClick=${() => jump(before)} title="p">◂ Change</button>
          <button type="button" disabled=${after === undefined} onClick=${() => jump(after)} title="n">Change ▸</button>
        </div>
        <input type="range" min="0" max=${last} step="1" value=${at} aria-label="Version" aria-valuetext=${moment(versions[at])} onInput=${(event) => move(event.target.value)} />
        <output class="num">${moment(versions[at])}</output>
      </div>
      <${Summary} tasks=${tasks} versions=${versions} at=${at} />
      <section class="panel film-scene-panel" aria-labelledby="film-task">
        <h2 id="film-task"><${Text} of=${task.prompt} clip=${600} /></h2>
        <p class="film-answer"><${Badge} of=${glyph(scene.right)}>${verdict(scene.right)}</${Badge}> Answer: <strong><${Text} of=${scene.answer || "none"} /></strong>${task.expected && html` <span class="muted">Expected: <${Text} of=${task.expected} clip=${100} /></span>`}</p>
        <${Scene} key=${scene.from} scene=${scene} task=${task} place=${place} run=${run} first=${first} />
      </section>`;
  }

  hrm.analyses.film = Film;
})();
