// Browsers refuse web workers to pages that are opened as files. On such pages, this stands in for
// them: it runs the worker's script in a hidden frame. The search is the only worker of the site.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.scope = new Promise((resolve) => {
        frame.addEventListener("load", () => resolve(frame.contentWindow));
      });
      const number = window.IFrameWorker.all.push(this) - 1;
      const answer = `postMessage = (data) => parent.IFrameWorker.all[${number}].receive(data)`;
      frame.srcdoc = `<script>${answer}</script><script src="${url}"></script>`;
      document.documentElement.append(frame);
    }

    postMessage(data) {
      this.scope.then((scope) => scope.dispatchEvent(new scope.MessageEvent("message", { data })));
    }

    receive(data) {
      this.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
  window.IFrameWorker.all = [];
  window.Worker = window.IFrameWorker;
}
