// The result of `hrm-agent why`.
(() => {
  "use strict";
  const { html } = hrm;
  const { Text } = hrm.ui;

  function Why({ result }) {
    return html`<p>Step <${Text} of=${String(result.step)} /></p>`;
  }

  hrm.analyses.why = Why;
})();
