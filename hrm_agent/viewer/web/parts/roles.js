/* The result of `hrm-agent roles`: the gain of each role's swap with its interval, the requests that it took, and the advice. */
(() => {
  "use strict";
  const { html } = hrm;
  const { useMemo } = hrm.hooks;
  const { Empty, Num, Table, Text, format } = hrm.ui;

  const WIDTH = 240, HEIGHT = 18, MARGIN = 6; // of an interval, in pixels

  // The file may hold anything: values of another type are treated as missing.
  const number = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);
  const text = (value) => (typeof value === "string" ? value : "");
  const list = (value) => (Array.isArray(value) ? value : []);
  const table = (value) => (value !== null && typeof value === "object" && !Array.isArray(value) ? value : {});

  const asked = (value) => ({ read: number(table(value).read) ?? 0, sampled: number(table(value).sampled) ?? 0 });

  function read(result) {
    const roles = list(result.roles).map(table).map((one, index) => {
      const { a, b, difference } = table(one.comparison);
      const { value, low, high } = table(difference);
      return { index, role: text(one.role), called: number(one.called), cost: number(one.cost), tried: asked(one.asked), others: asked(one.asked_others),
        before: number(table(table(a).pass_at_1).value), after: number(table(table(b).pass_at_1).value), gain: number(value), low: number(low), high: number(high) };
    });
    return { roles, tried: text(result.try), policy: text(result.policy), advice: text(result.advice), tasks: number(result.tasks), runs: number(result.runs),
      recorded: number(result.recorded_runs), budget: result.budget_used_up === true ? text(result.budget) : "" };
  }

  function Interval({ one, most }) {
    if (one.gain === null || one.low === null || one.high === null) return "";
    const x = (value) => WIDTH / 2 + (value / most) * (WIDTH / 2 - MARGIN);
    const told = `${format.number(one.gain)}, 95 % interval ${format.number(one.low)} to ${format.number(one.high)}`;
    return html`<svg width=${WIDTH} height=${HEIGHT} viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label=${told}>
      <line x1=${x(0)} x2=${x(0)} y1="0" y2=${HEIGHT} stroke="currentColor" stroke-opacity="0.3" />
      <line x1=${x(one.low)} x2=${x(one.high)} y1=${HEIGHT / 2} y2=${HEIGHT / 2} stroke="currentColor" stroke-width="4" stroke-opacity=${one.low > 0 ? 0.8 : 0.35} />
      <circle cx=${x(one.gain)} cy=${HEIGHT / 2} r="5" fill="currentColor" /></svg>`;
  }

  const tokens = (of) => html`<span title="prompt + completion tokens">${format.count(of.read)} + ${format.count(of.sampled)}</span>`;
  const share = (value) => html`<${Num} of=${value} digits=${3} />`;
  const COLUMNS = (most, priced) => [
    { key: "role", label: "Role", width: "minmax(7rem, 1fr)", first: true, value: (one) => one.role, render: (one) => html`<${Text} of=${one.role} clip=${60} />` },
    { key: "called", label: "Runs", width: "4.5rem", align: "right", help: "runs that called the role", value: (one) => one.called, render: (one) => format.count(one.called ?? 0) },
    { key: "before", label: "Before", width: "5rem", align: "right", value: (one) => one.before, render: (one) => share(one.before) },
    { key: "after", label: "After", width: "5rem", align: "right", value: (one) => one.after, render: (one) => share(one.after) },
    { key: "gain", label: "Gain", width: "5rem", align: "right", first: true, value: (one) => one.gain, render: (one) => html`<${Num} of=${one.gain} digits=${3} sign=${true} />` },
    { key: "interval", label: "95 % interval", width: `${WIDTH}px`, long: true, render: (one) => html`<${Interval} one=${one} most=${most} />` },
    { key: "tried", label: "Asked of it", width: "9rem", align: "right", value: (one) => one.tried.read + one.tried.sampled, render: (one) => tokens(one.tried) },
    { key: "others", label: "Asked of others", width: "9rem", align: "right", value: (one) => one.others.read + one.others.sampled, render: (one) => tokens(one.others) },
    ...(priced ? [{ key: "cost", label: "Cost", width: "5rem", align: "right", value: (one) => one.cost, render: (one) => html`<${Num} of=${one.cost} />` }] : []),
  ];

  function Roles({ result }) {
    const found = useMemo(() => read(result), [result]);
    const [order, set_order] = hrm.useParam("sort");
    const most = Math.max(0.01, ...found.roles.flatMap((one) => [one.low, one.high].map((end) => Math.abs(end ?? 0))));
    const columns = useMemo(() => COLUMNS(most, found.roles.some((one) => one.cost > 0)), [most, found]);
    if (!found.roles.length) return html`<${Empty}>No role was swapped.</${Empty}>`;
    const cut = found.runs !== found.recorded ? `, ${format.count(found.runs ?? 0)} of ${format.count(found.recorded ?? 0)} runs` : "";
    return html`<section aria-labelledby="roles-swaps"><h2 id="roles-swaps"><${Text} of=${found.tried} clip=${80} /> in each role of <${Text} of=${found.policy} clip=${80} /></h2>
      <p><${Text} of=${found.advice} /></p>
      <${Table} rows=${found.roles} columns=${columns} id=${(one) => `${one.index}`} label="Swaps by role" order=${order} on_order=${set_order} />
      <p class="muted small">Based on ${format.count(found.tasks ?? 0)} tasks${cut}.${found.budget ? html` The budget of <${Text} of=${found.budget} /> is used up.` : ""}</p></section>`;
  }

  hrm.analyses.roles = Roles;
})();
