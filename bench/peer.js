// What `peer.py` and `contender.py` do for Python's libraries, for node-redlock: see there what is read and written.
// `node peer.js peer NAME URLS`, `node peer.js contender NAME THREADS URLS NUMBER`

const { createInterface } = require("node:readline");
const Redis = require("ioredis");
const Redlock = require("redlock");

const LEASE_MS = 10_000;
const HOLD_MS = 2;

const [mode, name, ...rest] = process.argv.slice(2);
const [urls, number] = mode === "peer" ? [JSON.parse(rest[0]), ""] : [JSON.parse(rest[1]), rest[2]];
const clients = urls.map((url) => new Redis(url));
clients.forEach((client) => client.on("error", () => {})); // a node that is down: Redlock counts its vote as failed
const redlock = new Redlock(clients);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

const now = () => Number(process.hrtime.bigint()) / 1e9; // on Linux the clock of Python's time.monotonic()
const say = (value) => process.stdout.write(`${value}\n`);
const sleep = (ms) => new Promise((wake) => setTimeout(wake, ms));
const percentile = (sorted, percent) => sorted[Math.max(0, Math.ceil((sorted.length * percent) / 100) - 1)];

async function carryOut({ pairs = Infinity, seconds = Infinity }) {
  const granted = [];
  const [begin, cpu, end] = [now(), process.cpuUsage(), now() + seconds];
  let tried = 0;
  for (; tried < pairs && now() < end; tried++) {
    const start = now();
    try {
      const lock = await redlock.lock("peers", LEASE_MS);
      await lock.unlock();
      granted.push((now() - start) * 1e6);
    } catch {}
  }
  const { user, system } = process.cpuUsage(cpu);
  granted.sort((a, b) => a - b);
  const [p50, p99] = [percentile(granted, 50) ?? 0, percentile(granted, 99) ?? 0];
  return { p50, p99, cpu: granted.length ? (user + system) / granted.length : 0, tried, granted: granted.length };
}

async function contend(start, end) {
  const [turns, unfinished] = [[], []];
  let asked, waits;
  await sleep(Math.max(0, (start - now()) * 1000));
  for (asked = now(); now() < end; ) {
    let lock;
    try {
      lock = await redlock.lock(`contended:${name}`, LEASE_MS);
      waits = false;
    } catch {
      waits = true;
      continue;
    }
    const had = now();
    await sleep(HOLD_MS);
    await lock.unlock().catch(() => {});
    turns.push([`${number}.0`, had - asked, had]);
    asked = now();
  }
  if (waits) unfinished.push(now() - asked);
  return { turns, unfinished };
}

(async () => {
  say("ready");
  for await (const line of lines) {
    if (mode === "peer") {
      say(JSON.stringify(await carryOut(JSON.parse(line))));
    } else {
      say(JSON.stringify(await contend(...line.split(" ").map(Number))));
      break;
    }
  }
  process.exit(0);
})();
