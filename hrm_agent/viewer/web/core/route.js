// Addresses of pages: #/name?key=value. Everything that a page can show has an address, which can be sent to somebody.
(() => {
  "use strict";
  const { useState, useEffect } = hrm.hooks;

  function parse(hash) {
    const [path, search] = hash.replace(/^#\/?/, "").split("?", 2);
    return { name: path || "runs", params: Object.fromEntries(new URLSearchParams(search || "")) };
  }

  function link(name, params) {
    const values = new URLSearchParams();
    for (const [key, value] of Object.entries(params || {}))
      if (value !== null && value !== undefined && value !== "") values.set(key, value);
    const search = values.toString();
    return `#/${name === "runs" ? "" : name}${search ? `?${search}` : ""}`;
  }

  // A copy may name the address at which it opens, such as its only trajectory.
  const start = document.querySelector('meta[name="start"]');
  if (start && start.content && !location.hash) history.replaceState(null, "", start.content);

  const listeners = new Set();
  const changed = () => listeners.forEach((listener) => listener(parse(location.hash)));
  addEventListener("hashchange", changed);

  function go(name, params, { replace = false } = {}) {
    const target = link(name, params);
    if (!replace) location.hash = target;
    else {
      history.replaceState(null, "", target);
      changed();
    }
  }

  hrm.link = link;
  hrm.go = go;
  hrm.current = () => parse(location.hash);
  // The route, for a component: {name, params}.
  hrm.useRoute = () => {
    const [route, set] = useState(() => parse(location.hash));
    useEffect(() => {
      listeners.add(set);
      return () => listeners.delete(set);
    }, []);
    return route;
  };
  // One value of the address, in which a page keeps its state: [value, set]. Setting it adds no entry to the history.
  hrm.useParam = (key, fallback = "") => {
    const { name, params } = hrm.useRoute();
    const value = params[key] ?? fallback;
    return [value, (next) => hrm.go(name, { ...hrm.current().params, [key]: next === fallback ? "" : next }, { replace: true })];
  };
})();
