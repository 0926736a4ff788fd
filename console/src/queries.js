// Small queries: found among a million, and one of them with all that is known about it.
import { call, follow, get, parse, path, query } from './api.js';
import {
  Act, count, html, Moment, State, Table, Trouble, useAsked, in_zone, useEffect, useMay, useRef, useState, Waiting,
} from './ui.js';

const PAGE = 50;

export function Queries({ me, parameters }) {
  const given = (name) => parameters.get(name) || '';
  const [filter, set_filter] = useState({ name: given('name'), label: given('label'), application: given('application') });
  // The names with which the pages before began, to go back to.
  const [before, set_before] = useState([]);
  const after = before.at(-1);
  const asked = useAsked((signal) => get('/api/v1/queries' + query({
    like: filter.name && escaped(filter.name) + '%', label: filter.label, application: filter.application, after, limit: PAGE,
  }), { signal }), [filter.name, filter.label, filter.application, after]);
  // A search looks at all queries, so it waits until a word is written.
  const timer = useRef();
  const typed = useRef(filter);
  const type = (name) => (event) => {
    typed.current = { ...typed.current, [name]: event.target.value };
    clearTimeout(timer.current);
    timer.current = setTimeout(() => {
      set_filter(typed.current);
      set_before([]);
      history.replaceState(null, '', '#/queries' + query(typed.current));
    }, 300);
  };
  useEffect(() => () => clearTimeout(timer.current), []);
  const found = asked.value?.queries || [];
  const may = useMay(me, 'application');
  const registered = useAsked(async (signal) => (may.read ? get('/api/v1/applications', { signal }) : null), [may.read]);
  return html`<h1>Queries</h1>
    <form class="row filters" role="search" onSubmit=${(event) => event.preventDefault()}>
      <label>Name begins with <input type="search" defaultValue=${filter.name} onInput=${type('name')} /></label>
      <label>Label <input type="search" defaultValue=${filter.label} onChange=${type('label')} /></label>
      <label>Application <input type="search" list="applications" defaultValue=${filter.application} onChange=${type('application')} /></label>
      <datalist id="applications">${registered.value?.applications.map((one) => html`<option key=${one.name} value=${one.name} />`)}</datalist>
    </form>
    <${Trouble} problem=${asked.problem} />
    ${asked.value ? html`<${Table} label="Queries" rows=${found} of=${(one) => one.name} empty="no query is like that" columns=${[
      { head: 'Name', cell: (one) => html`<a href=${link(one)}>${one.name}</a>` },
      { head: 'Application', cell: (one) => one.big ? 'big query' : one.application },
      { head: 'State', cell: (one) => html`<${State} word=${one.state} />` },
      { head: 'Values', cell: (one) => values_of(one.parameters) },
      { head: 'Label', cell: (one) => one.label || '' },
      { head: 'Writes', cell: (one) => one.output_topic },
    ]} />
    <div class="row">
      <button type="button" disabled=${!before.length} onClick=${() => set_before(before.slice(0, -1))}>Back</button>
      <button type="button" disabled=${!asked.value.next} onClick=${() => set_before([...before, asked.value.next])}>Further</button>
      <button type="button" onClick=${asked.again}>Look again</button>
      <span class="quiet">page ${before.length + 1}, by name</span>
    </div>` : html`<${Waiting} />`}`;
}

const link = (one) => `#/${one.big ? 'flow' : 'query'}/${encodeURIComponent(one.name)}`;

/** A text as it is, in a pattern of LIKE. */
const escaped = (text) => text.replace(/[\\%_]/g, '\\$&');

const values_of = (values) => Object.entries(values).map(([name, value]) => `${name} = ${typeof value === 'string' ? value : JSON.stringify(value)}`).join(', ');

/** Live results: the last ones, how many came and how many were left out. */
export function Results({ address, body, method, begins, shown = (text) => text, use, max = 200 }) {
  const [state, set] = useState({ is_on: false, rows: [], came: 0, lost: 0 });
  const stop = useRef();
  const [is_held, hold] = useState(false);
  const held = useRef(false);
  held.current = is_held;
  useEffect(() => {
    if (begins) begin();
    return () => stop.current?.abort();
  }, []);
  const begin = async () => {
    stop.current = new AbortController();
    const { signal } = stop.current;
    const gathered = [];
    let [came, lost, frame, note] = [0, 0];
    set({ is_on: true, rows: [], came: 0, lost: 0 });
    // Drawn once a frame, however many come, and only the last of them.
    const draw = () => {
      frame = undefined;
      if (held.current) return;
      set((now) => ({ ...now, rows: gathered.slice().reverse(), came, lost, note }));
    };
    const heard = (name, data) => {
      if (name === 'result') {
        came += 1;
        gathered.push({ at: Date.now(), came, text: data });
        if (gathered.length > max) gathered.splice(0, gathered.length - max);
      } else if (name === 'lost') lost += Number(data);
      else if (name === 'refused') note = parse(data);
      else if (name === 'end') set((now) => ({ ...now, end: data }));
      frame ??= requestAnimationFrame(draw);
    };
    try {
      await follow(address, heard, { method, body, signal });
      draw();
      set((now) => ({ ...now, is_on: false }));
    } catch (problem) {
      if (!signal.aborted) set((now) => ({ ...now, is_on: false, problem }));
    }
  };
  const end = () => {
    stop.current.abort();
    set((now) => ({ ...now, is_on: false }));
  };
  return html`<div class="row">
      <button type="button" class=${state.is_on ? '' : 'main'} onClick=${state.is_on ? end : begin}>${state.is_on ? 'Stop' : 'Watch'}</button>
      ${state.is_on ? html`<button type="button" aria-pressed=${is_held} onClick=${() => hold(!is_held)}>${is_held ? 'Go on' : 'Hold'}</button>` : null}
      ${use && state.rows.length ? html`<button type="button" onClick=${() => use.act(state.rows.map((row) => row.text).reverse())}>${use.what}</button>` : null}
      <span class="quiet" role="status">${state.is_on || state.came ? `${count(state.came)} came${state.came > max ? `, the last ${max} are shown` : ''}${state.lost ? `; ${count(state.lost)} were skipped, because they came faster than this page takes them` : ''}` : ''}
        ${state.end ? `; it has ended: ${state.end}` : ''}</span>
    </div>
    <${Trouble} problem=${state.problem} />
    ${state.note ? html`<p class="quiet">${count(state.note.rows)} rows are not shown (${Object.keys(state.note.reasons).join(', ')})${state.note.example ? `, for example: ${cut(state.note.example)}` : ''}</p>` : null}
    ${state.rows.length ? html`<div class="scroll tail" tabindex="0" role="group" aria-label="Results">
      <table><thead><tr><th scope="col" class="number">No.</th><th scope="col">Came</th><th scope="col">Result</th></tr></thead>
      <tbody>${state.rows.map((row) => html`<tr key=${row.came}><td class="number">${count(row.came)}</td>
        <td><${Moment} ms=${row.at} /></td><td class="mono">${cut(shown(row.text))}</td></tr>`)}</tbody></table></div>` : null}`;
}

export function cut(text, most = 4_000) {
  return text.length > most ? `${text.slice(0, most)} … (${count(text.length)} characters)` : text;
}

function Values({ one, fixed, done }) {
  const names = Object.keys(one.parameters);
  const [given, set_given] = useState({});
  const changed = Object.keys(given).length > 0;
  const text = (value) => (typeof value === 'string' ? value : JSON.stringify(value));
  const save = async () => {
    // As it is written: a number that a browser would round stays as it is.
    const written = Object.entries(given).map(([name, value]) => `${JSON.stringify(name)}:${typeof one.parameters[name] === 'string' ? JSON.stringify(value) : json_of(value)}`);
    const body = `{"parameters":{${written.join()}}}`;
    const said = await call('PATCH', path`/api/v1/queries/${one.name}`, body, { kind: 'application/json' });
    set_given({});
    if (!said.changed) return 'it had these values';
    const begun = said.state_reset?.length ? `; the state of ${said.state_reset.join(', ')} begins anew` : '; its state goes on';
    return `taken over${begun}`;
  };
  if (!names.length) return html`<p class="quiet">It has no values.</p>`;
  if (fixed) return html`<p class="mono">${values_of(one.parameters)}</p>`;
  return html`<form class="values" onSubmit=${(event) => event.preventDefault()}>
    ${names.map((name) => html`<label key=${name}>${name}
      <input value=${given[name] ?? text(one.parameters[name])}
        onInput=${(event) => set_given({ ...given, [name]: event.target.value })} /></label>`)}
    <${Act} submits what="Give it these values" act=${save} done=${done} disabled=${!changed} /></form>`;
}

/** JSON if it is, else text: the server says what it takes. */
export function json_of(text) {
  try {
    JSON.parse(text);
    return text;
  } catch {
    return JSON.stringify(text);
  }
}

export function Query({ me, name }) {
  const may = useMay(me, 'query', name);
  const asked = useAsked((signal) => get(path`/api/v1/queries/${name}`, { signal }), [name], 2_000);
  const one = asked.value;
  if (!one) return html`<h1>${name}</h1>${asked.problem ? html`<${Trouble} problem=${asked.problem} />` : html`<${Waiting} />`}`;
  const act = (what) => () => call('POST', path`/api/v1/queries/${name}/` + what);
  const did = one.activity;
  return html`<p class="quiet"><a href="#/queries">Queries</a></p>
    <h1>${one.name} <${State} word=${one.state} /></h1>
    <${Trouble} problem=${asked.problem} />
    ${may.change ? html`<div class="row">
      <${Act} what=${one.state === 'paused' ? 'Resume' : 'Pause'} act=${act(one.state === 'paused' ? 'resume' : 'pause')} done=${asked.again} />
      <${Act} what="Drop" danger asks=${`Drop the query ${one.name}? Its state is gone then.`}
        act=${() => call('DELETE', path`/api/v1/queries/${name}`)} done=${() => { location.hash = '#/queries'; }} />
    </div>` : null}
    <section aria-labelledby="why"><h2 id="why">Why it gives what it gives</h2>
      ${one.why?.length ? html`<ol>${one.why.map((text) => html`<li>${in_zone(text)}</li>`)}</ol>` : html`<p class="quiet">nothing is known yet</p>`}</section>
    <section aria-labelledby="about"><h2 id="about">About it</h2><dl>
      <dt>Application</dt><dd><a href=${`#/application/${encodeURIComponent(one.application)}`}>${one.application}</a></dd>
      ${one.label ? html`<dt>Label</dt><dd><a href=${'#/queries' + query({ label: one.label })}>${one.label}</a></dd>` : null}
      <dt>Reads</dt><dd class="mono">${one.input_topic || '–'}</dd><dt>Writes</dt><dd class="mono">${one.output_topic || '–'}</dd>
    </dl></section>
    <section aria-labelledby="values"><h2 id="values">Values</h2><${Values} one=${one} fixed=${!may.change} done=${asked.again} /></section>
    ${did ? html`<section aria-labelledby="events"><h2 id="events">What became of its events</h2>
      <p class="quiet">Counted since <${Moment} ms=${did.counted_since_ms} />${did.is_from_start ? ', its start' : ''}.</p>
      <${Table} label="Steps" rows=${did.steps} empty="no event has come yet" columns=${[
        { head: 'Step', cell: (step) => step.operator },
        { head: 'Rows that reached it', number: true, cell: (step) => count(step.rows) },
      ]} />
      <dl><dt>Results</dt><dd>${count(did.results)}</dd><dt>Filtered out</dt><dd>${count(did.filtered_out)}</dd>
        <dt>Waiting</dt><dd>${count(did.waiting)}</dd>
        <dt>Refused</dt><dd>${Object.entries(did.refused).map(([why, rows]) => `${why}: ${count(rows)}`).join(', ') || 'none'}</dd>
        ${did.last_result ? html`<dt>Last result</dt><dd><${Moment} ms=${did.last_result_ms} /> <code>${did.last_result}</code></dd>` : null}
        ${did.last_refusal ? html`<dt>Last refusal</dt><dd>${did.last_refusal.detail} <code>${did.last_refusal.content}</code></dd>` : null}
      </dl></section>` : null}
    ${may.subscribe ? html`<section aria-labelledby="live"><h2 id="live">Live results</h2><${Results} key=${name} address=${path`/api/v1/queries/${name}/results`} /></section>` : null}`;
}
