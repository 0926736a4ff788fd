// The REST API, as the pages use it. The session is in a cookie that no script sees.

/** What the server refused, or that it could not be asked. */
export class Problem extends Error {
  constructor(status, { message, hint, line, column, kind } = {}) {
    super(message || 'the server gave no reason');
    Object.assign(this, { status, hint, line, column, kind });
  }
}

/** The address of a path with the names in it and the parameters that are given. */
export function path(parts, ...names) {
  return parts.reduce((all, part, place) => all + encodeURIComponent(names[place - 1]) + part);
}

export function query(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== '');
  return given.length ? '?' + new URLSearchParams(given) : '';
}

/** Numbers that a double cannot hold are kept as the server wrote them. */
function exact(key, value, context) {
  const is_rounded = typeof value === 'number' && Number.isInteger(value) && !Number.isSafeInteger(value);
  return is_rounded && context ? context.source : value;
}

export function parse(text) {
  return JSON.parse(text, exact);
}

/** Told when the session has ended, whether the server answers, and whether it takes long to. */
export const events = new EventTarget();

function tell(name, detail) {
  events.dispatchEvent(new CustomEvent(name, { detail }));
}

// An answer that comes later than this is one of a server that hangs.
const ANSWER_MS_MAX = 30_000;

/** How long an answer takes until that is said. */
export const SLOW_MS = 5_000;
const slow = new Set();

async function ask(method, address, { body, kind, signal, is_stream } = {}) {
  const headers = { 'x-rivulet-console': '1' };
  if (body !== undefined) headers['content-type'] = kind || 'application/json';
  // What changes something is waited for.
  const late = is_stream || method !== 'GET' ? undefined : AbortSignal.timeout(ANSWER_MS_MAX);
  const signals = [signal, late].filter(Boolean);
  const mark = {};
  const timer = setTimeout(() => tell('slow', slow.add(mark).size > 0), SLOW_MS);
  let answer;
  try {
    answer = await fetch(address, {
      method, headers, body, signal: signals.length ? AbortSignal.any(signals) : undefined, redirect: 'error',
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    tell('away', true);
    const message = late?.aborted ? 'the server does not answer in time' : 'the server cannot be reached';
    throw new Problem(0, { message, hint: 'this page tries again by itself', kind: 'away' });
  } finally {
    clearTimeout(timer);
    if (slow.delete(mark)) tell('slow', slow.size > 0);
  }
  tell('away', false);
  if (answer.status === 401) tell('ended');
  return answer;
}

async function problem_of(answer) {
  const text = await answer.text().catch(() => '');
  let detail;
  try {
    detail = parse(text).error;
  } catch {
    detail = { message: text.slice(0, 500) || `the server answered ${answer.status}` };
  }
  const after_s = answer.headers.get('retry-after');
  return new Problem(answer.status, after_s ? { ...detail, hint: `try again in ${after_s} s` } : detail || {});
}

/** Asks, and returns what the server answered. */
export async function call(method, address, value, options = {}) {
  const body = value === undefined || typeof value === 'string' ? value : JSON.stringify(value);
  const kind = typeof value === 'string' ? 'text/plain' : 'application/json';
  const answer = await ask(method, address, { body, kind, ...options });
  if (!answer.ok) throw await problem_of(answer);
  const text = await answer.text();
  return text ? parse(text) : null;
}

export const get = (address, options) => call('GET', address, undefined, options);

/** Runs SQL. Returns the results; a problem has those before it as `results`. */
export async function sql(script, options = {}) {
  const answer = await ask('POST', '/api/v1/sql', { body: script, kind: 'text/plain', ...options });
  const text = await answer.text();
  let told;
  try {
    told = parse(text);
  } catch {
    throw new Problem(answer.status, { message: text.slice(0, 500) });
  }
  if (told.error) {
    const problem = new Problem(answer.status, told.error);
    problem.results = told.results || [];
    throw problem;
  }
  return told.results;
}

/** The rows of the only statement of a script. */
export async function rows(script, options) {
  const [first] = await sql(script, options);
  return first || { columns: [], rows: [] };
}

/** Follows a stream of events: `heard(name, data)` for each, until it ends or is aborted. */
export async function follow(address, heard, { method = 'GET', body, signal } = {}) {
  const answer = await ask(method, address, { body, kind: 'text/plain', signal, is_stream: true });
  if (!answer.ok) throw await problem_of(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    let done, value;
    try {
      ({ done, value } = await reader.read());
    } catch (error) {
      if (signal?.aborted) return;
      tell('away', true);
      throw new Problem(0, { message: 'the stream has broken off', kind: 'away' });
    }
    if (done) return;
    const parts = (rest + value).split('\n\n');
    rest = parts.pop();
    for (const part of parts) {
      let name = 'message';
      const data = [];
      for (const line of part.split('\n')) {
        if (line.startsWith('event:')) name = line.slice(6).trim();
        else if (line.startsWith('data:')) data.push(line.slice(line[5] === ' ' ? 6 : 5));
      }
      if (data.length) heard(name, data.join('\n'));
    }
  }
}
