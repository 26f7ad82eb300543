/* The result of `hrm-agent analyze --failures`: classes with their shares, the failed runs with the evidence of their class,
   and the change from another run. */
(() => {
  "use strict";
  const { html } = hrm;
  const { useMemo } = hrm.hooks;
  const { Empty, Num, Table, Text, format } = hrm.ui;
  const { has_page, list, number, table, text, thread_link } = hrm.parts.pushed;

  const texts = (value) => list(value).map(text).filter(Boolean);
  const estimate = (value) => ({ value: number(table(value).value), low: number(table(value).low), high: number(table(value).high) });
  const counts = (value) => Object.entries(table(value)).map(([name, count]) => `${name} ${number(count) ?? 0}`).join(", ");

  function read(result) {
    const change = table(result.change);
    return {
      runs: number(result.runs) ?? 0, judged: number(result.judged) ?? 0, failed: number(result.failed) ?? 0, apart: number(result.apart) ?? 0,
      classes: list(result.classes).map(table).map((one) => ({ name: text(one.name), rule: text(one.rule), apart: one.apart === true, runs: number(one.runs) ?? 0, also: number(one.secondary) ?? 0,
        share: estimate(one.share), kinds: counts(one.details), unchecked: counts(one.unchecked) })),
      failures: list(result.failures).map(table).map((one, index) => ({ index, trajectory: text(one.trajectory), thread: text(one.thread), family: text(one.family), role: text(one.role), name: text(one.outcome),
        also: texts(one.secondary).join(", "), evidence: text(table(one.evidence).excerpt) })),
      against: text(change.against), paired: number(change.paired) ?? 0,
      changes: list(change.changes).map(table).map((one) => ({ name: text(one.name), before: number(one.before), after: number(one.after), difference: estimate(one.difference), p: number(one.p_value) })),
      moved: list(change.moved).map(table).map((one, index) => ({ index, before: text(one.before), after: text(one.after), runs: number(one.runs) ?? 0, tasks: texts(one.tasks).join(", ") })),
    };
  }

  const words = (key, label, width, extra = {}) => ({ key, label, width, value: (one) => one[key], render: (one) => html`<${Text} of=${one[key]} clip=${200} />`, ...extra });
  const count = (key, label) => ({ key, label, width: "4.5rem", align: "right", value: (one) => one[key], render: (one) => format.count(one[key]) });
  const share = (key, label, of, sign = false) => ({ key, label, width: "6rem", align: "right", value: of, render: (one) => html`<${Num} of=${of(one)} digits=${3} sign=${sign} />` });
  const interval = (of, sign = false) => ({ key: "interval", label: "95 % interval", width: "10rem", align: "right", render: (one) => html`<${Num} of=${of(one).low} digits=${3} sign=${sign} /> to <${Num} of=${of(one).high} digits=${3} sign=${sign} />` });
  const CLASSES = [
    { key: "name", label: "Class", width: "minmax(11rem, 1fr)", first: true, value: (one) => one.name, render: (one) => html`<span title=${one.rule}><${Text} of=${one.name} clip=${60} />${one.apart ? " (not the policy's)" : ""}</span>` },
    count("runs", "Runs"), share("share", "Share", (one) => one.share.value), interval((one) => one.share), count("also", "Also"),
    words("kinds", "Kinds", "minmax(8rem, 1fr)", { long: true }), words("unchecked", "Not checkable", "minmax(8rem, 1fr)", { long: true }),
  ];
  const FAILURES = (place) => [
    { key: "thread", label: "Thread", width: "minmax(10rem, 1fr)", first: true, value: (one) => one.thread, render: (one) => thread_link(place, one) },
    words("name", "Class", "11rem", { first: true }), words("role", "Role", "7rem"), words("family", "Family", "9rem"), words("also", "Also", "9rem"),
    words("evidence", "Evidence", "minmax(14rem, 2fr)", { long: true }),
  ];
  const CHANGES = [
    words("name", "Class", "minmax(11rem, 1fr)", { first: true }), share("before", "Before", (one) => one.before), share("after", "After", (one) => one.after),
    share("difference", "Change", (one) => one.difference.value, true), interval((one) => one.difference, true),
    { key: "p", label: "p", width: "5rem", align: "right", value: (one) => one.p, render: (one) => html`<${Num} of=${one.p} digits=${3} />` },
  ];
  const MOVED = [words("before", "Before", "11rem", { first: true }), words("after", "After", "11rem", { first: true }), count("runs", "Runs"), words("tasks", "Tasks", "minmax(12rem, 1fr)", { long: true })];

  function Failures({ place, result }) {
    const found = useMemo(() => read(result), [result]);
    const [order, set_order] = hrm.useParam("sort");
    const columns = useMemo(() => FAILURES(place), [place]);
    if (!found.failures.length && !found.changes.length) return html`<${Empty}>No run failed.</${Empty}>`;
    const based = found.paired > 0 ? `${format.count(found.paired)} tasks of both` : "no task of both";
    return html`<p>${format.count(found.failed)} of ${format.count(found.judged)} judged runs failed${found.apart > 0 ? `, ${format.count(found.apart)} of them by no fault of the policy` : ""}.${found.runs > found.judged ? ` ${format.count(found.runs - found.judged)} runs are not judged.` : ""}</p>
      <section aria-labelledby="failures-classes"><h2 id="failures-classes">Classes</h2>
        <${Table} rows=${found.classes} columns=${CLASSES} id=${(one) => one.name} label="Failures by class" height="24rem" /></section>
      <section aria-labelledby="failures-runs"><h2 id="failures-runs">Failed runs</h2>
        <${Table} rows=${found.failures} columns=${columns} id=${(one) => String(one.index)} label="Failed runs" order=${order} on_order=${set_order}
          href=${(one) => (has_page(place, one) ? hrm.link("trajectory", { place, id: one.trajectory }) : undefined)} height="30rem" /></section>
      ${found.changes.length > 0 && html`<section aria-labelledby="failures-change"><h2 id="failures-change">Change from <${Text} of=${found.against} clip=${80} />, ${based}</h2>
        <${Table} rows=${found.changes} columns=${CHANGES} id=${(one) => one.name} label="Change by class" height="20rem" />
        ${found.moved.length > 0 && html`<${Table} rows=${found.moved} columns=${MOVED} id=${(one) => String(one.index)} label="Runs that moved" height="20rem" />`}</section>`}`;
  }

  hrm.analyses.failures = Failures;
})();
