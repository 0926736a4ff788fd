// Who a person is: a password, or a token.
import { call } from './api.js';
import { html, Trouble, useCallback, useState } from './ui.js';

export function Login({ has_ended, done }) {
  const [way, set_way] = useState('password');
  const [problem, set_problem] = useState();
  const [is_busy, set_busy] = useState(false);
  const enter = async (event) => {
    event.preventDefault();
    set_busy(true);
    const given = Object.fromEntries(new FormData(event.target));
    if (!given.tenant) delete given.tenant;
    try {
      await call('POST', '/api/v1/session', given);
      set_problem();
      done();
    } catch (refused) {
      // The server's hint is for programs.
      if (refused.status === 401) refused.hint = way === 'password' ? 'check the user, the tenant and the password' : 'copy the token again as it was shown';
      set_problem(refused);
    }
    set_busy(false);
  };
  // The field that is there now; one that comes later, too.
  const focus = useCallback((field) => field?.focus(), []);
  return html`<main class="alone"><form class="login" onSubmit=${enter}>
    <h1><img src="/console/icon.svg" alt="" width="32" height="32" /> Rivulet</h1>
    ${has_ended ? html`<p role="status">The session has ended. Log in again to go on where you were.</p>` : null}
    ${way === 'password' ? html`
      <label key="user">User <input name="user" autocomplete="username" required ref=${focus} /></label>
      <label>Tenant <span class="quiet">if it is not the default one</span> <input name="tenant" autocomplete="organization" /></label>
      <label>Password <input name="password" type="password" autocomplete="current-password" required /></label>` : html`
      <label key="token">Token <input name="token" type="password" autocomplete="off" required ref=${focus} /></label>`}
    <${Trouble} problem=${problem} />
    <div class="row">
      <button type="submit" class="main" disabled=${is_busy}>Log in</button>
      <button type="button" onClick=${() => { set_way(way === 'password' ? 'token' : 'password'); set_problem(); }}>
        ${way === 'password' ? 'With a token' : 'With a password'}</button>
    </div>
  </form></main>`;
}
