// A card for each upstream: its state, why the next call waits, and its figures. Those in trouble come first.

import { answers, badge, count, element, sentence, setText } from "./words.js";

export class UpstreamCards {
  #list;
  #choose;
  #cards = new Map();

  // `choose` is called with the place of the account that a person wants to see.
  constructor(list, choose) {
    this.#list = list;
    this.#choose = choose;
  }

  draw(state) {
    const names = new Set(state.upstreams.map((each) => each.name));
    for (const [name, card] of this.#cards) {
      if (!names.has(name)) { card.item.remove(); this.#cards.delete(name); }
    }
    const found = [];
    for (const upstream of state.upstreams) {
      const account = state.scopes.get(`${upstream.name}\n`);
      const subject = state.scopes.get(`${upstream.name}\n${upstream.subject}`) ?? account;
      if (account) found.push({ name: upstream.name, account, subject });
    }
    found.sort((a, b) => b.subject.trouble - a.subject.trouble);
    for (const each of found) this.#fill(each, state.now());
    const order = found.map(({ name }) => this.#cards.get(name).item);
    // They stay where they are under a pointer or a focus.
    const isHeld = this.#list.matches(":hover, :focus-within") && order.length === this.#list.children.length;
    if (!isHeld && order.some((item, at) => this.#list.children[at] !== item)) this.#list.append(...order);
  }

  #fill({ name, account, subject }, now) {
    let card = this.#cards.get(name);
    if (!card) {
      card = { item: element("li"), button: element("button", undefined, "name"), badge: element("span", undefined, "badge"), why: element("p"), figures: element("p", undefined, "quiet") };
      card.button.type = "button";
      card.button.append(card.badge, element("span", name));
      card.button.addEventListener("click", () => this.#choose(`${name}\n`));
      card.item.append(card.button, card.why, card.figures);
      this.#cards.set(name, card);
    }
    badge(card.badge, subject);
    const of = subject.name && subject.trouble > 0 ? `${subject.name}: ` : "";
    setText(card.why, of + sentence(subject, now));
    const { in_flight, current_limit } = account.concurrency;
    const { throttled, overloaded, failed } = account.last_minute;
    const number = answers(account);
    setText(card.figures, `${count(in_flight)} of ${count(current_limit)} calls in flight, ${count(account.waiting)} waiting; last minute: ${count(number)} ${number === 1 ? "answer" : "answers"}, ${count(throttled)} with 429, ${count(overloaded)} with 503, ${count(failed)} failed`);
  }
}
