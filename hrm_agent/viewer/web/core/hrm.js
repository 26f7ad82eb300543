// The only global name of the pages. Everything else is below it: hrm.api, hrm.go, hrm.ui, hrm.pages.
//
// The scripts are classic scripts, loaded in the order of index.html. So the same files work from the server and in a
// file that is opened by double click, where browsers refuse modules and fetch.
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
    // kind of an analysis -> component that gets {place, run, result}
    analyses: {},
    ui: {},
    // In a copy: key of an answer -> the element with its JSON.
    stored: new Map([...document.querySelectorAll("script[data-key]")].map((one) => [one.dataset.key, one])),
  };
})();
