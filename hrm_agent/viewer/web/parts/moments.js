/* The checkpoints of a thread: read in pages around the shown checkpoint, with a slider over all of them, and the
   state and conversation of one checkpoint. */
(() => {
  "use strict";
  const { html } = hrm;
  const { useEffect, useRef, useState } = hrm.hooks;

  const PAGE = 50;

  /* {at(position), peek(position), total, find(checkpoint)}: moments by position, from pages that `at` asks for. */
  function useMoments(place, thread, stamp) {
    const pages = useRef(new Map()), [, redraw] = useState(0), [total, setTotal] = useState(null);
    const [problem, setProblem] = useState(null);
    const kept = (moments, first) => moments.forEach((moment, index) => {
      pages.current.set(moment.position ?? first + index, moment);
    });
    const read = async (params, first, quiet = false) => {
      try {
        const page = await hrm.api.get("moments", { place, thread, ...params });
        kept(page.moments, hrm.api.is_static() ? 0 : first);
        setTotal(hrm.api.is_static() ? page.moments.length : page.total); // a copy may only have the first moments
        setProblem(null);
        redraw((count) => count + 1);
        return page;
      } catch (error) {
        if (!quiet) setProblem(error);
        return null;
      }
    };
    const asked = useRef(new Set());
    useEffect(() => {
      pages.current.clear();
      asked.current.clear();
      setTotal(null);
      if (thread) read({ after: 0, limit: PAGE }, 0);
    }, [place, thread]);
    useEffect(() => { if (thread && total !== null) read({ after: Math.max(0, total - 1), limit: PAGE }, Math.max(0, total - 1)); }, [stamp]);
    return {
      total,
      problem,
      peek: (position) => pages.current.get(position) || null,
      at(position) {
        const found = pages.current.get(position), first = Math.floor(position / PAGE) * PAGE;
        if (!found && total !== null && position < total && !asked.current.has(first)) {
          asked.current.add(first);
          read({ after: first, limit: PAGE }, first);
        }
        return found || null;
      },
      /* Position of a checkpoint, or null. If its page has not been read, the server is asked for the page. */
      async find(checkpoint) {
        const known = () => { for (const [at, one] of pages.current) if (one.checkpoint === checkpoint) return at; return null; };
        if (known() === null) {
          if (hrm.api.is_static()) await read({}, 0);
          else await read({ checkpoint, limit: PAGE }, 0, true); // the checkpoint may have been deleted
        }
        return known();
      },
    };
  }

  /* The value after a short time without change. So a slider that is moved over 5,000 checkpoints requests only the
     last. */
  /* null means no value yet. The first value is used at once. */
  function useSettled(value, rest = 120) {
    const [settled, set] = useState(value);
    useEffect(() => {
      const timer = setTimeout(() => set(value), rest);
      return () => clearTimeout(timer);
    }, [value]);
    return settled ?? value;
  }

  const wordsOf = (moment) => (moment.nodes && moment.nodes.length ? [...new Set(moment.nodes)].join(", ") : moment.source);

  const valueTold = ({ low, high, forks, policy }) => `mean outcome of ${forks} fork${forks === 1 ? "" : "s"} by ${policy}, 95 % ${low.toFixed(2)} to ${high.toFixed(2)}`;

  /* Slider at `position` of `total`. onMove is called with the new position. */
  function Slider({ moment, position, total, onMove }) {
    const { Text } = hrm.ui;
    if (!total) return null;
    const then = moment && (moment.next.length ? `next: ${[...new Set(moment.next)].join(", ")}` : "end");
    const told = moment ? `checkpoint ${position + 1} of ${total}, after ${wordsOf(moment)}` : `checkpoint ${position + 1} of ${total}`;
    return html`<div class="moments">
      <button type="button" class="quiet icon" aria-label="Checkpoint before" title="Checkpoint before ( [ )"
        disabled=${position <= 0} onClick=${() => onMove(position - 1)}>◂</button>
      <input type="range" min="0" max=${total - 1} step="1" value=${position} aria-label="Checkpoint" aria-valuetext=${told}
        onInput=${(event) => onMove(Number(event.target.value))} />
      <button type="button" class="quiet icon" aria-label="Checkpoint after" title="Checkpoint after ( ] )"
        disabled=${position >= total - 1} onClick=${() => onMove(position + 1)}>▸</button>
      <p class="moment-told"><strong>${position + 1}</strong><span class="muted">/${total}</span>
        ${moment ? html` after <strong><${Text} of=${wordsOf(moment)} /></strong>
          <span class="muted moment-next"><${Text} of=${then} /></span>
          ${moment.value ? html` <span class="num" title=${valueTold(moment.value)}>value ${moment.value.mean.toFixed(2)}</span>` : null}
          ${moment.interrupts && moment.interrupts.length ? html` <span class="warning">waits for a person</span>` : null}` : " …"}</p>
    </div>`;
  }

  const sizeOf = (channel) => (channel.chars ? `${channel.chars.toLocaleString("en")} characters` : "");

  /* Conversation and channels as of one checkpoint. `show`: "conversation" or "state". */
  function Moment({ place, thread, checkpoint, show }) {
    const { Cut, Problem, Text } = hrm.ui, { Json, Message, Part } = hrm.parts;
    const { data, error, loading } = hrm.useData("moment", { place, thread, checkpoint }, { live: false });
    if (error) return html`<${Problem} error=${error} />`;
    if (!data) return html`<p class="muted">${loading ? "Loading …" : ""}</p>`;
    const talks = data.channels.filter((channel) => channel.kind === "messages");
    const others = data.channels.filter((channel) => channel.kind !== "messages");
    const waits = (data.interrupts || []).map((one) => html`<div class="warning" key=${one.id}>
      Waits for a person: <${Cut} value=${typeof one.value === "string" ? one.value : JSON.stringify(one.value)} place=${place} /></div>`);
    if (show === "conversation") {
      if (!talks.some((channel) => channel.messages.length)) return html`${waits}<p class="muted">No messages in the state at this checkpoint.</p>`;
      return html`${waits}${talks.map((channel) => html`<section key=${channel.name} class="conversation">
        ${talks.length > 1 ? html`<h3><${Text} of=${channel.name} /></h3>` : null}
        ${channel.messages.map((message, index) => html`<${Message} key=${message.id || index} message=${message} place=${place} />`)}
      </section>`)}`;
    }
    return html`${waits}
      ${others.length ? null : html`<p class="muted">No channels beside the conversation.</p>`}
      ${others.map((channel) => html`<${Part} key=${channel.name} title=${html`<${Text} of=${channel.name} />`} note=${sizeOf(channel)}>
        ${channel.kind === "unread" ? html`<p class="muted">Not read: <${Text} of=${String(channel.why || "")} />.</p>
            <${Json} value=${channel.text} place=${place} />`
          : channel.kind === "text" ? html`<${Cut} value=${channel.text} place=${place} />`
          : html`<${Json} value=${channel.text ?? JSON.stringify(channel.value)} place=${place} />`}<//>`)}`;
  }

  hrm.useMoments = useMoments;
  hrm.useSettled = useSettled;
  hrm.parts = { ...hrm.parts, Moment, Slider };
})();
