// The shell: where a person is, who that is, and the page that the address names.
import { render } from 'preact';
import { call, events, get, SLOW_MS } from './api.js';
import { html, Questions, State, Trouble, Waiting, useHeard, useEffect, useRef, useSetting, useState } from './ui.js';
import { Overview } from './overview.js';
import { Application, Applications } from './applications.js';
import { Queries, Query } from './queries.js';
import { Flow, Flows } from './flows.js';
import { Sql } from './sql.js';
import { Accounts } from './accounts.js';
import { Connections } from './connections.js';
import { Login } from './login.js';

/** Each page: the address, its name in the list at the side, and whether a session may see it. */
const PAGES = [
  ['overview', 'Overview', Overview, (me) => me.may.status],
  ['applications', 'Applications', Applications, (me) => me.may.applications],
  ['application', null, Application],
  ['queries', 'Queries', Queries, (me) => me.may.read],
  ['query', null, Query],
  ['flows', 'Big queries', Flows, (me) => me.may.read],
  ['flow', null, Flow],
  ['sql', 'SQL', Sql],
  ['connections', 'Connections', Connections, (me) => me.may.status],
  ['accounts', 'Accounts', Accounts, (me) => me.has_accounts && me.may.accounts],
];

/** `#/query/name?x=1` is the page `query` of `name`, with `x`. */
function place() {
  const [where, parameters] = location.hash.replace(/^#\/?/, '').split('?');
  const [page, ...names] = where.split('/').map(decodeURIComponent);
  return { page, name: names.join('/'), parameters: new URLSearchParams(parameters) };
}

function usePlace() {
  const [now, set] = useState(place);
  useEffect(() => {
    const moved = () => set(place());
    addEventListener('hashchange', moved);
    return () => removeEventListener('hashchange', moved);
  }, []);
  return now;
}

function Switches() {
  const [theme, set_theme] = useSetting('theme', 'auto');
  const [zone, set_zone] = useSetting('zone', 'local');
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
  }, [theme]);
  return html`<div class="switches">
    <label>Theme <select value=${theme} onChange=${(event) => set_theme(event.target.value)}>
      <option value="auto">as the system</option><option value="light">light</option><option value="dark">dark</option>
    </select></label>
    <label>Times <select value=${zone} onChange=${(event) => set_zone(event.target.value)}>
      <option value="local">local</option><option value="utc">UTC</option>
    </select></label>
  </div>`;
}

function NotHere() {
  return html`<h1>Not here</h1><p>There is no such page, or you may not see it. The list at the side has those that you may see.</p>`;
}

function App() {
  const [me, set_me] = useState();
  const [problem, set_problem] = useState();
  const [has_ended, set_ended] = useState(false);
  const [is_open, set_open] = useState(false);
  const is_away = useHeard('away');
  const is_slow = useHeard('slow');
  const here = usePlace();
  const main = useRef();
  const version = useRef();
  const user = useRef();
  const look = async () => {
    try {
      const found = await get('/api/v1/session');
      // What it says of rights is about all queries.
      if (found.user || !found.has_accounts) found.may.applications = (await get('/api/v1/session?of=application')).may.read;
      version.current ??= found.version;
      set_me(found);
      set_problem();
      set_ended(Boolean(user.current && !found.user));
      user.current = found.user;
    } catch (refused) {
      set_problem(refused);
    }
  };
  useEffect(() => {
    const ended = () => set_ended(true);
    events.addEventListener('ended', ended);
    look();
    return () => events.removeEventListener('ended', ended);
  }, []);
  // A server that came back may be another version, or know the session no more.
  useEffect(() => {
    if (!is_away && me) look();
  }, [is_away]);
  useEffect(() => {
    if (!is_away) return undefined;
    const timer = setInterval(look, 2_000);
    return () => clearInterval(timer);
  }, [is_away]);
  // It may be another version without having been away.
  useEffect(() => {
    if (has_ended || !me) return undefined;
    const timer = setInterval(() => document.hidden || look(), 60_000);
    return () => clearInterval(timer);
  }, [has_ended, !me]);
  // A server that still starts is asked again.
  useEffect(() => {
    if (me || !problem) return undefined;
    const timer = setTimeout(look, 2_000);
    return () => clearTimeout(timer);
  }, [problem]);
  useEffect(() => { set_open(false); main.current?.focus(); }, [here.page, here.name]);

  if (has_ended || (me && me.has_accounts && !me.user)) {
    return html`<${Login} has_ended=${Boolean(me?.user)} done=${look} />`;
  }
  if (!me) return html`<main class="alone">${problem ? html`<${Trouble} problem=${problem} />` : html`<${Waiting} />`}</main>`;

  const may_see = ([, , , may]) => !may || may(me);
  const open = PAGES.filter(may_see);
  const first = open.find(([, name]) => name);
  const [address, title, Page] = open.find(([of]) => of === here.page) || (here.page && ['', 'Not here', NotHere]) || first || ['', 'Not here', NotHere];
  const side = address === 'application' ? 'applications' : address === 'query' ? 'queries' : address === 'flow' ? 'flows' : address;
  document.title = `${here.name || title || ''} · Rivulet`;
  const out = async () => {
    try {
      await call('DELETE', '/api/v1/session');
    } catch (refused) {
      set_problem(refused);
      return;
    }
    sessionStorage.clear();
    user.current = undefined;
    // Who is logged in by a certificate is so again.
    await look();
  };
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>To the content</a>
    <header>
      <button type="button" class="menu" aria-expanded=${is_open} aria-controls="side" onClick=${() => set_open(!is_open)}>Menu</button>
      <a class="brand" href="#/overview"><img src="/console/icon.svg" alt="" width="24" height="24" /> Rivulet</a>
      <span class="quiet">${me.version}${me.name ? ` · ${me.name}` : ''}</span>
      <span class="wide"></span>
      ${me.user ? html`<span>${me.tenant ? `${me.tenant} / ` : ''}${me.user}</span>
        <button type="button" onClick=${out}>Log out</button>` : null}
    </header>
    ${problem && problem.kind !== 'away' ? html`<${Trouble} problem=${problem} />` : null}
    ${is_away ? html`<div class="banner" role="alert">The server does not answer. What is shown may be old; this page goes on by itself.</div>` : null}
    ${is_slow && !is_away ? html`<div class="banner" role="status">The server has not answered for ${SLOW_MS / 1e3} s. What is shown may be old.</div>` : null}
    ${version.current !== me.version ? html`<div class="banner" role="alert">The server is version ${me.version} now, and this page is of ${version.current}.
      <button type="button" onClick=${() => location.reload()}>Load the page again</button></div>` : null}
    <div class="body">
      <nav id="side" class=${is_open ? 'open' : ''} aria-label="Pages">
        <ul>${open.filter(([, name]) => name).map(([of, name]) => html`<li key=${of}>
          <a href=${`#/${of}`} aria-current=${of === side ? 'page' : undefined}>${name}</a></li>`)}</ul>
        <${Switches} />
        <p class="quiet"><a href="/api/docs/">REST API</a> · <a href="/console/licences.txt">Licences</a></p>
      </nav>
      <main id="main" ref=${main} tabindex="-1"><${Page} key=${address + here.name + here.parameters} me=${me} name=${here.name} parameters=${here.parameters} /></main>
    </div>
    <${Questions} />`;
}

render(html`<${App} />`, document.getElementById('app'));
