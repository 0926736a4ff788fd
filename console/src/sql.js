// SQL: statements with their results, and a SELECT whose rows come as they are made.
import { rows as rows_of, sql } from './api.js';
import { html, Table, Trouble, useCallback, useEffect, useState } from './ui.js';
import { Editor } from './edit.js';
import { Results } from './queries.js';

const KEPT = 'rivulet.sql';
const SHOWN_MAX = 1_000;
const NAMED = [
  ['SHOW APPLICATIONS', 'application'], ['SHOW SOURCES', 'source'], ['SHOW SINKS', 'sink'], ['SHOW VIEWS', 'view'],
  ['SHOW TABLES', 'table'], ['SHOW FUNCTIONS', 'function'],
];

let known;

/** The names that the server knows, once in a while. */
async function names() {
  if (!known || Date.now() - known.at > 10_000) {
    const of = async ([statement, detail]) => {
      const found = await rows_of(statement).catch(() => ({ rows: [] }));
      return found.rows.map((row) => ({ label: String(row[0]), type: detail === 'function' ? 'function' : 'variable', detail }));
    };
    known = { at: Date.now(), all: Promise.all(NAMED.map(of)).then((all) => all.flat()) };
  }
  return known.all;
}

export function Sql() {
  const [text, set_text] = useState(() => sessionStorage.getItem(KEPT) || 'SHOW QUERIES LIMIT 20;');
  const [results, set_results] = useState([]);
  const [problem, set_problem] = useState();
  const [is_busy, set_busy] = useState(false);
  const [watched, watch] = useState();
  useEffect(() => sessionStorage.setItem(KEPT, text), [text]);
  // The last statement may be a SELECT, whose rows come as they are made.
  const statements = text.match(/(?:[^;'"-]|'(?:[^']|'')*'|"[^"]*"|--.*|-)+/g) || [];
  const is_word = (statement) => /\S/.test(statement.replace(/--.*/g, ''));
  const last = statements.filter(is_word).at(-1) || '';
  const is_select = /^\s*(?:--.*\n\s*)*(?:SELECT|WITH|VALUES)\b/i.test(last);
  const before = is_select ? text.slice(0, text.lastIndexOf(last)) : '';
  const run = useCallback(async (script) => {
    set_busy(true);
    set_problem();
    watch();
    try {
      set_results(await sql(script));
      return true;
    } catch (refused) {
      set_results(refused.results || []);
      set_problem(refused);
      return false;
    } finally {
      set_busy(false);
    }
  }, []);
  const act = async () => {
    set_results([]);
    if (!is_select) return run(text);
    const is_done = !is_word(before.replaceAll(';', '')) || await run(before);
    set_problem((problem) => (is_done ? undefined : problem));
    return is_done && watch({ text: last, at: Date.now() });
  };
  return html`<h1>SQL</h1>
    <${Editor} label="SQL" text=${text} changed=${set_text} problem=${problem} names=${names} run=${act} />
    <div class="row">
      <button type="button" class="main" disabled=${is_busy} onClick=${act}>${is_select ? 'Show its rows' : 'Run'}</button>
      <span class="quiet">${is_select ? 'A SELECT runs until it is stopped, and takes nothing from queries.' : 'Ctrl+Enter runs all statements.'}</span>
    </div>
    <${Trouble} problem=${problem} />
    ${watched ? html`<${Results} key=${watched.at} begins address="/api/v1/select" method="POST" body=${watched.text} max=${500} />` : null}
    ${results.map((result, place) => html`<section key=${place} aria-label=${`Result ${place + 1}`}>
      ${result.message ? html`<p>${result.message}</p>` : null}
      ${result.columns.length ? html`<${Table} label=${`Rows of result ${place + 1}`} rows=${result.rows.slice(0, SHOWN_MAX)} columns=${columns_of(result)} />
        ${result.rows.length > SHOWN_MAX ? html`<p class="quiet">${result.rows.length - SHOWN_MAX} more rows are not shown.</p>` : null}` : null}
    </section>`)}`;
}

function columns_of(result) {
  return result.columns.map((head, place) => ({
    head: typeof head === 'string' ? head : head.name,
    number: result.rows.every((row) => typeof row[place] === 'number'),
    cell: (row) => {
      const value = row[place];
      if (value === null) return html`<span class="quiet">null</span>`;
      const text = typeof value === 'object' ? JSON.stringify(value) : String(value);
      return text.includes('\n') ? html`<pre>${text}</pre>` : text;
    },
  }));
}
