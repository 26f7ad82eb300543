// Listens to events about changes, and gives components data that stays current.
//
// At most once a second, the server reports which places have changed. Data shown of these places is requested again.
// The stream is read by fetch, since an EventSource cannot send the token in a header.
(() => {
  "use strict";
  const { useState, useEffect, useRef, useCallback } = hrm.hooks;

  const listeners = new Set(); // called with the ids of the places
  const states = new Set(); // called with "connecting" | "live" | "away" | "static"
  let state = "connecting";

  function tell_state(next) {
    if (next === state) return;
    state = next;
    states.forEach((listener) => listener(next));
  }

  const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

  function heard(block) {
    const lines = block.split("\n").filter((line) => line.startsWith("data:"));
    if (!lines.length) return;
    const { places } = JSON.parse(lines.map((line) => line.slice(5)).join("\n"));
    listeners.forEach((listener) => listener(places));
  }

  // A browser opens at most six connections to a server, for all tabs together. So a hidden tab closes its stream.
  let reading = new AbortController();
  const hidden = () => document.visibilityState === "hidden";
  document.addEventListener("visibilitychange", () => hidden() && reading.abort());
  const shown = () =>
    new Promise((resolve) => {
      const look = () => {
        if (hidden()) return;
        document.removeEventListener("visibilitychange", look);
        resolve();
      };
      document.addEventListener("visibilitychange", look);
      look();
    });

  async function read_once() {
    await hrm.api.ready;
    reading = new AbortController();
    const response = await fetch("api/v1/events", { headers: hrm.api.headers(), signal: reading.signal });
    if (!response.ok) return false;
    tell_state("live");
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let waiting = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return true;
      waiting += value;
      const blocks = waiting.split("\n\n");
      waiting = blocks.pop();
      blocks.forEach(heard);
    }
  }

  async function listen() {
    let pause = 500;
    for (;;) {
      if (hidden()) {
        await shown();
        listeners.forEach((listener) => listener(null));
      }
      const before = Date.now();
      let been_live = false;
      try {
        been_live = await read_once();
      } catch {
        been_live = state === "live";
      }
      if (hidden()) continue;
      tell_state("away");
      pause = been_live && Date.now() - before > 5000 ? 500 : Math.min(pause * 2, 15000);
      await sleep(pause);
      // Events in the meantime are lost, so everything on the page is requested again.
      if (been_live) listeners.forEach((listener) => listener(null));
    }
  }

  hrm.live = {
    start() {
      if (hrm.api.is_static()) tell_state("static");
      else listen();
    },
    // Calls `listener` with the ids of changed places (null if any place may have changed). Returns a function that
    // ends this.
    on(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };

  hrm.useLiveState = () => {
    const [value, set] = useState(state);
    useEffect(() => {
      states.add(set);
      set(state);
      return () => states.delete(set);
    }, []);
    return value;
  };

  // Runs `refresh` when the place has changed (or any place, if `place` is null), but never twice at the same time.
  hrm.useChanges = (place, refresh) => {
    const newest = useRef(refresh);
    newest.current = refresh;
    useEffect(() => {
      let busy = false;
      let again = false;
      const run = async () => {
        if (busy) return void (again = true);
        busy = true;
        do {
          again = false;
          await newest.current();
        } while (again);
        busy = false;
      };
      return hrm.live.on((places) => {
        if (places === null || !place || places.includes(place)) run();
      });
    }, [place]);
  };

  // {data, error, loading, reload} of one answer. If params is null, nothing is requested. Old data stays until new
  // data arrives.
  hrm.useData = (name, params, { live = true } = {}) => {
    const key = params === null ? null : hrm.api.url(name, params);
    const [held, set] = useState({ key: null, data: null, error: null });
    const newest = useRef(key);
    newest.current = key;
    const load = useCallback(async () => {
      if (params === null) return;
      try {
        const data = await hrm.api.get(name, params);
        if (newest.current === key) set({ key, data, error: null });
      } catch (error) {
        if (newest.current === key) set((before) => ({ key, data: before.key === key ? before.data : null, error }));
      }
    }, [key]);
    useEffect(() => void load(), [key]);
    hrm.useChanges((params && params.place) || null, live && key ? load : async () => {});
    if (key === null) return { data: null, error: null, loading: false, reload: load };
    if (held.key === key) return { data: held.data, error: held.error, loading: false, reload: load };
    const cached = hrm.api.cached(name, params);
    return { data: cached ?? null, error: null, loading: !cached, reload: load };
  };

  // Tells a screen reader about a change that the user did not cause, politely, and once no further change came for a
  // second.
  let pending = null;
  hrm.announce = (text) => {
    clearTimeout(pending);
    pending = setTimeout(() => {
      const region = document.getElementById("announcer");
      if (region) region.textContent = text;
    }, 1000);
  };
})();
