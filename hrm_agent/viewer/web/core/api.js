// Requests one answer of /api/v1 from the server. In a copy, the answer is read from the page itself.
(() => {
  "use strict";

  // The token comes in the fragment, which no server or log sees. It is removed from the address at once.
  const given = location.hash.startsWith("#/") ? null : new URLSearchParams(location.hash.slice(1));
  if (given && given.has("token")) {
    sessionStorage.setItem("hrm-token", given.get("token"));
    if (given.has("fork")) sessionStorage.setItem("hrm-fork-token", given.get("fork"));
    history.replaceState(null, "", `${location.pathname}#${given.get("route") || "/"}`);
  }

  // If a link is opened in a new tab, the tab's storage is empty, so it has no token. An open tab tells it the token.
  const TABS_ANSWER = 1000; // milliseconds
  const token_of = () => sessionStorage.getItem("hrm-token");
  const ready = new Promise((resolve) => {
    if (location.protocol === "file:" || !globalThis.BroadcastChannel) return void resolve();
    const tabs = new BroadcastChannel("hrm-token");
    tabs.onmessage = ({ data }) => {
      if (data === null && token_of()) tabs.postMessage(token_of());
      if (typeof data === "string" && !token_of()) sessionStorage.setItem("hrm-token", data);
      if (token_of()) resolve();
    };
    if (token_of()) return void resolve();
    tabs.postMessage(null);
    setTimeout(resolve, TABS_ANSWER);
  });

  class ApiError extends Error {
    constructor(message, hint, status) {
      super(message);
      this.name = "ApiError";
      this.hint = hint || "";
      this.status = status;
    }
  }

  const PAGING = new Set(["after", "limit", "from", "to"]);

  // Quotes as Python's `quote` does, since the keys of answers in a copy were written by it.
  const quoted = (value) => encodeURIComponent(value).replace(/[!'()*]/g, (one) => `%${one.charCodeAt(0).toString(16).toUpperCase()}`);

  function query(params, left_out = new Set()) {
    return Object.entries(params || {})
      .filter(([name, value]) => value !== null && value !== undefined && value !== "" && !left_out.has(name))
      .sort(([one], [other]) => (one < other ? -1 : 1))
      .map(([name, value]) => `${quoted(name)}=${quoted(value)}`)
      .join("&");
  }

  function key(name, params) {
    return `${name}?${query(params, PAGING)}`;
  }

  const parsed = new Map();

  async function get_static(name, params) {
    const wanted = key(name, params);
    if (!hrm.stored.has(wanted))
      throw new ApiError("This was left out of this copy.", "Make a larger copy (hrm-agent view --export --limit N), or look at the store itself.", 404);
    if (!parsed.has(wanted)) parsed.set(wanted, JSON.parse(hrm.stored.get(wanted).textContent));
    return parsed.get(wanted);
  }

  function headers(more) {
    const token = token_of();
    return { ...(token ? { Authorization: `Bearer ${token}` } : {}), ...more };
  }

  async function answer(request) {
    let response;
    try {
      response = await request;
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The viewer's server does not answer.", "Is `hrm-agent view` still running? The page goes on by itself when it is back.", 0);
    }
    let body = null;
    try {
      body = await response.json();
    } catch {
      if (response.ok) throw new ApiError("The server's answer is not JSON.", "", response.status);
    }
    if (response.ok) return body;
    const told = body && body.error;
    if (response.status === 401)
      throw new ApiError("This page has no token, or an old one.", "Open the address that `hrm-agent view` printed, whole.", 401);
    throw new ApiError((told && told.message) || `The server answered ${response.status}.`, told && told.hint, response.status);
  }

  // The newest answers. When the user goes back, a page is shown from them at once, and requested again.
  const kept = new Map();
  const KEPT = 64;

  function keep(name, value) {
    kept.delete(name);
    kept.set(name, value);
    if (kept.size > KEPT) kept.delete(kept.keys().next().value);
  }

  hrm.ApiError = ApiError;
  hrm.api = {
    key,
    is_static: () => hrm.stored.size > 0,
    // True if there can be an answer. Some answers may be missing in a copy.
    has: (name, params) => hrm.stored.size === 0 || hrm.stored.has(key(name, params)),
    can_fork: () => sessionStorage.getItem("hrm-fork-token") !== null,
    headers,
    // Resolves once this tab has a token, or once no other tab has told it one in time.
    ready,
    url: (name, params) => `api/v1/${name}?${query(params)}`,
    cached: (name, params) => kept.get(`${name}?${query(params)}`),
    async get(name, params, { signal } = {}) {
      if (hrm.stored.size > 0) return get_static(name, params);
      await ready;
      const value = await answer(fetch(hrm.api.url(name, params), { headers: headers(), signal }));
      keep(`${name}?${query(params)}`, value);
      return value;
    },
    async post(name, body) {
      const more = { "Content-Type": "application/json", "X-Fork-Token": sessionStorage.getItem("hrm-fork-token") || "" };
      return answer(fetch(`api/v1/${name}`, { method: "POST", headers: headers(more), body: JSON.stringify(body) }));
    },
  };
})();
