// The frame of all pages, with the page that the address names.
(() => {
  "use strict";
  const { html } = hrm;
  const { useEffect, useRef, useErrorBoundary, useState } = hrm.hooks;
  const { Help, ThemeSwitch, Problem, Page } = hrm.ui;

  const LIVE = { connecting: ["Connecting", "calm"], live: ["Live", "good"], away: ["No connection", "bad"], static: ["A copy", "calm"] };

  function LiveState() {
    const [word, tone] = LIVE[hrm.useLiveState()];
    return html`<span class=${`live-state ${tone}`} role="status"><i aria-hidden="true"></i>${word}</span>`;
  }

  function Search() {
    const field = useRef(null);
    hrm.useKeys({ "/": { run: () => field.current.focus(), help: "search" } });
    const find = (event) => {
      event.preventDefault();
      if (field.current.value.trim()) hrm.go("search", { q: field.current.value.trim(), place: hrm.current().params.place, run: hrm.current().params.run });
    };
    return html`<form role="search" class="search" onSubmit=${find}>
      <input ref=${field} type="search" aria-label="Search in ids, tasks and answers" placeholder="Search  /" maxlength="200" />
    </form>`;
  }

  function Unknown() {
    return html`<${Page} title="No such page"><p>The address names a page that there is none of. <a href="#/">All runs</a></p></${Page}>`;
  }

  // If a page raises an error, the frame stays, and the error is shown.
  function Shown({ route }) {
    const [error, reset] = useErrorBoundary((caught) => console.error(caught));
    useEffect(() => reset(), [route.name, JSON.stringify(route.params)]);
    if (error) return html`<${Page} title="This page has failed"><${Problem} error=${{ message: String(error && error.message), hint: "This is a mistake of the viewer's. The other pages go on." }} /></${Page}>`;
    const View = hrm.pages[route.name] || Unknown;
    return html`<${View} key=${route.name} params=${route.params} />`;
  }

  function App() {
    const route = hrm.useRoute();
    const [before, set_before] = useState(route.name);
    useEffect(() => {
      if (before === route.name) return;
      hrm.moved = true; // from the first change of pages on, a new page takes the focus
      set_before(route.name);
      scrollTo(0, 0);
    }, [route.name]);
    return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>To the content</a>
      <header class="bar">
        <a class="brand" href="#/" aria-label="hrm-agent view: all runs"><img src="icon.svg" alt="" width="18" height="18" />hrm-agent<span> view</span></a>
        ${!hrm.api.is_static() && html`<${Search} />`}
        <div class="bar-end"><${LiveState} /><${ThemeSwitch} /><${Help} /></div>
      </header>
      <main id="main" tabindex="-1"><${Shown} route=${route} /></main>
      <div id="announcer" class="unseen" aria-live="polite"></div>`;
  }

  hrm.render(html`<${App} />`, document.getElementById("app"));
  hrm.live.start();
})();
