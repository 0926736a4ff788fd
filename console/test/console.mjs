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
    await sees('state kept');
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
    await is_accessible('connections');
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
    // The session ends while a page is open.
    await context.clearCookies();
    await sees('The session has ended');
    await press('With a token');
    const token = process.env.CONSOLE_TOKEN;
    await page.getByLabel('Token').fill(token);
    await press('Log in');
    await has('Accounts');
    await press('Log out');
    await page.getByLabel('User', { exact: true }).waitFor();
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
