// The console in a real browser, against a server that a test of the program has started. Its address and what it has are
// in the environment: CONSOLE_URL, CONSOLE_PART and, where there are accounts, CONSOLE_USER and CONSOLE_PASSWORD.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { chromium } from 'playwright-core';

const { CONSOLE_URL: url, CONSOLE_PART: part, CONSOLE_USER: user, CONSOLE_PASSWORD: password, CONSOLE_PICTURES: pictures } = process.env;
const axe = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const browser = await chromium.launch({ executablePath: process.env.CONSOLE_BROWSER || '/usr/bin/chromium', args: ['--no-sandbox'] });
const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, colorScheme: 'light' });
context.setDefaultTimeout(30_000);
const page = await context.newPage();
const wrong = [];
page.on('pageerror', (error) => wrong.push(`error of the page: ${error.message}`));
page.on('console', (line) => /Content Security Policy/.test(line.text()) && wrong.push(line.text()));
page.on('dialog', (dialog) => { wrong.push(`a script of the data ran: ${dialog.message()}`); dialog.dismiss(); });

const go = (where) => page.goto(`${url}/#/${where}`);
const sees = (text) => page.getByText(text).first().waitFor();
const has = (name) => page.getByRole('heading', { name, exact: true }).waitFor();
const press = (name) => page.getByRole('button', { name, exact: true }).first().click();

/** No violation of accessibility on the page as it is, in both themes. */
async function is_accessible(name) {
  for (const scheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme: scheme });
    await page.evaluate(axe);
    const { violations } = await page.evaluate(() => axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice'] }));
    const told = violations.map((one) => `${one.id}: ${one.help}: ${one.nodes.map((node) => node.html).slice(0, 3).join(' | ')}`);
    assert.deepEqual(told, [], `${name}, ${scheme}`);
    if (pictures) await page.screenshot({ path: `${pictures}/${name}-${scheme}.png` });
  }
  await page.emulateMedia({ colorScheme: 'light' });
}

/** Replaces what is in the editor. */
async function write(label, text) {
  await page.locator('.editor .cm-content').first().click();
  await page.keyboard.press('Control+A');
  // The editor deletes; if the browser replaced, it would write styles, which are refused.
  await page.keyboard.press('Delete');
  await page.keyboard.insertText(text);
}

const PARTS = {
  // Queries and big queries, with names and payloads that would be code if they were not text.
  async pages() {
    await go('overview');
    await has('Overview');
    await page.locator('.plot canvas').first().waitFor();
    await is_accessible('overview');

    await go('queries');
    await sees('<img src=x onerror=alert(1)>');
    await is_accessible('queries');
    await page.getByLabel('Name begins with').fill('home-7');
    await page.getByRole('link', { name: 'home-7', exact: true }).click();
    await sees('Why it gives what it gives');
    await is_accessible('query');
    await page.getByLabel('above').fill('30');
    await press('Give it these values');
    await sees('taken over; its state goes on');
    await press('Pause');
    await page.locator('h1').getByText('paused').waitFor();
    await press('Resume');
    await page.locator('h1').getByText('running').waitFor();
    await press('Drop');
    await press('Leave it');
    await has('home-7 running');
    await press('Drop');
    await page.getByRole('dialog').getByRole('button', { name: 'Drop' }).click();
    await page.waitForURL(/#\/queries$/);

    await go('applications');
    await page.getByRole('link', { name: 'warm', exact: true }).click();
    await sees('What its queries share');
    await is_accessible('application');
    await go('applications');
    await press('Try and register an application');
    await page.locator('.editor .cm-content').waitFor();
    await press('Try');
    await sees('home/kitchen/warm {"celsius":23.0}');
    await is_accessible('try');
    await write('', 'CREATE APPLICATION x INPUT t (n BIGINT) FROM \'mqtt:t\' FORMAT JSON\nOUTPUT \'mqtt:o\' FORMAT JSON AS SELECT m FROM t');
    await press('Try');
    await sees('line 2, column');
    await page.locator('.editor .cm-lintRange-error').waitFor();

    await go('flows');
    await page.getByRole('link', { name: 'counts', exact: true }).click();
    await page.locator('.graph .node').first().waitFor();
    await sees('busy');
    await is_accessible('flow');
    await page.locator('.graph .node').nth(1).press('Enter');
    await page.locator('.graph .node.chosen').waitFor();

    await go('application/warm');
    await page.getByLabel('Name or none').fill('by-hand');
    await page.getByLabel('home').fill('by-hand');
    await page.getByLabel('above').fill('25.5');
    await page.keyboard.press('Enter');
    await has('by-hand running');

    await go('connections');
    await has('Connections');
    await sees('no client is like that');
  },

  // Messages come whenever this says so.
  async messages() {
    const until = async (text) => {
      for (let turn = 0; turn < 60; turn += 1) {
        console.log('publish');
        const is_seen = await page.getByText(text).first().waitFor({ timeout: 1_000 }).then(() => true, () => false);
        if (is_seen) return;
      }
      assert.fail(`${text} is not seen`);
    };
    await go('connections');
    await page.getByRole('cell', { name: '<img src=x onerror=alert(1)>' }).waitFor();
    await page.getByLabel('Id begins with').fill('nobody');
    await page.keyboard.press('Enter');
    await sees('no client is like that');
    await press('Count messages');
    await until('2 topics');
    await until('not counted');
    await is_accessible('connections');
    await page.getByRole('button', { name: '<img src=x onerror=alert(1)>' }).click();
    await until('<img src=x onerror=alert(1)> <img src=x onerror=alert(1)>');
    await press('Stop counting');
    await page.getByLabel('Topic, or a filter').fill('+');
    await press('Watch');
    await until('characters)');
    await until('are not shown');
    assert.ok((await page.locator('.tail').innerText()).length < 1_000_000, 'a long payload is cut');
  },

  // Only the answers of the server are changed on their way.
  async other() {
    let version;
    await page.route('**/api/v1/session', async (route) => {
      const answer = await route.fetch();
      await route.fulfill({ response: answer, json: { ...await answer.json(), ...(version && { version }) } });
    });
    await go('overview');
    await has('Overview');
    version = '99.0.0';
    // The page asks again who it is when the server was away.
    await page.route('**/api/v1/status', (route) => route.abort());
    await sees('The server does not answer');
    await page.unroute('**/api/v1/status');
    await sees('The server is version 99.0.0 now');
    version = undefined;
    await press('Load the page again');
    await has('Overview');
    await page.getByText('The server is version').waitFor({ state: 'detached' });
    await page.route('**/api/v1/queries*', async (route) => {
      await new Promise((after) => setTimeout(after, 3_000));
      await route.continue();
    });
    await go('queries');
    await sees('asks the server');
    await sees('no query is like that');
    // The answer to what was asked before comes last, and is not shown for what is asked now.
    await page.unroute('**/api/v1/queries*');
    await page.route('**/api/v1/big-queries', async (route) => {
      await new Promise((after) => setTimeout(after, 8_000));
      await route.continue();
    });
    await go('flows');
    await sees('The server has not answered for 5 s');
    await sees('none: CREATE QUERY');
    await page.getByText('The server has not answered').waitFor({ state: 'detached' });
    await go('nonsense');
    await has('Not here');
    await go('queries');
    await page.route('**/api/v1/queries*', async (route) => {
      const like = new URL(route.request().url()).searchParams.get('like');
      if (like === 'a%') await new Promise((after) => setTimeout(after, 3_000));
      const one = { name: `of ${like}`, application: 'x', parameters: {}, state: 'running', output_topic: '' };
      await route.fulfill({ json: { queries: [one] } }).catch(() => {});
    });
    const asked = (like) => page.waitForRequest((request) => request.url().includes(`like=${like}`));
    await Promise.all([asked('a'), page.getByLabel('Name begins with').fill('a')]);
    await Promise.all([asked('b'), page.getByLabel('Name begins with').fill('b')]);
    await page.getByRole('link', { name: 'of b%' }).waitFor();
    await page.waitForTimeout(4_000);
    assert.equal(await page.getByRole('link', { name: 'of b%' }).count(), 1);
    assert.equal(await page.getByRole('link', { name: 'of a%' }).count(), 0);
  },

  async rights() {
    await page.goto(url);
    await press('With a token');
    await page.getByLabel('Token').fill(process.env.CONSOLE_TOKEN);
    await press('Log in');
    await has('Applications');
    const offered = (name) => page.getByRole('button', { name, exact: true }).count();
    assert.equal(await page.getByRole('link', { name: 'Accounts' }).count() + await page.getByRole('link', { name: 'Overview' }).count(), 0);
    await go('query/own');
    await page.getByRole('button', { name: 'Pause', exact: true }).waitFor();
    assert.ok(await offered('Drop') && await offered('Watch'));
    // Only what was answered about each of them says what is offered.
    const look = (where) => Promise.all([page.waitForResponse((answer) => answer.url().includes('/session?of=')), go(where)]);
    await look('query/other');
    await has('other running');
    await sees('above = 20.5');
    assert.equal(await offered('Pause') + await offered('Drop') + await offered('Watch') + await offered('Give it these values'), 0);
    await look('application/warm');
    await sees('What its queries share');
    assert.equal(await offered('Drop') + await offered('Edit and try') + await offered('Start it'), 0);
    await look('applications');
    await page.getByRole('link', { name: 'warm', exact: true }).waitFor();
    assert.equal(await offered('Try and register an application'), 0);
  },

  async sql() {
    await go('sql');
    await page.locator('.editor .cm-content').waitFor();
    await write('SQL', 'SHOW APPLICATIONS;\nSHOW NOTHING;');
    await press('Run');
    await page.locator('.trouble').getByText('line 2').waitFor();
    await page.locator('.editor .cm-lintRange-error').waitFor();
    await is_accessible('sql');
    // Faster than any page takes it, and long.
    await write('SQL', "SELECT * FROM fast");
    await press('Show its rows');
    await sees('the last 500 are shown');
    assert.ok((await page.locator('.tail tbody tr').count()) <= 500);
    await press('Stop');
    await write('SQL', "SELECT 9007199254740993 AS n, '<b onmouseover=alert(2)>' AS t FROM fast LIMIT 1");
    await press('Show its rows');
    await sees('9007199254740993');
  },

  async accounts() {
    await page.goto(url);
    await page.getByLabel('User').fill(user);
    await page.getByLabel('Password', { exact: true }).fill('not this one at all');
    await press('Log in');
    await page.locator('.trouble').waitFor();
    await is_accessible('login');
    await page.getByLabel('Password', { exact: true }).fill(password);
    await press('Log in');
    await has('Overview');
    assert.equal(await page.evaluate(() => document.cookie), '', 'no script reads the session');
    const [cookie] = await context.cookies();
    assert.ok(cookie.httpOnly && cookie.sameSite === 'Strict', JSON.stringify(cookie));
    await go('accounts');
    await page.getByRole('button', { name: user, exact: true }).click();
    await is_accessible('accounts');
    await press('Make a token');
    await sees('It is shown this once');
    const form = (name) => page.getByRole('form', { name });
    await form('A new user').getByLabel('Name').fill('ann');
    await press('Create a user');
    await sees('user ann created');
    await page.getByRole('button', { name: 'ann', exact: true }).click();
    await form('A right').getByLabel('What').selectOption('query');
    await press('Give this right');
    await page.getByRole('cell', { name: 'query', exact: true }).waitFor();
    await form('A password').getByLabel('Password').fill('a password of ann');
    await press('Give a password');
    await sees('ann has its password');
    await page.getByRole('button', { name: 'default', exact: true }).click();
    await form('Limits').getByLabel(/^queries/).fill('7');
    await press('Set the limits');
    await page.getByText('queries: 0 of 7').first().waitFor();
    await is_accessible('accounts-all');
    await press('Look again');
    await page.getByRole('cell', { name: 'ALTER TENANT' }).first().waitFor();
    // The session ends while a page is open.
    await go('overview');
    await has('Overview');
    await context.clearCookies();
    await sees('The session has ended');
    await press('With a token');
    const token = process.env.CONSOLE_TOKEN;
    await page.getByLabel('Token').fill(token);
    await press('Log in');
    await has('Overview');
    await press('Log out');
    await page.getByLabel('User', { exact: true }).waitFor();
  },

  // A list of a million queries, `query-0` to `query-999999` with the label `all`.
  async million() {
    await go('queries');
    await page.getByRole('link', { name: 'query-0', exact: true }).waitFor();
    await press('Further');
    await sees('page 2');
    await page.getByLabel('Name begins with').fill('query-99999');
    await page.getByRole('link', { name: 'query-999999', exact: true }).waitFor();
    assert.equal(await page.locator('tbody tr').count(), 11);
    await page.getByLabel('Label').fill('one');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => document.querySelectorAll('tbody tr').length === 1);
    await page.getByRole('link', { name: 'query-999990', exact: true }).waitFor();
    await go('overview');
    await page.locator('.figure').getByText(/^1[^0-9]?000[^0-9]?000$/).waitFor();
  },

  // Pictures for the book, of `rivulet demo` with a big query named `busiest`.
  async pictures() {
    await page.setViewportSize({ width: 1100, height: 760 });
    const [[query]] = await (await fetch(`${url}/api/v1/queries?limit=1`)).json().then((found) => [[found.queries[0].name]]);
    const places = {
      overview: ['overview', '.plot canvas'], applications: ['applications', 'tbody tr'], queries: ['queries', 'tbody tr'],
      query: [`query/${encodeURIComponent(query)}`, 'ol li'], flow: ['flow/busiest', '.graph .node'], sql: ['sql', '.cm-content'],
      connections: ['connections', 'tbody tr'], try: ['applications?new', '.cm-content'],
    };
    // Plots need a minute.
    await page.waitForTimeout(60_000);
    for (const scheme of ['light', 'dark']) {
      await page.emulateMedia({ colorScheme: scheme });
      for (const [name, [where, there]] of Object.entries(places)) {
        await go(where);
        await page.locator(there).first().waitFor();
        if (name === 'connections') await press('Count messages');
        if (name === 'try') await press('Try');
        if (name === 'sql') {
          await write('SQL', "SELECT topic, payload FROM \"mqtt:#\"");
          await press('Show its rows');
        }
        await page.waitForTimeout(8_000);
        await page.evaluate(() => document.activeElement?.blur());
        await page.screenshot({ path: `${pictures}/${name}-${scheme}.png` });
      }
    }
  },

  // The server is stopped when this says so, and starts again.
  async away() {
    await go('overview');
    await has('Overview');
    console.log('stop');
    await sees('The server does not answer');
    console.log('start');
    await page.getByText('The server does not answer').waitFor({ state: 'detached' });
    await has('Overview');
  },
};

try {
  await PARTS[part]();
  assert.deepEqual(wrong, []);
} catch (error) {
  console.error(error);
  console.error(await page.locator('body').innerText().catch(() => ''));
  if (pictures) await page.screenshot({ path: `${pictures}/failed-${part}.png` });
  process.exitCode = 1;
} finally {
  await browser.close();
}
