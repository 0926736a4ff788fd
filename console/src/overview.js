// What the server does now, and what it did in the last hour.
import { get } from './api.js';
import {
  bytes, compact, count, Figure, html, Moment, Plot, span, State, Table, Trouble, useAsked, Waiting,
} from './ui.js';

/** Differences of counters for each second; a counter that has begun anew gives nothing. */
function rates(times, counters) {
  return counters.map((value, at) => {
    if (at === 0 || value === null || counters[at - 1] === null) return null;
    const rate = (value - counters[at - 1]) / (times[at] - times[at - 1]);
    return rate >= 0 ? rate : null;
  });
}

export function Overview() {
  const status = useAsked((signal) => get('/api/v1/status', { signal }), [], 2_000);
  const past = useAsked((signal) => get('/api/v1/history', { signal }), [], 5_000);
  const health = useAsked((signal) => get('/health/ready', { signal }), [], 5_000);
  const now = status.value, hour = past.value;
  if (!now) return html`<h1>Overview</h1>${status.problem ? html`<${Trouble} problem=${status.problem} />` : html`<${Waiting} />`}`;
  const times = (hour?.at_ms || []).map((ms) => ms / 1e3);
  const of = (name) => hour?.[name] || [];
  const problems = health.value?.problems || [];
  const warnings = now.applications.flatMap((one) => one.warnings?.map((text) => `${one.name}: ${text}`) || []);
  const ends = [
    ...now.applications.flatMap((one) => (one.health || []).map((end) => ({ ...end, of: one.name, link: `#/application/${encodeURIComponent(one.name)}` }))),
    ...now.big_queries.flatMap((one) => (one.health || []).map((end) => ({ ...end, of: one.name, link: `#/flow/${encodeURIComponent(one.name)}` }))),
  ];
  const rate = rates(times, of('events')), given = rates(times, of('results')), rows = rates(times, of('rows'));
  const last = (values) => values.at(-1) ?? null;
  const of_big = (state) => now.big_queries.filter((one) => one.state === state).length;
  return html`<h1>Overview</h1>
    <${Trouble} problem=${status.problem} />
    <div class="figures">
      <${Figure} name="Health" value=${html`<${State} word=${health.value?.status || 'unknown'} />`}
        note=${problems.length ? `${problems.length} to look at` : `up ${span(now.uptime_ms * 1e3)}`} />
      <${Figure} name="Events a second" value=${compact(last(rate))} note=${`${compact(now.total.events)} so far`} />
      <${Figure} name="Results a second" value=${compact(last(given))} note=${`${compact(now.total.results)} so far`} />
      <${Figure} name="Queries" value=${count(now.queries_running)} note=${`${count(now.queries_paused)} paused`} />
      <${Figure} name="Big queries" value=${count(of_big('running'))} note=${of_big('failed') ? `${of_big('failed')} failed` : `${now.big_queries.length} in all`}
        tone=${of_big('failed') ? 'bad' : ''} />
      <${Figure} name="Memory" value=${bytes(now.memory_rss_bytes)} />
      <${Figure} name="Event to result" value=${span(now.last_minute.p99_us)} note="p99, last minute" />
    </div>
    ${problems.length + warnings.length ? html`<section aria-labelledby="warnings"><h2 id="warnings">To look at</h2>
      <ul class="problems">${[...problems, ...warnings].map((text) => html`<li>${text}</li>`)}</ul></section>` : null}
    <section aria-labelledby="hour"><h2 id="hour">The last hour</h2>
    <${Trouble} problem=${past.problem} />
    ${times.length < 2 ? html`<${Waiting} what="the first figures come within ten seconds" />` : html`<div class="plots">
      <${Plot} title="Events and results a second" times=${times} format=${compact}
        lines=${[{ name: 'events', values: rate }, { name: 'results', values: given, dash: [6, 4] }]} />
      <${Plot} title="From an event’s own time to its result" times=${times} format=${span}
        lines=${[{ name: 'p99', values: of('p99_us') }, { name: 'p50', values: of('p50_us'), dash: [6, 4] }]} />
      <${Plot} title="Rows a second that big queries read" times=${times} format=${compact} lines=${[{ name: 'rows', values: rows }]} />
      <${Plot} title="Workers, mean load" times=${times} format=${(part) => `${Math.round(part * 100)} %`} lines=${[{ name: 'load', values: of('load') }]} />
      <${Plot} title="Memory" times=${times} format=${bytes} lines=${[{ name: 'memory', values: of('memory_bytes') }]} />
      <${Plot} title="Queries" times=${times} format=${compact} lines=${[{ name: 'queries', values: of('queries') }]} />
    </div>`}</section>
    <section aria-labelledby="workers"><h2 id="workers">Workers</h2>
    <${Table} label="Workers" rows=${now.workers} of=${(one) => one.worker} columns=${[
      { head: 'Worker', cell: (one) => one.worker },
      { head: 'Load', cell: (one) => html`<meter min="0" max="1" value=${one.load} aria-label=${`load of worker ${one.worker}`}></meter> ${Math.round(one.load * 100)} %` },
      { head: 'Tasks', number: true, cell: (one) => count(one.tasks) },
      { head: 'Core', number: true, cell: (one) => one.core ?? '–' },
    ]} /></section>
    <section aria-labelledby="ends"><h2 id="ends">Sources and sinks</h2>
    <${Table} label="Sources and sinks" rows=${ends} empty="no source or sink of its own is open" columns=${[
      { head: 'Of', cell: (end) => html`<a href=${end.link}>${end.of}</a>` },
      { head: 'Name', cell: (end) => `${end.kind} ${end.name}` },
      { head: 'State', cell: (end) => html`<${State} word=${end.state} />` },
      { head: 'Rows', number: true, cell: (end) => (end.kind === 'source' && !end.rows ? '–' : count(end.rows)) },
      { head: 'Waiting', number: true, cell: (end) => count(end.waiting_rows) },
      { head: 'Since', cell: (end) => html`<${Moment} ms=${end.since_ms} />` },
      { head: 'Last error', cell: (end) => end.last_error || '' },
    ]} /></section>`;
}
