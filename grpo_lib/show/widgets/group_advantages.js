// The four answers, live: tick which answers are right and read the group's statistics and advantages.
// One module for both homes of the table: beside a kernel (anywidget) and on the site, without one.

const DELTA = 1e-8;
const START = [1, 1, 0, 0];
const WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight"];

/** Mean and population standard deviation of the scores of one group. */
export function groupStatistics(rewards) {
  const mean = rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
  const variance = rewards.reduce((sum, reward) => sum + (reward - mean) ** 2, 0) / rewards.length;
  return { mean, std: Math.sqrt(variance) };
}

/** Advantages of one group, (score - mean) / (population std + delta); equal scores give exactly 0. */
export function groupAdvantages(rewards, delta) {
  if (Math.max(...rewards) === Math.min(...rewards)) return rewards.map(() => 0);
  const { mean, std } = groupStatistics(rewards);
  return rewards.map((reward) => (reward - mean) / (std + delta));
}

/** Three decimals, with a true minus sign and no sign on zero. */
export function decimals(value) {
  const text = Math.abs(value).toFixed(3);
  return value < 0 && Number(text) !== 0 ? `\u2212${text}` : text;
}

/** What happened, in one sentence. */
function sentence(rewards, advantages) {
  const right = rewards.filter((reward) => reward === 1).length;
  const wrong = rewards.length - right;
  if (right === 0 || wrong === 0) {
    return (
      `All ${WORDS[rewards.length]} answers are ${wrong === 0 ? "right" : "wrong"}: no answer is better than the ` +
      "group, every weight is 0. This question sends no task signal."
    );
  }
  const weight = (score) => decimals(advantages[rewards.indexOf(score)]);
  return (
    `${right} right, ${wrong} wrong: ${right === 1 ? "the" : "each"} right answer gets weight ${weight(1)}, ` +
    `${wrong === 1 ? "the" : "each"} wrong one ${weight(0)}.`
  );
}

function row(place) {
  return `<tr>
    <th scope="row"><var>y</var><sub>${place + 1}</sub></th>
    <td class="grpo-tick"><label><input type="checkbox" aria-label="y${place + 1} is right"></label></td>
    <td class="grpo-score"></td>
    <td class="grpo-residual"></td>
    <td class="grpo-advantage"><span class="grpo-value"></span><span class="grpo-bar" aria-hidden="true"><i></i></span></td>
  </tr>`;
}

function table(size) {
  return `<div class="grpo-group-advantages">
    <table>
      <caption>Tick the answers that are right: score 1, otherwise 0.</caption>
      <thead><tr><th scope="col">Answer</th><th scope="col">Right</th><th scope="col">Score</th>
        <th scope="col">Minus mean</th><th scope="col">Advantage</th></tr></thead>
      <tbody>${Array.from({ length: size }, (_, place) => row(place)).join("")}</tbody>
    </table>
    <p class="grpo-statistics">Group mean <b class="grpo-mean"></b>, population standard deviation <b class="grpo-std"></b>.</p>
    <output class="grpo-sentence" aria-live="polite"></output>
    <button type="button">Back to two right</button>
  </div>`;
}

function render({ model, el }) {
  el.innerHTML = table(START.length);
  const find = (selector) => el.querySelector(selector);
  const boxes = [...el.querySelectorAll("input")];

  function update() {
    const rewards = model.get("rewards");
    const { mean, std } = groupStatistics(rewards);
    const advantages = groupAdvantages(rewards, DELTA);
    el.querySelectorAll("tbody tr").forEach((line, place) => {
      boxes[place].checked = rewards[place] === 1;
      line.classList.toggle("grpo-right", rewards[place] === 1);
      line.querySelector(".grpo-score").textContent = rewards[place];
      line.querySelector(".grpo-residual").textContent = decimals(rewards[place] - mean);
      line.querySelector(".grpo-value").textContent = decimals(advantages[place]);
      line.querySelector(".grpo-bar").style.setProperty("--grpo-advantage", advantages[place]);
    });
    find(".grpo-mean").textContent = decimals(mean);
    find(".grpo-std").textContent = decimals(std);
    find(".grpo-sentence").textContent = sentence(rewards, advantages);
  }

  function set(rewards) {
    model.set("rewards", rewards);
    model.save_changes();
  }

  boxes.forEach((box) => box.addEventListener("change", () => set(boxes.map(({ checked }) => Number(checked)))));
  find("button").addEventListener("click", () => set(START));
  model.on("change:rewards", update);
  update();
  return () => model.off("change:rewards", update);
}

export default { render };
