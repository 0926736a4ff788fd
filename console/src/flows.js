// Big queries: each as a dataflow, with what its tasks do.
import { call, get, path } from './api.js';
import {
  Act, bytes, Code, compact, count, html, Moment, moment, span, State, Table, Trouble, useAsked, useEffect, useMay, useRef, useState, Waiting,
} from './ui.js';
import { Graph } from './graph.js';
import { Results } from './queries.js';

export function Flows() {
  const asked = useAsked((signal) => get('/api/v1/big-queries', { signal }), [], 3_000);
  const flows = asked.value?.big_queries || [];
  return html`<h1>Big queries</h1><${Trouble} problem=${asked.problem} />
    ${asked.value ? html`<${Table} label="Big queries" rows=${flows} of=${(one) => one.name}
      empty="none: CREATE QUERY name AS SELECT ... INTO sink makes one" columns=${[
        { head: 'Name', cell: (one) => html`<a href=${`#/flow/${encodeURIComponent(one.name)}`}>${one.name}</a>` },
        { head: 'State', cell: (one) => html`<${State} word=${one.state} />` },
        { head: 'Reads', cell: (one) => one.sources.join(', ') },
        { head: 'Writes', cell: (one) => one.sink },
        { head: 'Rows in', number: true, cell: (one) => compact(one.rows_in) },
        { head: 'Rows out', number: true, cell: (one) => compact(one.rows_out) },
        { head: 'Waiting', number: true, cell: (one) => compact(one.waiting_rows) },
        { head: 'Keeps', number: true, cell: (one) => bytes(one.state_bytes) },
        { head: 'Latency p99', help: 'from the arrival of the last row of a result to the sink, since the start', number: true, cell: (one) => span(one.latency.p99_us) },
        { head: 'Why', cell: (one) => one.reason || '' },
      ]} />` : html`<${Waiting} />`}`;
}

const part = (of) => `${of < 0.1 ? (of * 100).toFixed(1) : Math.round(of * 100)}\u00a0%`;

/** What each operator did since the look before: rows a second, and the part of the time in which it computed. */
function useChanges(flow) {
  const before = useRef();
  const [changes, set] = useState({});
  useEffect(() => {
    if (!flow) return;
    const now = { at: performance.now(), operators: {}, tasks: {} };
    for (const task of flow.operators) {
      now.tasks[`${task.stage}/${task.instance}`] = task;
      for (const one of task.fused) {
        const sum = (now.operators[one.node] ??= { rows_in: 0, rows_out: 0, busy_s: 0, tasks: 0, waiting: 0 });
        sum.rows_in += one.rows_in;
        sum.rows_out += one.rows_out;
        sum.busy_s += one.busy_s;
        sum.tasks += 1;
        if (one === task.fused[0]) sum.waiting += task.rows_waiting;
        if (task.watermark_us !== undefined) sum.watermark_us = Math.min(sum.watermark_us ?? Infinity, task.watermark_us);
      }
    }
    const last = before.current;
    before.current = now;
    if (!last) return;
    const seconds = (now.at - last.at) / 1e3;
    const found = {};
    for (const [node, sum] of Object.entries(now.operators)) {
      const then = last.operators[node];
      if (!then || sum.rows_in < then.rows_in) continue;
      found[node] = {
        rate: (sum.rows_in - then.rows_in) / seconds, busy: (sum.busy_s - then.busy_s) / seconds / sum.tasks, waiting: sum.waiting, watermark_us: sum.watermark_us,
      };
    }
    set(found);
  }, [flow]);
  return changes;
}

export function Flow({ me, name }) {
  const asked = useAsked(async (signal) => {
    const [one, all] = await Promise.all([
      get(path`/api/v1/queries/${name}`, { signal }), me.may.status ? get('/api/v1/status', { signal }) : {},
    ]);
    return { flow: one.big && { operators: [], ...one.big }, checkpoints: all.checkpoints };
  }, [name], 3_000);
  const may = useMay(me, 'query', name);
  const plan = useAsked((signal) => get(path`/api/v1/big-queries/${name}/dataflow`, { signal }), [name], 30_000);
  const [chosen, choose] = useState();
  const { flow, checkpoints } = asked.value || {};
  const changes = useChanges(flow);
  if (!flow) {
    const trouble = asked.problem || (asked.value && { message: `there is no big query '${name}'`, hint: 'the list of big queries has those that exist' });
    return html`<h1>${name}</h1>${trouble ? html`<${Trouble} problem=${trouble} />` : html`<${Waiting} />`}`;
  }
  const slowest = Object.entries(changes).sort(([, one], [, other]) => other.busy - one.busy)[0];
  const nodes = (plan.value?.nodes || []).map((node) => {
    // A source has the rows that those behind it get.
    const behind = plan.value.nodes.find((other) => other.inputs.some((input) => input.from === node.number));
    const now = changes[node.number - 1] || (!node.inputs.length && behind && { rate: changes[behind.number - 1]?.rate });
    const is_busiest = slowest && Number(slowest[0]) === node.number - 1;
    const is_slowest = is_busiest && slowest[1].busy > 0.5;
    return {
      id: node.number, title: `${node.number}. ${node.operator}`,
      lines: [
        now?.rate !== undefined ? `${compact(now.rate)} rows/s` : '', now?.busy !== undefined ? `${part(now.busy)} busy` : '',
        now?.waiting ? `${compact(now.waiting)} rows wait` : '', now?.watermark_us ? `at ${moment(now.watermark_us / 1e3)}` : '',
      ].filter(Boolean),
      tone: is_slowest ? 'bad' : '', note: is_slowest ? 'slowest' : is_busiest ? 'busiest' : node.has_state ? 'state' : '',
    };
  });
  const edges = (plan.value?.nodes || []).flatMap((node) => node.inputs.map((input) => ({
    from: input.from, to: node.number, label: input.how, kind: input.how === 'forward' ? '' : 'across',
  })));
  const act = (what) => () => call('POST', path`/api/v1/queries/${name}/` + what);
  const saved = checkpoints?.big_queries?.find((one) => one.query === name);
  const detail = plan.value?.nodes.find((node) => node.number === chosen);
  const tasks = flow.operators.filter((task) => chosen === undefined || task.fused.some((one) => one.node === chosen - 1));
  return html`<p class="quiet"><a href="#/flows">Big queries</a></p>
    <h1>${flow.name} <${State} word=${flow.state} /></h1>
    <${Trouble} problem=${asked.problem} />
    ${flow.reason ? html`<div class="trouble"><strong>${flow.reason}</strong></div>` : null}
    ${may.change ? html`<div class="row">
      <${Act} what=${flow.state === 'running' ? 'Pause' : 'Resume'} act=${act(flow.state === 'running' ? 'pause' : 'resume')} done=${asked.again} />
      <${Act} what="Drop" danger asks=${`Drop the big query ${name}? Its state is gone then.`}
        act=${() => call('DELETE', path`/api/v1/queries/${name}`)} done=${() => { location.hash = '#/flows'; }} />
    </div>` : null}
    <section aria-labelledby="graph"><h2 id="graph">Dataflow</h2>
      <${Trouble} problem=${plan.problem} />
      ${nodes.length ? html`<${Graph} label=${`Dataflow of ${name}`} nodes=${nodes} edges=${edges} chosen=${chosen} choose=${(id) => choose(id === chosen ? undefined : id)} />
        <p class="quiet">Broken arrows lead to other tasks. “Busy” is the part of the time in which a task of the operator computes, “at” its watermark.
          ${slowest ? html` The busiest is <strong>${Number(slowest[0]) + 1}</strong>.` : null} Choose an operator to see its tasks alone.</p>` : null}
      ${detail ? html`<pre class="code" tabindex="0">${[`${detail.number}. ${detail.operator}`, ...detail.details].join('\n')}</pre>` : null}</section>
    <section aria-labelledby="tasks"><h2 id="tasks">Tasks</h2>
      <${Table} label="Tasks" rows=${tasks} of=${(task) => `${task.stage}/${task.instance}`} columns=${[
        { head: 'Stage', cell: (task) => `${task.stage}.${task.instance} ${task.operator}` },
        { head: 'Rows in', number: true, cell: (task) => compact(task.rows_in) },
        { head: 'Rows out', number: true, cell: (task) => compact(task.rows_out) },
        { head: 'Waiting now', number: true, cell: (task) => compact(task.rows_waiting) },
        { head: 'Queued', help: 'how long a row waits in the queue of the task, on average', number: true, cell: (task) => span(task.queued_us) },
        { head: 'For a worker', help: 'how long a row waits there while the task waits for a worker, on average', number: true, cell: (task) => span(task.scheduling_us) },
        { head: 'Computed', help: 'how long a row is computed, on average', number: true, cell: (task) => span(task.computing_us) },
        { head: 'Had work', help: 'the part of the time in which it had rows, whether a worker computed them or not', cell: (task) => html`<meter min="0" max="1" value=${task.utilisation} aria-label=${`utilisation of task ${task.stage}.${task.instance}`}></meter> ${part(task.utilisation)}` },
      ]} /></section>
    <section aria-labelledby="about"><h2 id="about">About it</h2><dl>
      <dt>Rows</dt><dd>${count(flow.rows_in)} in, ${count(flow.rows_out)} out</dd>
      <dt>From the last row of a result</dt><dd>p50 ${span(flow.latency.p50_us)}, p99 ${span(flow.latency.p99_us)}, from its arrival to the sink, since the start</dd>
      <dt>State</dt><dd>${bytes(flow.state_bytes)}</dd>
      <dt>Results are at</dt><dd>${flow.watermark_us ? html`<${Moment} ms=${flow.watermark_us / 1e3} />${flow.watermark_lag_us !== undefined ? `, ${span(flow.watermark_lag_us)} behind the clock` : ''}` : '–'}</dd>
      <dt>Checkpoint</dt><dd>${saved?.epoch ? `${saved.epoch}, ${span(saved.age_ms * 1e3)} ago, ${bytes(saved.live_bytes)}` : 'none'}${saved?.last_error ? `: ${saved.last_error}` : ''}</dd>
      <dt>Refused</dt><dd>${Object.entries(flow.refused).filter(([, rows]) => rows).map(([why, rows]) => `${why}: ${count(rows)}`).join(', ') || 'none'}</dd>
    </dl></section>
    <section aria-labelledby="text"><h2 id="text">Text</h2><${Code} text=${flow.sql} /></section>
    ${may.subscribe ? html`<section aria-labelledby="live"><h2 id="live">Live results</h2><${Results} key=${name} address=${path`/api/v1/queries/${name}/results`} /></section>` : null}`;
}
