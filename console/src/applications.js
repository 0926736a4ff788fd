// Applications: their code, how they do, and a try before they are registered.
import { call, get, path, Problem, query } from './api.js';
import {
  Act, bytes, Code, compact, count, html, span, State, Table, Trouble, useAsked, useMay, useRates, useRef, useState, Waiting,
} from './ui.js';
import { Editor } from './edit.js';
import { json_of } from './queries.js';

const EXAMPLE = `CREATE APPLICATION warm (room TEXT, above DOUBLE)
INPUT readings (celsius DOUBLE) FROM 'mqtt:home/{room}/temperature' FORMAT JSON
OUTPUT 'mqtt:home/{room}/warm' FORMAT JSON
AS SELECT celsius FROM readings WHERE celsius > $above;
`;

const EXAMPLE_TRIED = {
  values: '{"room": "kitchen", "above": 20}',
  events: 'home/kitchen/temperature {"celsius": 19.5}\nhome/kitchen/temperature {"celsius": 23}',
};

/** Values for the parameters of an application, to be replaced, and an event to begin with. */
function example_of(one) {
  const asked = one.parameters.filter((parameter) => !parameter.default);
  const of = Object.fromEntries(asked.map(({ name, type }) => [name, /TEXT|CHAR/i.test(type) ? name : 0]));
  const topic = one.input_topic.split(', ')[0].replace(/\{(\w+)\}/g, (all, name) => of[name] ?? all);
  return { values: JSON.stringify(of), events: topic && `${topic} {}` };
}

export function Applications({ me, parameters }) {
  const asked = useAsked((signal) => get('/api/v1/applications', { signal }), [], 5_000);
  const status = useAsked(async (signal) => (me.may.status ? get('/api/v1/status', { signal }) : null), [], 5_000);
  const [is_new, set_new] = useState(parameters.has('new'));
  const may = useMay(me, 'application');
  const rates = useRates(status.value, (all) => Object.fromEntries(all.applications.map((one) => [one.name, one.events])));
  const of = (name) => status.value?.applications.find((one) => one.name === name);
  return html`<h1>Applications</h1>
    <${Trouble} problem=${asked.problem} />
    ${asked.value ? html`<${Table} label="Applications" rows=${asked.value.applications} of=${(one) => one.name}
      empty="none is registered yet" columns=${[
        { head: 'Name', cell: (one) => html`<a href=${`#/application/${encodeURIComponent(one.name)}`}>${one.name}</a>` },
        { head: 'Queries', number: true, cell: (one) => count(one.queries ?? of(one.name)?.queries_running) },
        { head: 'Events a second', number: true, cell: (one) => compact(rates[one.name]) },
        { head: 'Events', number: true, cell: (one) => compact(of(one.name)?.events) },
        { head: 'Results', number: true, cell: (one) => compact(of(one.name)?.results) },
        { head: 'From event to result', help: '99 % of the events, since the start of the server', number: true, cell: (one) => span(of(one.name)?.end_to_end.p99_us) },
        { head: 'Waiting', number: true, cell: (one) => compact(of(one.name)?.inbox_rows) },
        { head: 'To look at', cell: (one) => of(one.name)?.warnings?.[0] || '' },
      ]} />` : html`<${Waiting} />`}
    ${!may.change ? null : is_new ? html`<${Register} me=${me} text=${EXAMPLE} done=${() => { set_new(false); asked.again(); }} />`
      : html`<button type="button" class="main" onClick=${() => set_new(true)}>Try and register an application</button>`}`;
}

/** A text that this tab keeps while a person looks at other pages. */
function useKept(name, otherwise) {
  const [text, set] = useState(() => sessionStorage.getItem('rivulet.try ' + name) ?? otherwise);
  return [text, (next) => { sessionStorage.setItem('rivulet.try ' + name, next); set(next); }];
}

/** A text that is tried with events, and then registered. */
function Register({ me, text, replaces, example = EXAMPLE_TRIED, done }) {
  const [code, set_code] = useKept(`code ${replaces || ''}`, text);
  const [values, set_values] = useKept(`values ${replaces || ''}`, example.values);
  const [given, set_given] = useKept(`events ${replaces || ''}`, example.events);
  const [told, set_told] = useState();
  const [problem, set_problem] = useState();
  const attempt = async () => {
    set_told();
    set_problem();
    try {
      const parameters = JSON.parse(values || '{}');
      set_told(await call('POST', '/api/v1/trial', { sql: code, parameters, events: events_of(given) }));
    } catch (refused) {
      set_problem(refused instanceof SyntaxError ? new Problem(0, { message: `the values are no JSON: ${refused.message}`, hint: 'write them as {"room": "kitchen"}' }) : refused);
    }
  };
  return html`<section aria-labelledby="try"><h2 id="try">${replaces ? 'Edit and try' : 'A new application'}</h2>
    <${Editor} label="Code of the application" text=${code} changed=${set_code} problem=${problem} />
    ${me.may.server ? html`<div class="columns">
      <label>Values of one query, as JSON <textarea rows="3" class="mono" spellcheck="false" value=${values} onInput=${(event) => set_values(event.target.value)}></textarea></label>
      <label>Events: a topic, a space and a payload in each line
        <textarea rows="6" class="mono" spellcheck="false" value=${given} onInput=${(event) => set_given(event.target.value)}></textarea></label>
    </div>` : null}
    <div class="row">
      ${me.may.server ? html`<button type="button" class="main" onClick=${attempt}>Try</button>` : null}
      <${Act} what=${replaces ? 'Replace it' : 'Register'} act=${async () => {
        const made = await call('POST', '/api/v1/applications' + query({ replace: replaces ? true : undefined }), code);
        sessionStorage.removeItem(`rivulet.try code ${replaces || ''}`);
        done();
        location.hash = `#/application/${encodeURIComponent(made.name)}`;
      }} />
    </div>
    <${Trouble} problem=${problem} />
    ${told ? html`<${Tried} told=${told} />` : null}
  </section>`;
}

/** Lines of a topic and a payload. */
function events_of(text) {
  return text.split('\n').filter((line) => line.trim()).map((line) => {
    const at = line.indexOf(' ');
    return at < 0 ? { topic: line, payload: '' } : { topic: line.slice(0, at), payload: line.slice(at + 1) };
  });
}

function Tried({ told }) {
  return html`<${Table} label="What became of each event" rows=${told.events} columns=${[
    { head: 'Event', cell: (one) => html`<code>${one.topic} ${one.payload}</code>` },
    { head: 'Results', cell: (one) => one.results.map((result) => html`<div><code>${result.topic} ${result.payload}</code></div>`) },
    { head: 'Otherwise', cell: (one) => one.why || '' },
  ]} />
  ${told.later?.length ? html`<p>After the last event, when time has passed:</p>
    <ul>${told.later.map((result) => html`<li><code>${result.topic} ${result.payload}</code></li>`)}</ul>` : null}`;
}

/** A query of an application, with its values. */
function Start({ one }) {
  const form = useRef();
  const begin = async () => {
    const { name, ...values } = Object.fromEntries(new FormData(form.current));
    const is_text = (type) => !/INT|DOUBLE|REAL|FLOAT|DECIMAL|NUMERIC|BOOLEAN/i.test(type);
    const given = one.parameters.filter((parameter) => values[parameter.name] !== '').map((parameter) => {
      const value = values[parameter.name];
      return `${JSON.stringify(parameter.name)}:${is_text(parameter.type) ? JSON.stringify(value) : json_of(value)}`;
    });
    const fields = [`"application":${JSON.stringify(one.name)}`, `"parameters":{${given.join()}}`];
    if (name) fields.push(`"name":${JSON.stringify(name)}`);
    const made = await call('POST', '/api/v1/queries', `{${fields.join()}}`, { kind: 'application/json' });
    location.hash = `#/query/${encodeURIComponent(made.name)}`;
  };
  return html`<section aria-labelledby="start"><h2 id="start">Start a query</h2>
    <form class="values" ref=${form} onSubmit=${(event) => event.preventDefault()}>
      <label>Name <span class="quiet">or none</span> <input name="name" /></label>
      ${one.parameters.map((parameter) => html`<label key=${parameter.name}>${parameter.name} <span class="quiet">${parameter.type}</span>
        <input name=${parameter.name} placeholder=${parameter.default || ''} required=${!parameter.default} /></label>`)}
      <${Act} submits what="Start it" act=${begin} />
    </form></section>`;
}

export function Application({ me, name }) {
  const may = useMay(me, 'application', name);
  const starts = useMay(me, 'query');
  const asked = useAsked((signal) => get(path`/api/v1/applications/${name}`, { signal }), [name], 5_000);
  const plan = useAsked((signal) => get(path`/api/v1/applications/${name}/explain`, { signal }), [name]);
  const status = useAsked(async (signal) => {
    const all = me.may.status ? await get('/api/v1/status', { signal }) : { applications: [] };
    return all.applications.find((one) => one.name === name);
  }, [name], 3_000);
  const rates = useRates(status.value, (of) => ({ events: of.events, results: of.results }));
  const [is_edited, edit] = useState(false);
  const one = asked.value, now = status.value;
  if (!one) return html`<h1>${name}</h1>${asked.problem ? html`<${Trouble} problem=${asked.problem} />` : html`<${Waiting} />`}`;
  return html`<p class="quiet"><a href="#/applications">Applications</a></p>
    <h1>${one.name}</h1>
    <${Trouble} problem=${asked.problem} />
    <div class="row">
      <a class="button" href=${'#/queries' + query({ application: one.name })}>Its queries</a>
      ${may.change ? html`<button type="button" onClick=${() => edit(!is_edited)}>${is_edited ? 'Leave the code as it is' : 'Edit and try'}</button>
      <${Act} what="Drop" danger asks=${`Drop the application ${one.name} and all of its queries? Their state is gone then.`}
        act=${() => call('DELETE', path`/api/v1/applications/${name}` + '?cascade=true')} done=${() => { location.hash = '#/applications'; }} />` : null}
    </div>
    ${now ? html`<dl class="inline">
      <dt>Queries</dt><dd>${count(now.queries_running)} running, ${count(now.queries_paused)} paused${now.queries_not_running ? `, ${count(now.queries_not_running)} not running` : ''}</dd>
      <dt>Events</dt><dd>${count(now.events)}, ${compact(rates.events)} a second</dd>
      <dt>Results</dt><dd>${count(now.results)}, ${compact(rates.results)} a second</dd>
      <dt>From event to result</dt><dd>p50 ${span(now.end_to_end.p50_us)}, p99 ${span(now.end_to_end.p99_us)}, since the start</dd>
      <dt>Waiting</dt><dd>${count(now.inbox_rows)} events, ${bytes(now.inbox_bytes)}</dd>
      <dt>Refused</dt><dd>${Object.entries(now.refused).filter(([, rows]) => rows).map(([why, rows]) => `${why}: ${count(rows)}`).join(', ') || 'none'}</dd>
      ${now.last_refusal ? html`<dt>Last refusal</dt><dd>${now.last_refusal}</dd>` : null}</dl>
      ${now.warnings?.length ? html`<ul class="problems">${now.warnings.map((text) => html`<li>${text}</li>`)}</ul>` : null}
      ${now.health?.length ? html`<${Table} label="Sources and sinks" rows=${now.health} columns=${[
        { head: 'Name', cell: (end) => `${end.kind} ${end.name}` }, { head: 'State', cell: (end) => html`<${State} word=${end.state} />` },
        { head: 'Waiting', number: true, cell: (end) => count(end.waiting_rows) }, { head: 'Last error', cell: (end) => end.last_error || '' },
      ]} />` : null}` : null}
    ${is_edited ? html`<${Register} me=${me} text=${one.sql} replaces=${one.name} example=${example_of(one)} done=${() => { edit(false); asked.again(); }} />` : html`
      <section aria-labelledby="code"><h2 id="code">Code</h2><${Code} text=${one.sql} /></section>
      ${starts.change ? html`<${Start} one=${one} />` : null}`}
    <section aria-labelledby="plan"><h2 id="plan">What its queries share</h2>
      <${Trouble} problem=${plan.problem} />
      ${plan.value ? html`<pre class="code" tabindex="0">${plan.value.explanation}</pre>` : html`<${Waiting} />`}</section>`;
}
