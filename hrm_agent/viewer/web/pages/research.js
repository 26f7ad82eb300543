/* A researched answer with its citations: the text on the left, and on the right the exact span of the source that a
   citation names. */
(() => {
  "use strict";
  const { html } = hrm;
  const { useEffect, useRef } = hrm.hooks;

  const whyNot = (cited) => (cited.verified === true ? null : cited.verified === false ? "does not verify" : "not checked");

  function CitedAnswer({ data, chosen, onChoose }) {
    const { Text } = hrm.ui;
    const known = new Map(data.citations.map((cited) => [cited.number, cited]));
    return html`<div class="cited-answer foreign">${data.parts.map((part, index) => {
      const cited = part.citation == null ? null : known.get(part.citation);
      if (!cited) return html`<${Text} key=${index} of=${part.text} />`;
      const wrong = whyNot(cited);
      return html`<button type="button" key=${index} class=${`cite${wrong ? " unverified" : ""}`} aria-pressed=${String(cited.number === chosen)}
        title=${wrong ? `Citation ${cited.number} ${wrong}` : hrm.ui.plain(cited.title || cited.source)} onClick=${() => onChoose(cited.number)}>
        [${cited.number}]${wrong ? html`<span aria-hidden="true">!</span><span class="unseen"> ${wrong}</span>` : null}</button>`;
    })}</div>`;
  }

  /* A forged citation may have an invalid span. */
  const placeOf = (value) => (Number.isSafeInteger(value) && value >= 0 ? value : 0);

  function Span({ place, id, cited }) {
    const { Answer, Outside, Text } = hrm.ui;
    const { source } = cited, [start, end] = [placeOf(cited.start), placeOf(cited.end)];
    const answer = hrm.useData("source", { place, id, source, start, end }, { live: false });
    const mark = useRef(null);
    useEffect(() => { if (mark.current) mark.current.scrollIntoView({ block: "nearest" }); }, [answer.data]);
    return html`<${Answer} of=${answer}>${(data) => html`
      <h2><${Text} of=${data.title || source} /></h2>
      <p class="small">${data.url ? html`<${Outside} url=${data.url}><${Text} of=${data.url} clip=${200} /><//>` : html`<span class="muted">no address</span>`}
        <span class="muted"> · characters ${start.toLocaleString("en")} to ${end.toLocaleString("en")} of ${data.chars.toLocaleString("en")}</span></p>
      <div class="source-text foreign" tabindex="0" role="region" aria-label="Text of the source">
        <${Part} of=${data.before} /><mark ref=${mark}><${Part} of=${data.span} /></mark><${Part} of=${data.after} />
      </div>`}<//>`;
  }

  const Part = ({ of }) => (hrm.parts.plain(of) ? html`<${hrm.ui.Text} of=${hrm.parts.plain(of)} />` : null);

  function Cited({ place, id, cited, known }) {
    const { Text } = hrm.ui, { plain } = hrm.parts, wrong = whyNot(cited);
    return html`
      ${wrong ? html`<div class="warning"><strong>Citation ${cited.number} ${wrong}.</strong>
        ${" "}${!known ? html`There is no source <${Text} of=${cited.source} clip=${80} /> on record.`
          : cited.verified === false ? "Its quote does not stand at this place of the source:" : "It quotes nothing."}
        ${plain(cited.quote) ? html`<blockquote><${Text} of=${plain(cited.quote)} clip=${600} /></blockquote>` : null}</div>` : null}
      ${known ? html`<${Span} key=${cited.number} place=${place} id=${id} cited=${cited} />` : null}`;
  }

  function Research({ data, params, change }) {
    const { Outside, Text, Num } = hrm.ui, { plain } = hrm.parts, { place, id } = params;
    const number = Number(params.citation) || (data.citations[0] && data.citations[0].number);
    const cited = data.citations.find((one) => one.number === number);
    const wrong = data.citations.filter((one) => one.verified === false).length;
    const right = useRef(null);
    const choose = (next) => {
      change({ citation: next });
      if (matchMedia("(max-width: 900px)").matches) right.current.scrollIntoView({ block: "start" });
    };
    const step = (by) => {
      const at = data.citations.findIndex((one) => one.number === number) + by;
      if (data.citations[at]) choose(data.citations[at].number);
    };
    hrm.useKeys({ j: { run: () => step(1), help: "next citation" }, k: { run: () => step(-1), help: "citation before" } });
    if (!plain(data.answer) && !data.citations.length && !data.sources.length) {
      return html`<p class="empty">This run has no answer, no citations and no sources on record.</p>`;
    }
    return html`
      <p class="muted small">${data.citations.length} citation${data.citations.length === 1 ? "" : "s"}${wrong ? html`, <strong class="bad-text">${wrong} do${wrong === 1 ? "es" : ""} not verify</strong>` : data.citations.length ? ", every one verifies" : ""};
        ${" "}${data.sources.length} source${data.sources.length === 1 ? "" : "s"} read</p>
      <div class="research">
        <section aria-label="Answer">
          <${CitedAnswer} data=${data} chosen=${number} onChoose=${choose} />
          <ol class="cite-list">${data.citations.map((one) => html`<li key=${one.number}>
            <button type="button" class="cite-row" aria-pressed=${String(one.number === number)} onClick=${() => choose(one.number)}>
              <span class="num">[${one.number}]</span> <${Text} of=${one.title || one.source} clip=${80} />
              ${whyNot(one) ? html` <span class="bad-text small">${whyNot(one)}</span>` : null}</button>
            ${one.url ? html`<span class="small cite-url"><${Outside} url=${one.url}><${Text} of=${one.url} clip=${120} /><//></span>` : null}</li>`)}</ol>
          ${data.sources.some((one) => !one.cited) ? html`<details class="part"><summary><span>Read, not cited</span><span class="muted small">${data.sources.filter((one) => !one.cited).length}</span></summary>
            <ul class="plain-list">${data.sources.filter((one) => !one.cited).map((one) => html`<li key=${one.id}><${Text} of=${one.title || one.id} clip=${80} />
              <span class="muted small"> ${one.chars.toLocaleString("en")} characters</span></li>`)}</ul></details>` : null}
        </section>
        <section aria-label="Source" ref=${right} class="cited-source" data-citation=${number || ""}>
          ${cited ? html`<${Cited} place=${place} id=${id} cited=${cited} known=${data.sources.some((one) => one.id === cited.source)} />` : html`<p class="muted">${data.citations.length ? "Choose a citation." : "The answer cites nothing."}</p>`}
        </section>
      </div>`;
  }

  function ResearchPage({ params }) {
    const { Answer, Page } = hrm.ui, { place, id } = params;
    const answer = hrm.useData("citations", { place, id });
    const change = (next) => hrm.go("research", { place, id, ...next }, { replace: true });
    return html`<${Page} title="Answer and sources" crumbs=${hrm.parts.crumbsOf(place, null, { text: "trajectory", href: hrm.link("trajectory", { place, id }) })}>
      <${Answer} of=${answer}>${(data) => html`<${Research} data=${data} params=${params} change=${change} />`}<//>
    <//>`;
  }

  hrm.pages.research = ResearchPage;
})();
