// Users, their tokens and rights, tenants and their limits, and what was done.
import { call, get, path, query } from './api.js';
import { Act, count, html, Moment, State, Table, Trouble, useAsked, useRef, useState, Waiting } from './ui.js';

const ACTIONS = ['read', 'change', 'subscribe', 'publish', 'administer'];
const KINDS = ['application', 'query', 'table', 'source', 'sink', 'view', 'secret', 'topic', 'server'];

/** A form with a button, which is given what is in its fields; empty ones are left out. */
function Form({ label, what, act, done, children }) {
  const form = useRef();
  return html`<form class="values" aria-label=${label} ref=${form} onSubmit=${(event) => event.preventDefault()}>${children}
    <${Act} submits what=${what} done=${done} act=${async () => {
      const given = Object.fromEntries([...new FormData(form.current)].filter(([, value]) => value !== ''));
      const said = await act(given);
      form.current?.reset();
      return said?.message;
    }} /></form>`;
}

export function Accounts({ me }) {
  const users = useAsked((signal) => get('/api/v1/users', { signal }), []);
  const tenants = useAsked((signal) => (me.may.server ? get('/api/v1/tenants', { signal }) : null), []);
  const [user, choose] = useState();
  const [made, set_made] = useState();
  const [tenant, choose_tenant] = useState();
  const audit = useAsked((signal) => get('/api/v1/audit', { signal }), []);
  const limits = tenant && tenants.value?.limits.find((one) => one.name === tenant)?.limits;
  const tokens = useAsked((signal) => (user ? get('/api/v1/tokens' + query({ user: user.name, tenant: user.tenant }), { signal }) : { tokens: [] }), [user?.name, user?.tenant]);
  const grants = useAsked((signal) => (user ? get('/api/v1/grants' + query({ user: user.name, tenant: user.tenant }), { signal }) : { grants: [] }), [user?.name, user?.tenant]);
  const all = users.value?.users || [];
  // The list of users has counts of both.
  const changed = (list) => () => { list.again(); users.again(); };
  const of_user = user && { user: user.name, tenant: user.tenant };
  return html`<h1>Accounts</h1>
    <${Trouble} problem=${users.problem} />
    <section aria-labelledby="users"><h2 id="users">Users</h2>
    ${users.value ? html`<${Table} label="Users" rows=${all} of=${(one) => `${one.tenant}/${one.name}`} columns=${[
      { head: 'User', cell: (one) => html`<button type="button" class="link" aria-pressed=${user?.name === one.name && user?.tenant === one.tenant} onClick=${() => { choose(one); set_made(); }}>${one.name}</button>` },
      { head: 'Tenant', cell: (one) => one.tenant },
      { head: 'Administrator', cell: (one) => (!one.admin ? '' : one.tenant === 'default' ? 'of the server' : 'of its tenant') },
      { head: 'Password', cell: (one) => (one.password ? 'yes' : '') },
      { head: 'Tokens', number: true, cell: (one) => count(one.tokens) },
      { head: 'Rights', number: true, cell: (one) => count(one.grants) },
    ]} />` : html`<${Waiting} />`}
    <${Form} label="A new user" what="Create a user" done=${users.again} act=${({ admin, ...given }) => call('POST', '/api/v1/users', { ...given, admin: Boolean(admin) })}>
      <label>Name <input name="name" required /></label>
      ${tenants.value ? html`<label>Tenant <select name="tenant">${tenants.value.tenants.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select></label>` : null}
      <label><input type="checkbox" name="admin" value="yes" /> administrator of the tenant; in the default one, of the server</label>
    <//></section>
    ${user ? html`<section aria-labelledby="tokens"><h2 id="tokens">Tokens of ${user.name}</h2>
      <${Trouble} problem=${tokens.problem} />
      <${Table} label="Tokens" rows=${tokens.value?.tokens || []} of=${(one) => one.id} columns=${[
        { head: 'Token', cell: (one) => html`<code>${one.id}</code>` },
        { head: 'Made', cell: (one) => html`<${Moment} ms=${one.created_s * 1e3} />` },
        { head: 'Ends', cell: (one) => (one.expires_s ? html`<${Moment} ms=${one.expires_s * 1e3} />${one.expired ? ', has ended' : ''}` : 'never') },
        { head: 'Last used', cell: (one) => (one.last_used_s ? html`<${Moment} ms=${one.last_used_s * 1e3} />` : 'never') },
        { head: 'Action', cell: (one) => html`<${Act} what="Revoke" danger asks=${`Revoke the token ${one.id} of ${user.name}? Who uses it is cut off at once.`}
          act=${() => call('DELETE', path`/api/v1/tokens/${one.id}`)} done=${changed(tokens)} />` },
      ]} />
      <${Act} key=${`token ${user.tenant}/${user.name}`} what="Make a token" act=${async () => {
        const token = await call('POST', '/api/v1/tokens', { user: user.name, tenant: user.tenant || undefined });
        set_made(token.token);
      }} done=${changed(tokens)} />
      ${made ? html`<p>It is shown this once: <code>${made}</code></p>` : null}
      <${Form} key=${`password ${user.tenant}/${user.name}`} label="A password" what="Give a password" done=${users.again}
        act=${(given) => call('PUT', path`/api/v1/users/${user.name}/password` + query({ tenant: user.tenant }), given)}>
        <label>Password <span class="quiet">12 characters or more</span> <input name="password" type="password" autocomplete="new-password" minlength="12" required /></label>
      <//>
      <${Act} what=${`Drop ${user.name}`} danger asks=${`Drop the user ${user.name}? Tokens and rights are gone then, and connections end.`}
        act=${() => call('DELETE', path`/api/v1/users/${user.name}` + query({ tenant: user.tenant }))} done=${() => { choose(); users.again(); }} /></section>
      <section aria-labelledby="grants"><h2 id="grants">What ${user.name} may do</h2>
      <${Table} label="Rights" rows=${grants.value?.grants || []} empty=${user.admin ? 'everything: an administrator needs no grant' : 'nothing'} columns=${[
        { head: 'May', cell: (one) => one.actions.join(', ') },
        { head: 'What', cell: (one) => one.kind || 'everything' },
        { head: 'Named like', cell: (one) => one.pattern || 'any' },
        { head: 'Action', cell: (one) => html`<${Act} what="Revoke" danger asks=${`Take the right to ${one.actions.join(', ')} ${one.kind || 'everything'} ${one.pattern || ''} from ${user.name}?`}
          act=${() => call('POST', '/api/v1/grants/revoke', one)} done=${changed(grants)} />` },
      ]} />
      <${Form} key=${`right ${user.tenant}/${user.name}`} label="A right" what="Give this right" done=${changed(grants)} act=${({ action, ...given }) => call('POST', '/api/v1/grants', { ...of_user, ...given, actions: [action] })}>
        <label>May <select name="action">${ACTIONS.map((one) => html`<option key=${one}>${one}</option>`)}</select></label>
        <label>What <select name="kind">${KINDS.map((one) => html`<option key=${one}>${one}</option>`)}</select></label>
        <label>Named like <span class="quiet">or any</span> <input name="pattern" placeholder="home_%" /></label>
      <//></section>` : null}
    ${tenants.value ? html`<section aria-labelledby="tenants"><h2 id="tenants">Tenants</h2>
      <${Table} label="Tenants" rows=${tenants.value.limits} of=${(one) => one.name} columns=${[
        { head: 'Tenant', cell: (one) => html`<button type="button" class="link" aria-pressed=${tenant === one.name} onClick=${() => choose_tenant(one.name)}>${one.name}</button>` },
        { head: 'Uses, of at most', cell: (one) => uses(one.limits) },
      ]} />
      <${Form} label="A new tenant" what="Create a tenant" done=${tenants.again} act=${(given) => call('POST', '/api/v1/tenants', given)}>
        <label>Name <input name="name" required /></label>
      <//></section>` : null}
    ${limits ? html`<section aria-labelledby="limits"><h2 id="limits">Limits of ${tenant}</h2>
      <${Form} key=${tenant} label="Limits" what="Set the limits" done=${tenants.again} act=${(given) => {
        const changed = Object.entries(limits).map(([name, { most }]) => [name, most, given[name] === undefined ? undefined : Number(given[name])]).filter(([, most, next]) => most !== next);
        return call('PATCH', path`/api/v1/tenants/${tenant}`, Object.fromEntries(changed.map(([name, , next]) => [name, next ?? null])));
      }}>${Object.entries(limits).map(([name, { used, most }]) => html`<label key=${name}>${name.replaceAll('_', ' ')} <span class="quiet">${used === undefined ? '' : `${count(used)} in use`}</span>
        <input name=${name} type="number" min="0" defaultValue=${most} placeholder="no limit" /></label>`)}<//></section>` : null}
    <section aria-labelledby="audit"><h2 id="audit">What was done</h2>
      <${Trouble} problem=${audit.problem} />
      ${audit.value ? html`<${Table} label="What was done" rows=${audit.value.entries} empty="the newest files of the audit have nothing" columns=${[
        { head: 'When', cell: (one) => html`<${Moment} ms=${Date.parse(one.time)} />` },
        { head: 'Who', cell: (one) => (one.user ? `${one.tenant} / ${one.user}` : '–') },
        { head: 'From', cell: (one) => `${one.door || 'this process'} ${one.address || ''}` },
        { head: 'Did', cell: (one) => `${one.action} ${one.kind || ''} ${one.name || ''}${one.count ? ` (${count(one.count)} of them)` : ''}${one.repeats ? `, ${count(one.repeats)} times more` : ''}` },
        { head: 'Statement', cell: (one) => html`<code>${one.statement || ''}</code>` },
        { head: 'Outcome', help: 'refused: there was no right to it; failed: there was, and it could not be done', cell: (one) => html`<${State} word=${one.failed ? 'failed' : one.allowed ? 'done' : 'refused'} tone=${one.failed ? 'still' : one.allowed ? 'good' : 'bad'} />` },
        { head: 'Why not', cell: (one) => one.why || (one.failed || '').replaceAll('_', ' ') },
      ]} />` : null}
      <button type="button" onClick=${audit.again}>Look again</button></section>`;
}

/** What is limited, and then what is used without a limit. */
function uses(limits) {
  const all = Object.entries(limits).map(([what, of]) => [what.replaceAll('_', ' '), of]);
  const limited = all.filter(([, { most }]) => most !== undefined).map(([what, { used, most }]) => `${what}: ${used === undefined ? '' : `${count(used)} of `}${count(most)}`);
  const used = all.filter(([, { used, most }]) => most === undefined && used).map(([what, { used }]) => `${what}: ${count(used)}`);
  return [limited.join(', '), used.length ? `without a limit: ${used.join(', ')}` : ''].filter(Boolean).join('; ');
}
