/* Ask the built site's own search the questions of a newcomer: `node tools/ask.js [SITE]`, after `make docs`.

It prints the rank of the first page that answers each; exit status 1 if one is not among the first three. */
"use strict";
const fs = require("node:fs");
const path = require("node:path");
const vm = require("node:vm");

const QUESTIONS = {
  "who holds a lock": ["questions", "cli/inspect"],
  "run a cron job on one machine only": ["questions", "cookbook/cron"],
  "what happens when a node dies": ["questions", "safety", "guarantees"],
  "is one redis server safe": ["questions", "safety", "operate/sizing"],
  "does it work with elasticache": ["questions", "operate/managed"],
  "my lock was lost": ["questions", "howto/long-jobs", "operate/runbooks"],
  "use my existing redis client": ["questions", "client", "install"],
  "upgrade while programs run": ["questions"],
  "first lock takes 30 seconds": ["questions", "client"],
  "celery task only once": ["questions", "cookbook/celery"],
  "limit requests per second": ["rate-limiting"],
  "job takes longer than the lease": ["questions", "howto/long-jobs"],
  "test my code without redis": ["questions", "howto/testing-your-code"],
  "delete a stuck lock": ["questions", "cli/inspect", "operate/runbooks"],
  "which lock should I use": ["questions", "choosing"],
};

const site = process.argv[2] ?? "site";
const read = (...names) => fs.readFileSync(path.join(site, ...names), "utf8");

async function main() {
  let receive, answer;
  const page = vm.createContext({
    console,
    addEventListener: (_, listener) => (receive = listener),
    postMessage: (message) => answer(message),
  });
  page.self = page;
  page.Worker = class {
    postMessage(message) {
      receive({ data: message });
    }
  };
  const workers = "assets/javascripts/workers";
  vm.runInContext(read(workers, fs.readdirSync(path.join(site, workers)).find((name) => name.endsWith(".js"))), page);
  vm.runInContext(read("javascripts/search-words.js"), page);
  const worker = new page.Worker();
  const send = (message) => new Promise((resolve) => ((answer = resolve), worker.postMessage(message)));

  const { config, docs } = JSON.parse(read("search/search_index.json"));
  await send({ type: 0, data: { config, docs, options: { suggest: false } } });
  let answered = 0;
  for (const [question, pages] of Object.entries(QUESTIONS)) {
    const { items } = (await send({ type: 2, data: question })).data;
    const found = items.map(([best]) => best.location.split(".html")[0]);
    const rank = found.findIndex((name) => pages.includes(name)) + 1;
    answered += rank > 0 && rank <= 3;
    console.log(`${rank || "-"} of ${found.length}: ${question} -> ${items.slice(0, 3).map(([best]) => best.location).join(", ")}`);
  }
  console.log(`${answered} of ${Object.keys(QUESTIONS).length} are answered by one of the first three`);
  process.exitCode = answered < Object.keys(QUESTIONS).length ? 1 : 0;
}

main();
