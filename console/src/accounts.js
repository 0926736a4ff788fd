// Users, their tokens and rights, and tenants.
import { call, get, path, query } from './api.js';
import { Act, count, html, Moment, Table, Trouble, useAsked, useState, Waiting } from './ui.js';

export function Accounts() {
  const users = useAsked((signal) => get('/api/v1/users', { signal }), [], 10_000);
  const tenants = useAsked((signal) => get('/api/v1/tenants', { signal }), [], 10_000);
  const [user, choose] = useState();
  const [made, set_made] = useState();
  const tokens = useAsked((signal) => (user ? get('/api/v1/tokens' + query({ user: user.name, tenant: user.tenant }), { signal }) : { tokens: [] }), [user?.name, user?.tenant], 10_000);
  const grants = useAsked((signal) => (user ? get('/api/v1/grants' + query({ user: user.name, tenant: user.tenant }), { signal }) : { grants: [] }), [user?.name, user?.tenant], 10_000);
  const all = users.value?.users || [];
  return html`<h1>Accounts</h1>
    <${Trouble} problem=${users.problem} />
    <section aria-labelledby="users"><h2 id="users">Users</h2>
    ${users.value ? html`<${Table} label="Users" rows=${all} of=${(one) => `${one.tenant}/${one.name}`} columns=${[
      { head: 'User', cell: (one) => html`<button type="button" class="link" aria-pressed=${user?.name === one.name && user?.tenant === one.tenant} onClick=${() => { choose(one); set_made(); }}>${one.name}</button>` },
      { head: 'Tenant', cell: (one) => one.tenant },
      { head: 'Administrator', cell: (one) => (one.admin ? 'yes' : '') },
      { head: 'Password', cell: (one) => (one.password ? 'yes' : '') },
      { head: 'Tokens', number: true, cell: (one) => count(one.tokens) },
      { head: 'Rights', number: true, cell: (one) => count(one.grants) },
    ]} />` : html`<${Waiting} />`}</section>
    ${user ? html`<section aria-labelledby="tokens"><h2 id="tokens">Tokens of ${user.name}</h2>
      <${Trouble} problem=${tokens.problem} />
      <${Table} label="Tokens" rows=${tokens.value?.tokens || []} of=${(one) => one.id} columns=${[
        { head: 'Token', cell: (one) => html`<code>${one.id}</code>` },
        { head: 'Made', cell: (one) => html`<${Moment} ms=${one.created_s * 1e3} />` },
        { head: 'Ends', cell: (one) => (one.expires_s ? html`<${Moment} ms=${one.expires_s * 1e3} />${one.expired ? ', has ended' : ''}` : 'never') },
        { head: 'Last used', cell: (one) => (one.last_used_s ? html`<${Moment} ms=${one.last_used_s * 1e3} />` : 'never') },
        { head: 'Action', cell: (one) => html`<${Act} what="Revoke" danger asks=${`Revoke the token ${one.id} of ${user.name}? Who uses it is cut off at once.`}
          act=${() => call('DELETE', path`/api/v1/tokens/${one.id}`)} done=${tokens.again} />` },
      ]} />
      <${Act} what="Make a token" act=${async () => {
        const token = await call('POST', '/api/v1/tokens', { user: user.name, tenant: user.tenant || undefined });
        set_made(token.token);
      }} done=${tokens.again} />
      ${made ? html`<p>It is shown this once: <code>${made}</code></p>` : null}</section>
      <section aria-labelledby="grants"><h2 id="grants">What ${user.name} may do</h2>
      <${Table} label="Rights" rows=${grants.value?.grants || []} empty=${user.admin ? 'everything: an administrator needs no grant' : 'nothing'} columns=${[
        { head: 'May', cell: (one) => one.actions.join(', ') },
        { head: 'What', cell: (one) => one.kind || 'everything' },
        { head: 'Named like', cell: (one) => one.pattern || 'any' },
        { head: 'Action', cell: (one) => html`<${Act} what="Revoke" danger asks=${`Take this right from ${user.name}?`}
          act=${() => call('POST', '/api/v1/grants/revoke', one)} done=${grants.again} />` },
      ]} /></section>` : null}
    ${tenants.value ? html`<section aria-labelledby="tenants"><h2 id="tenants">Tenants</h2>
      <${Table} label="Tenants" rows=${tenants.value.tenants} columns=${[
        { head: 'Tenant', cell: (one) => one },
        { head: 'Uses, of at most', cell: (one) => limits_of(tenants.value.limits, one) },
      ]} /></section>` : null}`;
}

function limits_of(all, tenant) {
  const limits = all.find((one) => one.name === tenant)?.limits || {};
  return Object.entries(limits).map(([what, { used, most }]) => `${what}: ${used === undefined ? '' : count(used) + ' of '}${most === undefined ? 'no limit' : count(most)}`).join(', ');
}
