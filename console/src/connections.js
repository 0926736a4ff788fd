// Brokers, the clients of the own one, and the messages of a topic as they come.
import { get, parse } from './api.js';
import { count, html, State, Table, Trouble, useAsked, useState, Waiting } from './ui.js';
import { Results } from './queries.js';

export function Connections() {
  const asked = useAsked((signal) => get('/api/v1/status', { signal }), [], 3_000);
  const [topic, set_topic] = useState('');
  const [watched, watch] = useState();
  const known = asked.value;
  return html`<h1>Connections</h1><${Trouble} problem=${asked.problem} />
    ${known ? html`<${Table} label="Connections" rows=${known.connections} of=${(one) => one.broker} empty="no broker is in use" columns=${[
      { head: 'Broker', cell: (one) => one.broker },
      { head: 'State', cell: (one) => html`<${State} word=${one.connected ? 'connected' : 'away'} tone=${one.connected ? 'good' : 'bad'} />` },
      { head: 'Connected again', number: true, cell: (one) => count(one.reconnects) },
      { head: 'Gaps', number: true, cell: (one) => count(one.gaps) },
      { head: 'Dropped', cell: (one) => Object.entries(one.dropped || {}).filter(([, n]) => n).map(([why, n]) => `${why}: ${count(n)}`).join(', ') },
      { head: 'Last error', cell: (one) => one.last_error || '' },
    ]} />
    ${known.burst_workers?.length ? html`<h2>Burst workers</h2><${Table} label="Burst workers" rows=${known.burst_workers} columns=${[
      { head: 'Name', cell: (one) => one.name }, { head: 'Address', cell: (one) => one.address || '' },
      { head: 'Threads', number: true, cell: (one) => count(one.threads) }, { head: 'Tasks', number: true, cell: (one) => count(one.tasks) },
      { head: 'Until', cell: (one) => one.until || '' },
    ]} />` : null}` : html`<${Waiting} />`}
    <section aria-labelledby="topic"><h2 id="topic">Messages of a topic</h2>
      <form class="row" onSubmit=${(event) => { event.preventDefault(); watch({ topic, at: Date.now() }); }}>
        <label>Topic, or a filter with + and # <input required value=${topic} placeholder="home/+/temperature" onInput=${(event) => set_topic(event.target.value)} /></label>
        <button type="submit" class="main">Watch</button>
      </form>
      ${watched ? html`<${Results} key=${watched.at} begins address="/api/v1/select" method="POST"
        body=${`SELECT * FROM "mqtt:${watched.topic.replaceAll('"', '""')}"`} shown=${line_of}
        use=${{ what: 'Try an application with these', act: (texts) => {
          sessionStorage.setItem('rivulet.try events', texts.map(line_of).join('\n'));
          location.hash = '#/applications?new';
        } }} />` : null}</section>`;
}

/** A message as a trial takes it: its topic, a space and its payload. */
function line_of(text) {
  const { topic, payload } = parse(text);
  return `${topic} ${payload}`;
}
