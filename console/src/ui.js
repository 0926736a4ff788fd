// What all pages are made of. Whatever comes from a server is text: nothing here makes elements of it.
import { h, Fragment } from 'preact';
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import htm from 'htm';
import uPlot from 'uplot';
import { events, get, query } from './api.js';

export const html = htm.bind(h);
export { Fragment, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState };

// ---- Settings of this browser -------------------------------------------------------------------------------------

const heard = new EventTarget();

/** A setting that this browser remembers. */
export function useSetting(name, otherwise) {
  const read = () => localStorage.getItem('rivulet.' + name) ?? otherwise;
  const [value, set] = useState(read);
  useEffect(() => {
    const changed = () => set(read());
    heard.addEventListener(name, changed);
    return () => heard.removeEventListener(name, changed);
  }, [name]);
  const keep = (next) => {
    localStorage.setItem('rivulet.' + name, next);
    heard.dispatchEvent(new Event(name));
  };
  return [value, keep];
}

export const is_utc = () => localStorage.getItem('rivulet.zone') === 'utc';

// ---- Numbers and times --------------------------------------------------------------------------------------------

const grouped = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 3 });

export function count(value) {
  return value === null || value === undefined ? '–' : typeof value === 'string' ? value : grouped.format(value);
}

export function compact(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  return Math.abs(value) < 10 && !Number.isInteger(value) ? value.toPrecision(2) : short.format(value);
}

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];

export function bytes(value) {
  if (value === null || value === undefined) return '–';
  let unit = 0;
  while (value >= 1024 && unit + 1 < UNITS.length) [value, unit] = [value / 1024, unit + 1];
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toPrecision(3)} ${UNITS[unit]}`;
}

/** A length of time, given in microseconds. */
export function span(us) {
  if (us === null || us === undefined || Number.isNaN(us)) return '–';
  if (us < 1e3) return `${Math.round(us)} µs`;
  if (us < 1e6) return `${(us / 1e3).toPrecision(3)} ms`;
  if (us < 60e6) return `${(us / 1e6).toPrecision(3)} s`;
  const s = Math.round(us / 1e6);
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3600)} h`;
}

/** A moment, given in milliseconds since 1970, with the zone in words. */
export function moment(ms) {
  // Beyond what a browser knows as a time.
  if (!(Math.abs(ms) <= 8.64e15)) return '–';
  const zone = is_utc() ? 'UTC' : undefined;
  return new Intl.DateTimeFormat('sv', {
    timeZone: zone, dateStyle: 'short', timeStyle: 'medium',
  }).format(ms) + (zone ? ' UTC' : '');
}

export function Moment({ ms }) {
  useSetting('zone', 'local');
  if (ms === null || ms === undefined || moment(ms) === '–') return '–';
  return html`<time title=${new Date(ms).toISOString()}>${moment(ms)}</time>`;
}

// ---- Asking again and again ---------------------------------------------------------------------------------------

/**
 * Asks now and every so often while the page is seen. Returns the last answer, and why there is no newer one.
 * `again` asks at once.
 */
export function useAsked(ask, wants, period_ms) {
  const [state, set] = useState({});
  const turn = useRef(0);
  const again = useCallback(() => turn.current?.(), []);
  useEffect(() => {
    const stop = new AbortController();
    let timer;
    // What was asked before is no answer to this.
    set({});
    const look = async () => {
      clearTimeout(timer);
      if (!document.hidden) {
        try {
          const value = await ask(stop.signal);
          if (!stop.signal.aborted) set({ value });
        } catch (problem) {
          if (stop.signal.aborted) return;
          // What was known stays, with the word that it is old.
          set(({ value }) => ({ value, problem }));
        }
      }
      if (!stop.signal.aborted && period_ms) timer = setTimeout(look, period_ms);
    };
    const seen = () => document.hidden || look();
    turn.current = look;
    document.addEventListener('visibilitychange', seen);
    look();
    return () => {
      stop.abort();
      clearTimeout(timer);
      document.removeEventListener('visibilitychange', seen);
    };
  }, wants);
  return { ...state, again };
}

/** How much each of the figures of an answer has grown in a second, since the answer before; `of(answer)` is an object. */
export function useRates(answer, of) {
  const before = useRef();
  const [rates, set] = useState({});
  useEffect(() => {
    if (!answer) return;
    const now = { at: performance.now(), figures: of(answer) };
    const last = before.current;
    before.current = now;
    if (!last) return;
    const seconds = (now.at - last.at) / 1e3;
    const grown = Object.entries(now.figures).filter(([name, figure]) => figure >= last.figures[name]);
    set(Object.fromEntries(grown.map(([name, figure]) => [name, (figure - last.figures[name]) / seconds])));
  }, [answer]);
  return rates;
}

/** What the user may do to a query or an application: `{ read, change, subscribe }`. Nothing until that is known. */
export function useMay(me, of, name) {
  const asked = useAsked(async (signal) => (me.has_accounts ? (await get('/api/v1/session' + query({ of, name }), { signal })).may : null), [of, name], 30_000);
  return me.has_accounts ? asked.value || {} : { read: true, change: true, subscribe: true };
}

/** A sentence of the server, with its times as the page shows times. */
export function in_zone(text) {
  return text.replace(/\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z\b/g, (time) => moment(Date.parse(time)));
}

// ---- Pieces -------------------------------------------------------------------------------------------------------

export function Trouble({ problem, children }) {
  if (!problem) return null;
  return html`<div class="trouble" role="alert">
    <strong>${problem.message}</strong>
    ${problem.line ? html` <span class="quiet">line ${problem.line}, column ${problem.column}</span>` : null}
    ${problem.hint ? html`<p>${problem.hint}</p>` : null}
    ${children}
  </div>`;
}

export function Waiting({ what }) {
  return html`<p class="quiet" role="status">${what || 'asks the server'} …</p>`;
}

const SIGNS = { good: '●', bad: '▲', still: '■', none: '○' };

/** A state in a word, with a sign of its own shape: colour alone tells nothing. */
export function State({ word, tone }) {
  const of = tone || {
    running: 'good', ok: 'good', connected: 'good', ready: 'good', failed: 'bad', 'not running': 'bad', retrying: 'bad',
    degraded: 'bad', paused: 'still', ended: 'still',
  }[word] || 'none';
  return html`<span class=${'state ' + of}><span aria-hidden="true">${SIGNS[of]}</span> ${word}</span>`;
}

export function Figure({ name, value, note, tone }) {
  return html`<div class=${'figure ' + (tone || '')}>
    <div class="name">${name}</div><div class="value">${value}</div>
    ${note ? html`<div class="quiet">${note}</div>` : null}
  </div>`;
}

/** A table. Columns: `{ head, cell(row), number, help }`. */
export function Table({ columns, rows, of, empty, label }) {
  if (!rows.length) return html`<p class="quiet">${empty || 'none'}</p>`;
  return html`<div class="scroll" tabindex="0" role="group" aria-label=${label}><table>
    <thead><tr>${columns.map((column) => html`<th scope="col" class=${column.number ? 'number' : ''} title=${column.help}>${column.head}</th>`)}</tr></thead>
    <tbody>${rows.map((row, place) => html`<tr key=${of ? of(row) : place}>
      ${columns.map((column) => html`<td class=${column.number ? 'number' : ''}>${column.cell(row)}</td>`)}
    </tr>`)}</tbody>
  </table></div>`;
}

/** A button that does something of the server, and says what came of it; as that of its form, by Enter too. */
export function Act({ what, act, asks, done, danger, disabled, submits }) {
  const [state, set] = useState({});
  const run = async (event) => {
    // Not disabled: that would take the focus from it.
    if (state.is_busy) return;
    if (submits && !event.currentTarget.form.reportValidity()) return;
    if (asks && !(await confirmed(asks, what))) return;
    set({ is_busy: true });
    try {
      const said = await act();
      set({ said: typeof said === 'string' ? said : undefined });
      done?.();
    } catch (problem) {
      set({ problem });
    }
  };
  return html`<span class="act">
    <button type=${submits ? 'submit' : 'button'} class=${danger ? 'danger' : ''} disabled=${disabled} aria-disabled=${Boolean(state.is_busy)} onClick=${run}>${what}</button>
    ${state.said ? html`<span class="quiet" role="status">${state.said}</span>` : null}
    <${Trouble} problem=${state.problem} />
  </span>`;
}

let question;
const asked = new EventTarget();

function confirmed(text, yes) {
  return new Promise((answer) => {
    question = { text, yes, answer };
    asked.dispatchEvent(new Event('asked'));
  });
}

/** Where questions are asked; once in a page. */
export function Questions() {
  const [, draw] = useState(0);
  const dialog = useRef();
  useEffect(() => {
    const show = () => draw((n) => n + 1);
    asked.addEventListener('asked', show);
    return () => asked.removeEventListener('asked', show);
  }, []);
  useLayoutEffect(() => {
    if (question && !dialog.current.open) dialog.current.showModal();
  });
  const end = (is_so) => () => {
    const { answer } = question;
    question = undefined;
    dialog.current.close();
    answer(is_so);
    draw((n) => n + 1);
  };
  if (!question) return null;
  return html`<dialog ref=${dialog} onCancel=${(event) => { event.preventDefault(); end(false)(); }}>
    <p>${question.text}</p>
    <div class="row">
      <button type="button" class="danger" onClick=${end(true)}>${question.yes}</button>
      <button type="button" autofocus onClick=${end(false)}>Leave it</button>
    </div>
  </dialog>`;
}

/** Text that is code. */
export function Code({ text }) {
  return html`<pre class="code" tabindex="0">${tokens(text)}</pre>`;
}

const WORDS = new RegExp(
  "('(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\\n]*|\\$[a-z_]\\w*|\\b\\d+(?:\\.\\d+)?\\b|\\b[A-Z][A-Z_]+\\b)", 'g',
);

function tokens(text) {
  return String(text).split(WORDS).map((part, place) => {
    if (place % 2 === 0) return part;
    const of = part[0] === "'" ? 'text' : part[0] === '-' ? 'note' : part[0] === '$' ? 'value' : /\d/.test(part[0]) ? 'value' : part[0] === '"' ? '' : 'word';
    return html`<span class=${'t-' + of}>${part}</span>`;
  });
}

// ---- Plots --------------------------------------------------------------------------------------------------------

const style_of = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Lines over time. `times` in seconds; `lines`: `{ name, values, dash }`; `format` makes the text of a value. */
export function Plot({ title, times, lines, format }) {
  const place = useRef();
  const plot = useRef();
  const [theme] = useSetting('theme', 'auto');
  const [zone] = useSetting('zone', 'local');
  const names = lines.map((line) => line.name).join();
  useEffect(() => {
    const ink = style_of('--ink'), faint = style_of('--line');
    const axis = { stroke: ink, grid: { stroke: faint, width: 1 }, ticks: { stroke: faint, width: 1 }, font: '12px system-ui' };
    const make = (width) => new uPlot({
      width, height: 170, tzDate: zone === 'utc' ? (ts) => uPlot.tzDate(new Date(ts * 1e3), 'Etc/UTC') : undefined,
      cursor: { drag: { x: false, y: false } },
      legend: { live: true },
      scales: { y: { range: (u, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      series: [{ value: (u, at) => (at === null ? '' : moment(at * 1e3)) }, ...lines.map((line, index) => ({
        label: line.name, stroke: style_of(`--plot-${index + 1}`), width: 2, dash: line.dash, points: { show: false },
        value: (u, value) => (value === null || value === undefined ? '–' : format(value)),
      }))],
      axes: [{ ...axis, values: (u, times) => times.map((at) => moment(at * 1e3).slice(11, 19)), space: 80 }, { ...axis, size: 76, values: (u, values) => values.map(format) }],
    }, [[], ...lines.map(() => [])], place.current);
    plot.current = make(place.current.clientWidth || 400);
    const [here, made] = [place.current, plot.current];
    const resized = new ResizeObserver(() => here.clientWidth && made.setSize({ width: here.clientWidth, height: 170 }));
    resized.observe(here);
    return () => { resized.disconnect(); made.destroy(); };
  }, [names, theme, zone]);
  useEffect(() => {
    const frame = requestAnimationFrame(() => plot.current.setData([times, ...lines.map((line) => line.values)]));
    return () => cancelAnimationFrame(frame);
  });
  const last = lines.map((line) => `${line.name} ${format(line.values.at(-1) ?? 0)}`).join(', ');
  return html`<figure class="plot"><figcaption>${title}</figcaption>
    <div ref=${place} role="img" aria-label=${`${title}, at the end: ${last}`}></div></figure>`;
}

/** Whether the server is `away`, or `slow`. */
export function useHeard(what) {
  const [is_so, set] = useState(false);
  useEffect(() => {
    const told = (event) => set(event.detail);
    events.addEventListener(what, told);
    return () => events.removeEventListener(what, told);
  }, [what]);
  return is_so;
}
