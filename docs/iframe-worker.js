// Browsers give pages that were opened from files no workers: there the search runs in a hidden frame, with the same messages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inner = frame.contentWindow;
      const load = (address) => new Promise((done, failed) => {
        const script = this.inner.document.createElement("script");
        Object.assign(script, { src: address, onload: done, onerror: failed });
        this.inner.document.body.append(script);
      });
      this.inner.importScripts = (...addresses) => addresses.reduce((before, a) => before.then(() => load(a)), Promise.resolve());
      this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = load(new URL(url, location.href).href);
    }
    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
