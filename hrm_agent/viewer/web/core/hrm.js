// The one global name of the pages. Everything hangs below it: hrm.api, hrm.route, hrm.ui, hrm.pages.
//
// The scripts are classic ones, in the order of index.html, so that the same files work from the server and from a
// file that somebody double-clicks: browsers refuse modules and fetch there.
(() => {
  "use strict";

  const { h, render, Fragment, Component, createContext } = preact;
  const html = htm.bind(h);

  globalThis.hrm = {
    html,
    h,
    render,
    Fragment,
    Component,
    createContext,
    // useState, useEffect, useRef, useMemo, useCallback, ...
    hooks: preactHooks,
    // name of a route -> component that gets {params}
    pages: {},
    ui: {},
    // In a copy: key of an answer -> the element that holds its JSON.
    stored: new Map([...document.querySelectorAll("script[data-key]")].map((one) => [one.dataset.key, one])),
  };
})();
