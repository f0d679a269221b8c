// Search in pages that are opened from a folder: browsers start no workers there, so an invisible frame does their work.
// Material for MkDocs looks for the name IFrameWorker; its own shim would be requested from another host.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.frame = frame
      this.inner = frame.contentWindow
      this.inner.postMessage = data => this.deliver(this, data)
      this.inner.importScripts = async (...scripts) => {
        for (const script of scripts) await this.load(script)
      }
      this.ready = this.load(url)
    }
    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.frame.contentDocument.createElement("script")
        script.src = url
        script.onload = resolve
        script.onerror = reject
        this.frame.contentDocument.body.append(script)
      })
    }
    deliver(target, data) {
      const event = new MessageEvent("message", { data })
      if (typeof target.onmessage === "function") target.onmessage(event)
      target.dispatchEvent(event)
    }
    postMessage(data) {
      this.ready.then(() => this.deliver(this.inner, data))
    }
    terminate() {
      this.frame.remove()
    }
  }
  window.Worker = window.IFrameWorker
}
