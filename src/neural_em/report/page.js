"use strict";
(function () {
  const together = document.getElementById("together");

  class Player {
    constructor(root) {
      this.root = root;
      this.steps = Number(root.dataset.steps);
      this.withInput = this.steps - Number(root.dataset.rollout); // the other steps read the model's own prediction
      this.step = 0;
      this.timer = null;
      this.slider = root.querySelector("input");
      this.output = root.querySelector("output");
      this.playButton = root.querySelector(".play");
      this.score = root.querySelector(".score");
      this.texts = root.dataset.texts ? JSON.parse(root.dataset.texts) : null; // one for each step
      this.canvases = Array.from(root.querySelectorAll("canvas"));
      for (const canvas of this.canvases) {
        const image = new Image();
        image.onload = () => { canvas.sprite = image; this.draw(canvas); };
        image.src = canvas.dataset.sprite;
      }
      root.querySelector(".back").addEventListener("click", () => this.go(this.step - 1));
      root.querySelector(".next").addEventListener("click", () => this.go(this.step + 1));
      this.playButton.addEventListener("click", () => this.toggle());
      this.slider.addEventListener("input", () => this.go(Number(this.slider.value) - 1));
      root.addEventListener("focusin", () => { current = this; });
      root.addEventListener("pointerdown", () => { current = this; });
      this.show(this.steps - 1); // what came of it; playing begins at the first step
    }

    draw(canvas) {
      if (!canvas.sprite) { return; }
      const columns = Number(canvas.dataset.columns);
      const left = (this.step % columns) * canvas.width;
      const top = Math.floor(this.step / columns) * canvas.height;
      const context = canvas.getContext("2d");
      context.drawImage(canvas.sprite, left, top, canvas.width, canvas.height, 0, 0, canvas.width, canvas.height);
    }

    show(step) {
      this.step = Math.min(Math.max(step, 0), this.steps - 1);
      this.root.dataset.step = String(this.step + 1);
      this.slider.value = String(this.step + 1);
      const after = this.step + 1 - this.withInput;
      const note = after > 0 ? ", " + after + " without input" : "";
      this.root.classList.toggle("rollout", after > 0);
      this.slider.setAttribute("aria-valuetext", "step " + (this.step + 1) + " of " + this.steps + note);
      this.output.textContent = (after > 0 ? this.withInput + " + " + after : this.step + 1) + " / " + this.steps;
      if (this.texts) { this.score.textContent = this.texts[this.step]; }
      this.canvases.forEach((canvas) => this.draw(canvas));
    }

    // a step asked for by hand: stops what plays
    go(step) {
      stopAll();
      move(this, step);
    }

    toggle() {
      const start = this.timer === null;
      stopAll();
      if (!start) { return; }
      this.root.classList.add("playing");
      this.playButton.setAttribute("aria-label", "pause");
      this.timer = window.setInterval(() => move(this, (this.step + 1) % this.steps), Number(this.root.dataset.delay));
    }

    stop() {
      window.clearInterval(this.timer);
      this.timer = null;
      this.root.classList.remove("playing");
      this.playButton.setAttribute("aria-label", "play");
    }

    // whole screen pixels for each pixel, so that all squares are equally large
    fit() {
      const ratio = window.devicePixelRatio || 1;
      for (const canvas of this.canvases) {
        if (canvas.classList.contains("photo")) { continue; } // as wide as there is room
        const room = canvas.parentElement.clientWidth - 4; // the frame's
        const scale = Math.floor((room * ratio) / canvas.width);
        canvas.style.width = (scale >= 1 ? (scale * canvas.width) / ratio : room) + "px";
      }
    }
  }

  let current = null;
  const players = Array.from(document.querySelectorAll(".player"), (root) => new Player(root));
  current = players[0] || null;

  function move(player, step) {
    const everyone = together && together.checked ? players : [player];
    everyone.forEach((one) => one.show(step));
  }

  function stopAll() {
    players.forEach((player) => player.stop());
  }

  document.addEventListener("keydown", (event) => {
    if (!current || event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) { return; }
    const inside = event.target.closest(".player") !== null;
    if (!inside && event.target !== document.body) { return; }
    const moves = { ArrowLeft: current.step - 1, ArrowRight: current.step + 1, Home: 0, End: current.steps - 1 };
    if (!inside && (event.key === "Home" || event.key === "End" || event.key === " ")) { return; } // they scroll the page
    if (Object.hasOwn(moves, event.key)) {
      event.preventDefault();
      current.go(moves[event.key]);
    } else if (event.key === " " && event.target.tagName !== "BUTTON") {
      event.preventDefault();
      current.toggle();
    }
  });

  function fitAll() {
    players.forEach((player) => player.fit());
  }
  window.addEventListener("resize", fitAll);
  fitAll();
  const plays = "plays" in document.body.dataset;
  if (plays && together) { together.checked = true; }
  if (plays && current && !window.matchMedia("(prefers-reduced-motion: reduce)").matches) { current.toggle(); }
})();
