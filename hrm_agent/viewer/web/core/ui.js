// Small parts of all pages.
(() => {
  "use strict";
  const { html } = hrm;
  const { useEffect, useState, useRef } = hrm.hooks;
  const { Text } = hrm.ui;

  const NOT_RECORDED = html`<span class="none" title="not recorded">–</span>`;
  const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

  // --- numbers -------------------------------------------------------------------------------------------------------

  function rounded(value, digits) {
    if (Number.isInteger(value) && Math.abs(value) >= 1 && Math.abs(value) < 1e15) return value.toLocaleString("en");
    const size = Math.abs(value);
    if (size !== 0 && (size < 0.001 || size >= 1e7)) return value.toExponential(1).replace("e+", "e");
    return value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: size < 100 && size !== 0 ? digits : 0 });
  }

  const format = {
    number: (value, digits = 3) => (known(value) ? rounded(value, digits) : "–"),
    share: (value) => (known(value) ? value.toFixed(3) : "–"),
    count: (value) => (known(value) ? Math.round(value).toLocaleString("en") : "–"),
    seconds(value) {
      if (!known(value)) return "–";
      // The bounds take rounding into account: 0.9996 s is written as 1.00 s, not as 1000 ms.
      if (value < 0.0009995) return `${(value * 1e6).toFixed(0)} µs`;
      if (value < 0.9995) return `${(value * 1000).toFixed(value < 0.00995 ? 1 : 0)} ms`;
      if (value < 59.95) return `${value.toFixed(value < 9.995 ? 2 : 1)} s`;
      const whole = Math.round(value);
      const minutes = Math.floor(whole / 60);
      return minutes < 60 ? `${minutes} min ${whole % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
    },
    bytes(value) {
      if (!known(value)) return "–";
      const units = ["B", "kB", "MB", "GB", "TB"];
      let unit = 0;
      while (value >= 1000 && unit < 4) [value, unit] = [value / 1000, unit + 1];
      return `${value.toFixed(unit && value < 100 ? 1 : 0)} ${units[unit]}`;
    },
    // `at`: seconds since 1970, as in all times that the server sends.
    ago(at) {
      const seconds = Date.now() / 1000 - at;
      if (seconds < 60) return "now";
      if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
      if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
      return new Date(at * 1000).toISOString().slice(0, 10);
    },
    moment: (at) => new Date(at * 1000).toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC"),
  };

  // <Num of=... as="number|share|count|seconds|bytes" digits=... sign>: null means "not recorded" and is never shown as
  // 0.
  function Num({ of, as = "number", digits, sign }) {
    if (!known(of)) return NOT_RECORDED;
    const text = format[as](of, digits);
    return html`<span class="num">${sign && of > 0 ? "+" : ""}${text.replace("-", "−")}</span>`;
  }

  function Time({ at }) {
    if (!known(at)) return NOT_RECORDED;
    return html`<time datetime=${new Date(at * 1000).toISOString()} title=${format.moment(at)}>${format.ago(at)}</time>`;
  }

  // --- outcomes: a shape and a colour each, so that the colour is never alone ----------------------------------------

  const SHAPES = {
    disc: "M6 1.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 1 0 0-9z",
    ring: "M6 1.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 1 0 0-9zM6 3.6a2.4 2.4 0 1 1 0 4.8a2.4 2.4 0 1 1 0-4.8z",
    cross: "M2.2 1 6 4.8 9.8 1 11 2.2 7.2 6 11 9.8 9.8 11 6 7.2 2.2 11 1 9.8 4.8 6 1 2.2z",
    triangle: "M6 1 11.5 10.8H.5z",
    glass: "M1.5 1h9L7 6l3.5 5h-9L5 6z",
    square: "M1.5 1.5h9v9h-9z",
    bar: "M.5 4h11v4H.5z",
    diamond: "M6 .5 11.5 6 6 11.5.5 6z",
    slashed: "M6 1a5 5 0 1 0 0 10A5 5 0 1 0 6 1zM4 5h4v2H4z",
    dot: "M6 4a2 2 0 1 0 0 4a2 2 0 1 0 0-4z",
    up: "M6 1 11 8H1z",
    down: "M6 11 1 4h10z",
  };
  // outcome -> [tone, shape]
  const OUTCOMES = {
    ok: ["good", "disc"], error: ["bad", "cross"], timeout: ["bad", "glass"], out_of_memory: ["bad", "square"], output_limit: ["bad", "bar"],
    invalid_call: ["bad", "diamond"], denied: ["bad", "slashed"], infrastructure: ["warn", "triangle"], running: ["calm", "ring"],
    completed: ["good", "disc"], truncated: ["warn", "bar"], failed: ["bad", "cross"], aborted: ["warn", "slashed"], interrupted: ["warn", "glass"],
    kept: ["good", "disc"], dropped: ["calm", "ring"], rejected: ["calm", "ring"], group_rejected: ["calm", "slashed"], ended: ["calm", "dot"], stopped: ["warn", "bar"], unknown: ["calm", "dot"],
    correct: ["good", "disc"], wrong: ["bad", "cross"], live: ["good", "disc"],
  };

  const kind_of = (value) => OUTCOMES[value] || ["calm", "dot"];

  function Glyph({ of, label }) {
    const [tone, shape] = kind_of(of);
    return html`<svg class=${`glyph ${tone}`} viewBox="0 0 12 12" width="10" height="10" role=${label ? "img" : undefined} aria-label=${label} aria-hidden=${label ? undefined : "true"}>
      <path d=${SHAPES[shape]} fill-rule="evenodd" />
    </svg>`;
  }

  // <Badge of="completed" title=...>: a status or a verdict, as a shape and a word.
  function Badge({ of, title, children }) {
    if (!known(of) || of === "") return NOT_RECORDED;
    const word = String(of).replaceAll("_", " ");
    return html`<span class=${`badge ${kind_of(of)[0]}`} title=${title}><${Glyph} of=${of} />${children || html`<${Text} of=${word} clip=${40} />`}</span>`;
  }

  // <Strip tools=[{name, status}]>: the tool calls of a rollout, in order; counted in words for a screen reader.
  function Strip({ tools, most = 24 }) {
    if (!tools || !tools.length) return html`<span class="none" title="no tool call">–</span>`;
    const counts = new Map();
    for (const { status } of tools) counts.set(status, (counts.get(status) || 0) + 1);
    const words = [...counts].map(([status, count]) => `${count} ${hrm.ui.plain(status).replaceAll("_", " ")}`).join(", ");
    return html`<span class="strip" role="img" aria-label=${`tools: ${words}`} title=${words}>
      ${tools.slice(0, most).map((tool, index) => html`<${Glyph} key=${index} of=${tool.status} />`)}${tools.length > most ? html`<small>+${tools.length - most}</small>` : null}
    </span>`;
  }

  // --- errors, empty lists, loading ----------------------------------------------------------------------------------

  function Problem({ error, retry }) {
    return html`<div class="problem" role="alert">
      <p><${Text} of=${error.message} /></p>
      ${error.hint && html`<p class="muted"><${Text} of=${error.hint} /></p>`}
      ${retry && html`<button onClick=${retry}>Try again</button>`}
    </div>`;
  }

  const Empty = ({ children }) => html`<p class="empty">${children}</p>`;
  const Loading = () => html`<p class="loading" role="status"><span>Loading</span></p>`;

  // What a page shows of one answer: <Answer of=${useData(...)}>${(data) => ...}</Answer>.
  function Answer({ of, children }) {
    const { data, error, loading, reload } = of;
    if (loading) return html`<${Loading} />`;
    return html`${error && html`<${Problem} error=${error} retry=${reload} />`}${data ? children(data) : null}`;
  }

  // --- navigation ----------------------------------------------------------------------------------------------------

  // <Tabs of=[{text, href, current}] label=...>
  function Tabs({ of, label }) {
    return html`<nav class="tabs" aria-label=${label}>
      ${of.map(({ text, href, current }) => html`<a key=${text} href=${href} aria-current=${current ? "page" : undefined}>${text}</a>`)}
    </nav>`;
  }

  // The name of a run. Threads that belong to no run have one name together.
  const run_name = (place, run) => run || `${place}: single runs`;
  // The breadcrumbs of a run, from the list of all runs on.
  const run_crumbs = (place, run) => [{ text: "Runs", href: "#/" }, ...(run && run !== place ? [{ text: place }] : [])];

  const trains = (run) => run.steps !== null || (run.run !== "" && /^(train|demo)/.test(run.kind));

  // The pages of one run. `current` is the name of a route.
  function RunTabs({ place, run, current }) {
    const { data } = hrm.useData("runs", {}, { live: false });
    const known_run = data && data.runs.find((one) => one.place === place && one.run === run);
    const trained = run && (!known_run || trains(known_run));
    const names = [trained && ["run", "Curves"], ["groups", "Groups"], ["list", "Trajectories"], ["environment", "Environment"], trained && ["analyses", "Analyses"]];
    const needs = { run: "metrics", list: "trajectories" };
    const there = names.filter((one) => one && (one[0] === current || hrm.api.has(needs[one[0]] || one[0], { place, run })));
    const of = there.map(([name, text]) => ({ text, href: hrm.link(name, { place, run }), current: name === current }));
    return html`<${Tabs} of=${of} label="This run" />`;
  }

  const crumb = ({ text, href }) => (href ? html`<a href=${href}><${Text} of=${text} clip=${60} /></a>` : html`<${Text} of=${text} clip=${60} />`);

  // <Page title=... crumbs=[{text, href}] actions=... wide>: the frame of every page. It sets the title of the window
  // and takes the focus.
  function Page({ title, heading, crumbs = [], tabs, actions, children }) {
    const head = useRef(null);
    useEffect(() => {
      document.title = `${hrm.ui.plain(title)} · hrm-agent view`;
    }, [title]);
    useEffect(() => {
      // Once per page, and only if nothing in it has the focus (the link that was followed no longer exists).
      if (hrm.moved && (document.activeElement === document.body || !document.activeElement)) head.current.focus({ preventScroll: true });
    }, []);
    return html`<div class="page">
      <header class="page-head">
        ${crumbs.length > 0 && html`<nav class="crumbs" aria-label="Where this is"><ol>${crumbs.map((one, index) => html`<li key=${index}>${crumb(one)}</li>`)}</ol></nav>`}
        <div class="title-line"><h1 tabindex="-1" ref=${head}>${heading || html`<${Text} of=${title} clip=${160} />`}</h1>${actions && html`<div class="actions">${actions}</div>`}</div>
        ${tabs}
      </header>
      ${children}
    </div>`;
  }

  // --- light and dark ------------------------------------------------------------------------------------------------

  const THEMES = ["auto", "light", "dark"];

  function apply(theme) {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    dispatchEvent(new Event("hrm-theme"));
  }

  function stored_theme() {
    try {
      return localStorage.getItem("hrm-theme") || "auto";
    } catch {
      return "auto"; // a page from a file may have no storage
    }
  }

  apply(stored_theme());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("hrm-theme")));

  function ThemeSwitch() {
    const [theme, set] = useState(stored_theme);
    const turn = () => {
      const next = THEMES[(THEMES.indexOf(theme) + 1) % 3];
      try {
        localStorage.setItem("hrm-theme", next);
      } catch {
        // a page from a file may have no storage
      }
      apply(next);
      set(next);
    };
    const word = { auto: "as the system", light: "light", dark: "dark" }[theme];
    return html`<button class="quiet icon" onClick=${turn} aria-label=${`Colours: ${word}. Change`} title=${`Colours: ${word}`}>
      ${{ auto: "◐", light: "○", dark: "●" }[theme]}
    </button>`;
  }

  // True while the condition on the window's width holds.
  hrm.useMedia = (condition) => {
    const [matches, set] = useState(() => matchMedia(condition).matches);
    useEffect(() => {
      const media = matchMedia(condition);
      const changed = () => set(media.matches);
      changed();
      media.addEventListener("change", changed);
      return () => media.removeEventListener("change", changed);
    }, [condition]);
    return matches;
  };
  hrm.useNarrow = () => hrm.useMedia("(max-width: 700px)");

  Object.assign(hrm.ui, {
    html, format, Num, Number: Num, Time, Glyph, Badge, Strip, Problem, Empty, Loading, Answer, Tabs, RunTabs, run_name, run_crumbs, trains, Page, ThemeSwitch, tone_of: (value) => kind_of(value)[0],
  });
})();
