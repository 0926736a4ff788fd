// Brokers, the clients of the own one, and the messages of a topic as they come.
import { follow, get, parse, query } from './api.js';
import {
  compact, count, html, State, Table, Trouble, useAsked, useEffect, useRef, useState, Waiting,
} from './ui.js';
import { cut, Results } from './queries.js';

export function Connections() {
  const asked = useAsked((signal) => get('/api/v1/status', { signal }), [], 3_000);
  const [topic, set_topic] = useState('');
  const [watched, watch] = useState();
  const section = useRef();
  const known = asked.value;
  return html`<h1>Connections</h1><${Trouble} problem=${asked.problem} />
    ${known ? html`<${Table} label="Connections" rows=${known.connections} of=${(one) => one.broker} empty="no broker is in use" columns=${[
      { head: 'Broker', cell: (one) => one.broker },
      { head: 'State', cell: (one) => html`<${State} word=${one.connected ? 'connected' : 'away'} tone=${one.connected ? 'good' : 'bad'} />` },
      { head: 'Connected again', number: true, cell: (one) => count(one.reconnects) },
      { head: 'Gaps', number: true, cell: (one) => count(one.gaps) },
      { head: 'Dropped', cell: (one) => Object.entries(one.dropped || {}).filter(([, n]) => n).map(([why, n]) => `${why}: ${count(n)}`).join(', ') || 'none' },
      { head: 'Last error', cell: (one) => one.last_error || '' },
    ]} />
    ${known.burst_workers?.length ? html`<h2>Burst workers</h2><${Table} label="Burst workers" rows=${known.burst_workers} columns=${[
      { head: 'Name', cell: (one) => one.name }, { head: 'Address', cell: (one) => one.address || '' },
      { head: 'Threads', number: true, cell: (one) => count(one.threads) }, { head: 'Tasks', number: true, cell: (one) => count(one.tasks) },
      { head: 'Until', cell: (one) => one.until || '' },
    ]} />` : null}` : html`<${Waiting} />`}
    ${known?.connections.some((one) => one.broker.startsWith('embedded')) ? html`<${Clients} />` : null}
    <section aria-labelledby="topic" ref=${section}><h2 id="topic">Messages of a topic</h2>
      <form class="row" onSubmit=${(event) => { event.preventDefault(); watch({ topic, at: Date.now() }); }}>
        <label>Topic, or a filter with + and # <input required value=${topic} placeholder="home/+/temperature" onInput=${(event) => set_topic(event.target.value)} /></label>
        <button type="submit" class="main">Watch</button>
      </form>
      ${watched ? html`<${Results} key=${watched.at} begins address="/api/v1/select" method="POST"
        body=${`SELECT * FROM ${source(watched.topic)}`} shown=${line_of}
        use=${{ what: 'Try an application with these', act: (texts) => {
          const messages = texts.map((text) => parse(text));
          sessionStorage.setItem('rivulet.try events ', messages.map(line).join('\n'));
          const { code, values } = application_of(messages);
          sessionStorage.setItem('rivulet.try code ', code);
          sessionStorage.setItem('rivulet.try values ', JSON.stringify(values));
          location.hash = '#/applications?new';
        } }} />` : null}</section>
    <${Topics} choose=${(chosen) => { set_topic(chosen); watch({ topic: chosen, at: Date.now() }); section.current.scrollIntoView(); }} />`;
}

/** The clients of the embedded broker, a page at a time. */
function Clients() {
  const [prefix, set_prefix] = useState('');
  // Where the pages before began, to go back to.
  const [before, set_before] = useState([]);
  const after = before.at(-1);
  const asked = useAsked((signal) => get('/api/v1/clients' + query({ prefix, after, limit: 50 }), { signal }), [prefix, after]);
  const known = asked.value;
  return html`<section aria-labelledby="clients"><h2 id="clients">Clients of the broker</h2>
    <div class="row"><label>Id begins with <input type="search" defaultValue=${prefix} onChange=${(event) => { set_prefix(event.target.value); set_before([]); }} /></label></div>
    <${Trouble} problem=${asked.problem} />
    ${known ? html`<${Table} label="Clients" rows=${known.clients} of=${(one) => `${one.tenant}/${one.user}/${one.id}`} empty="no client is like that" columns=${[
      { head: 'Id', cell: (one) => one.id },
      { head: 'User', cell: (one) => (one.user ? `${one.tenant} / ${one.user}` : '') },
      { head: 'Address', cell: (one) => one.address },
      { head: 'State', cell: (one) => html`<${State} word=${one.connected ? 'connected' : 'away'} tone=${one.connected ? 'good' : 'still'} />` },
      { head: 'Subscriptions', number: true, cell: (one) => count(one.subscriptions) },
      { head: 'Waiting for it', help: 'messages of QoS 1 and 2 that it has not acknowledged', number: true, cell: (one) => count(one.waiting_messages) },
    ]} />
    <div class="row">
      <button type="button" disabled=${!before.length} onClick=${() => set_before(before.slice(0, -1))}>Back</button>
      <button type="button" disabled=${!known.next} onClick=${() => set_before([...before, known.next])}>Further</button>
      <button type="button" onClick=${asked.again}>Look again</button>
    </div>` : html`<${Waiting} />`}</section>`;
}

const TOPICS_MAX = 10_000;
const TOPICS_SHOWN = 100;

/** The topics on which messages come, those with the most first, counted for as long as a person looks. */
function Topics({ choose }) {
  const [filter, set_filter] = useState('#');
  const [state, set] = useState({ is_on: false });
  const stop = useRef();
  useEffect(() => () => stop.current?.abort(), []);
  const begin = async () => {
    const ended = new AbortController();
    stop.current = ended;
    const [counts, begun] = [new Map(), Date.now()];
    let [before, at, left_out, lost, end] = [new Map(), performance.now(), 0, 0];
    let uncounted = 0;
    const draw = () => {
      const seconds = (performance.now() - at) / 1e3;
      const topics = [...counts].map(([topic, messages]) => ({ topic, messages, rate: (messages - (before.get(topic) || 0)) / seconds }));
      [before, at] = [new Map(counts), performance.now()];
      topics.sort((one, other) => other.messages - one.messages);
      set({ is_on: !ended.signal.aborted, topics: topics.slice(0, TOPICS_SHOWN), found: counts.size, left_out, lost, uncounted, end, begun });
    };
    set({ is_on: true, begun });
    const timer = setInterval(draw, 2_000);
    const heard = (name, data) => {
      if (name === 'lost') lost += Number(data);
      if (name === 'end') end = data;
      if (name === 'refused') uncounted = parse(data).rows;
      if (name !== 'result') return;
      const { op, topic, messages } = parse(data);
      if (op === '-') return;
      if (counts.has(topic) || counts.size < TOPICS_MAX) counts.set(topic, Number(messages));
      else left_out += 1;
    };
    try {
      const body = `SELECT topic, count(*) AS messages FROM ${source(filter)} GROUP BY topic`;
      await follow('/api/v1/select', heard, { method: 'POST', body, signal: ended.signal });
      draw();
      set((now) => ({ ...now, is_on: false }));
    } catch (problem) {
      if (!ended.signal.aborted) set((now) => ({ ...now, is_on: false, problem }));
    }
    clearInterval(timer);
  };
  const end = () => {
    stop.current.abort();
    set((now) => ({ ...now, is_on: false }));
  };
  return html`<section aria-labelledby="topics"><h2 id="topics">Topics</h2>
    <form class="row" onSubmit=${(event) => { event.preventDefault(); (state.is_on ? end : begin)(); }}>
      <label>Filter <input required value=${filter} onInput=${(event) => set_filter(event.target.value)} /></label>
      <button type="submit" class=${state.is_on ? '' : 'main'}>${state.is_on ? 'Stop counting' : 'Count messages'}</button>
      <span class="quiet" role="status">${!state.begun ? 'Counts from now on, and costs nothing until then.' : !state.topics ? 'counts …'
        : `${count(state.found)} topics${state.found > TOPICS_SHOWN ? `, the ${TOPICS_SHOWN} with the most messages are shown` : ''}${state.left_out ? `; more than ${count(TOPICS_MAX)} are not counted` : ''}${state.lost ? '; messages come faster than this page counts them, so figures are late' : ''}${state.uncounted ? `; ${count(state.uncounted)} messages that are no text are not counted` : ''}${state.end ? `; it has ended: ${state.end}` : ''}`}</span>
    </form>
    <${Trouble} problem=${state.problem} />
    ${state.topics ? html`<${Table} label="Topics" rows=${state.topics} of=${(one) => one.topic} empty="no message has come yet" columns=${[
      { head: 'Topic', cell: (one) => html`<button type="button" class="link" onClick=${() => choose(one.topic)}>${cut(one.topic, 200)}</button>` },
      { head: 'Messages a second', number: true, cell: (one) => compact(one.rate) },
      { head: 'Messages', number: true, cell: (one) => count(one.messages) },
    ]} />` : null}</section>`;
}

/** A topic as a source of SQL. */
const source = (topic) => `"mqtt:${topic.replaceAll('"', '""')}"`;

/** A message as a trial takes it: its topic, a space and its payload. */
const line = ({ topic, payload }) => `${topic} ${payload}`;
const line_of = (text) => line(parse(text));

/** The code of an application that reads messages like these, to be changed, and values for its parameters. */
function application_of(messages) {
  const levels = messages.map(({ topic }) => topic.split('/'));
  const values = {};
  const name_of = (level, place) => {
    if (levels.every((other) => other.length === levels[0].length && other[place] === level)) return level;
    values[`level_${place + 1}`] = level;
    return `{level_${place + 1}}`;
  };
  const topic = levels[0].map(name_of).join('/').replaceAll("'", "''");
  let fields = {};
  try {
    fields = JSON.parse(messages[0].payload);
  } catch { /* It is no JSON, and the person knows what it is. */ }
  const type = (name, value) => {
    if (/^(ts|time|timestamp)$/i.test(name)) return 'TIMESTAMP EVENT TIME';
    return { number: 'DOUBLE', boolean: 'BOOLEAN' }[typeof value] || 'TEXT';
  };
  const plain = Object.entries(fields).filter(([name, value]) => /^[a-z_]\w*$/i.test(name) && (value === null || typeof value !== 'object'));
  const columns = plain.map(([name, value]) => `${name} ${type(name, value)}`).join(', ') || 'payload TEXT';
  const of = Object.keys(values).map((name) => `${name} TEXT`).join(', ');
  const shown = plain.filter(([name, value]) => !type(name, value).startsWith('TIMESTAMP')).map(([name]) => name).join(', ') || '*';
  const code = `CREATE APPLICATION mine${of && ` (${of})`}
INPUT messages (${columns}) FROM 'mqtt:${topic}' FORMAT JSON
OUTPUT 'mqtt:mine/${topic}' FORMAT JSON
AS SELECT ${shown} FROM messages;
`;
  return { code, values };
}
