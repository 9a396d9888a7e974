(function () {
  "use strict";
  var tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.appendChild(tip);
  function show(event) {
    tip.textContent = event.currentTarget.dataset.tip;
    tip.hidden = false;
    var box = event.currentTarget.getBoundingClientRect();
    var x = box.left + box.width / 2 - tip.offsetWidth / 2;
    var y = box.top - tip.offsetHeight - 2;
    tip.style.left = Math.max(6, Math.min(x, innerWidth - tip.offsetWidth - 6)) + "px";
    tip.style.top = (y < 6 ? box.bottom + 2 : y) + "px";
  }
  function hide() { tip.hidden = true; }
  document.querySelectorAll(".dot").forEach(function (dot) {
    var title = dot.querySelector("title");
    dot.dataset.tip = title.textContent;
    title.remove();
    dot.setAttribute("tabindex", "0");
    dot.setAttribute("aria-label", dot.dataset.tip);
    dot.addEventListener("pointerenter", show);
    dot.addEventListener("focus", show);
    dot.addEventListener("pointerleave", hide);
    dot.addEventListener("blur", hide);
  });
  addEventListener("scroll", hide, { passive: true });
})();
