// Threads with checkpoints but no trajectory: a list of them, and one thread, checkpoint by checkpoint.
(() => {
  "use strict";
  const { html } = hrm;
  const { useEffect, useMemo, useRef, useState } = hrm.hooks;
  const { Answer, Empty, Loading, Num, Page, Problem, Table, Text, Time } = hrm.ui;

  const TITLE = "Threads without a trajectory";
  const list_of = (place) => hrm.link("threads", { place });
  const link_of = (place, thread) => hrm.link("thread", { place, thread });

  const COLUMNS = (place) => [
    { key: "thread", label: "Thread", width: "minmax(12rem, 1fr)", first: true, long: true, render: (row) => html`<a class="mono" href=${link_of(place, row.thread)}><${Text} of=${row.name} clip=${120} /></a>` },
    { key: "moments", label: "Checkpoints", width: "7rem", align: "right", render: (row) => html`<${Num} of=${row.moments} as="count" />` },
    { key: "started_at", label: "Begun", width: "7rem", align: "right", wide: true, render: (row) => html`<${Time} at=${row.started_at} />` },
    { key: "updated_at", label: "Written", width: "7rem", align: "right", render: (row) => html`<${Time} at=${row.updated_at} />` },
  ];

  function Threads({ params }) {
    const { place } = params;
    const { pages, error, loading, more, data } = hrm.usePages("threads", { place, limit: 200 }, (page) => page.threads, "");
    const rows = useMemo(() => pages.flat(), [pages]);
    const columns = useMemo(() => COLUMNS(place), [place]);
    return html`<${Page} title=${TITLE} crumbs=${[{ text: "Runs", href: "#/" }, { text: place }]}>
      <p class="muted aside">Checkpoints of a program that was given the checkpointer of this store, and recorded nothing else of its runs.</p>
      ${error && html`<${Problem} error=${error} />`}
      ${loading ? html`<${Loading} />` : rows.length
        ? html`<${Table} rows=${rows} columns=${columns} id=${(row) => row.thread} href=${(row) => link_of(place, row.thread)} label=${TITLE} />`
        : !error && html`<${Empty}>Every thread here has a trajectory.</${Empty}>`}
      ${more && html`<button onClick=${more}>More threads <small>${data.total - rows.length} left</small></button>`}
    </${Page}>`;
  }

  function History({ place, thread, total, wanted }) {
    const { GraphFold, Moment, Slider, Switch } = hrm.parts;
    const moments = hrm.useMoments(place, thread, total);
    const [position, set_position] = useState(null);
    const [tab, set_tab] = useState("conversation");
    const pending = useRef(null);
    useEffect(() => {
      let gone = false;
      if (wanted && moments.total) moments.find(wanted).then((at) => { if (!gone && at !== null) set_position(at); });
      return () => { gone = true; };
    }, [wanted, moments.total === null]);
    const now = position ?? Math.max(0, (moments.total || 1) - 1);
    const settled = hrm.useSettled(moments.total ? now : null);
    const moment = moments.total && settled !== null ? moments.at(settled) : null;
    const move = (next) => {
      if (next < 0 || next >= moments.total) return;
      set_position(next);
      pending.current = next;
    };
    useEffect(() => { // the address follows once the moment's page is here
      if (pending.current !== settled || !moment) return;
      pending.current = null;
      hrm.go("thread", { place, thread, moment: moment.checkpoint }, { replace: true });
    });
    hrm.useKeys({
      "[": { run: () => move(now - 1), help: "checkpoint before" },
      "]": { run: () => move(now + 1), help: "checkpoint after" },
    });
    return html`
      ${moments.problem && html`<${Problem} error=${moments.problem} />`}
      <${Slider} moment=${moments.total ? moments.peek(now) : null} position=${now} total=${moments.total} onMove=${move} />
      <${GraphFold} place=${place} thread=${thread} lit=${moment ? (moment.next.length ? moment.next : ["__end__"]) : []} />
      <div class="aside"><${Switch} label="What is shown" value=${tab} onChoose=${set_tab} options=${{ conversation: "Conversation", state: "State" }} /></div>
      <div role="tabpanel" aria-labelledby=${`tab-${tab}`}>
        ${moment ? html`<h2 class="as-of">As of checkpoint ${settled + 1}</h2>
          <${Moment} place=${place} thread=${thread} checkpoint=${moment.checkpoint} show=${tab} />` : html`<${Loading} />`}
      </div>`;
  }

  function Thread({ params }) {
    const { place, thread, moment } = params;
    const answer = hrm.useData("moments", { place, thread, limit: 1 });
    return html`<${Page} title=${thread} crumbs=${[{ text: "Runs", href: "#/" }, { text: TITLE, href: list_of(place) }]}>
      <${Answer} of=${answer}>${(data) => html`
        ${data.trajectory && html`<p><a href=${hrm.link("trajectory", { place, id: data.trajectory })}>The trajectory of this thread</a></p>`}
        <${History} key=${`${place} ${thread}`} place=${place} thread=${thread} total=${data.total} wanted=${moment} />`}</${Answer}>
    </${Page}>`;
  }

  Object.assign(hrm.pages, { threads: Threads, thread: Thread });
})();
