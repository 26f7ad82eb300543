// Keys of the whole page and of single parts. `?` lists the keys that work on the current page.
(() => {
  "use strict";
  const { html } = hrm;
  const { useEffect, useRef, useState } = hrm.hooks;

  const active = []; // newest last; the newest gets a key first

  function typing(target) {
    const taking_text = "input:not([type=range], [type=checkbox], [type=radio]), textarea, select, [contenteditable]";
    return target.closest(taking_text) !== null;
  }

  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    if (document.querySelector("dialog[open]")) return;
    for (const keys of [...active].reverse()) {
      const found = keys.current[event.key];
      // By returning false, a part leaves the key to another part.
      if (found && found.run(event) !== false) {
        event.preventDefault();
        return;
      }
    }
  });

  // hrm.useKeys({j: {run, help: "next row"}}): defines keys while the component is on the page.
  hrm.useKeys = (keys) => {
    const newest = useRef(keys);
    newest.current = keys;
    useEffect(() => {
      active.push(newest);
      return () => void active.splice(active.indexOf(newest), 1);
    }, []);
  };

  function listed() {
    const told = new Map();
    for (const keys of active)
      for (const [key, { help }] of Object.entries(keys.current)) if (help) told.set(help, [...(told.get(help) || []), key]);
    return [...told];
  }

  const SHOWN = { ArrowUp: "↑", ArrowDown: "↓", ArrowLeft: "←", ArrowRight: "→", Enter: "Enter", " ": "Space" };

  // The dialog of `?`.
  function Help() {
    const dialog = useRef(null);
    const [rows, set] = useState([]);
    const open = () => {
      set(listed());
      dialog.current.showModal();
    };
    hrm.useKeys({ "?": { run: open, help: "this list" } });
    return html`<button class="quiet icon" onClick=${open} aria-label="Keys" title="Keys (?)">?</button>
      <dialog ref=${dialog} aria-labelledby="keys-title" class="help">
        <h2 id="keys-title">Keys</h2>
        <dl>
          ${rows.map(([help, keys]) => html`<div key=${help}><dt>${keys.map((key) => html`<kbd>${SHOWN[key] || key}</kbd> `)}</dt><dd>${help}</dd></div>`)}
        </dl>
        <form method="dialog"><button>Close</button></form>
      </dialog>`;
  }

  hrm.ui.Help = Help;
})();
