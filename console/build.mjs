// Builds console/dist, or another folder that is given, from console/src: one module for all pages, and one for the
// editor, which few pages load.
import { build } from 'esbuild';
import { copyFile, mkdir, readFile, readdir, rm, writeFile } from 'node:fs/promises';

const to = process.argv[2] ? `${process.argv[2]}/` : new URL('./dist/', import.meta.url).pathname;
const from = new URL('./src/', import.meta.url).pathname;
await rm(to, { recursive: true, force: true });
await mkdir(to, { recursive: true });
const { metafile } = await build({
  entryPoints: [`${from}app.js`, `${from}editor.js`, `${from}app.css`],
  outdir: to,
  bundle: true,
  minify: true,
  format: 'esm',
  target: ['es2022'],
  charset: 'utf8',
  legalComments: 'inline',
  external: ['/console/editor.js'],
  metafile: true,
});

for (const file of ['index.html', 'icon.svg']) await copyFile(from + file, to + file);

// The libraries in the bundle, with their licences.
const packages = new Set(Object.keys(metafile.inputs).flatMap((file) => file.match(/node_modules\/((?:@[^/]+\/)?[^/]+)/)?.[1] ?? []));
const texts = [];
for (const name of [...packages].sort()) {
  const folder = new URL(`./node_modules/${name}/`, import.meta.url).pathname;
  const { version, license } = JSON.parse(await readFile(`${folder}package.json`, 'utf8'));
  const file = (await readdir(folder)).find((one) => /^licen[cs]e/i.test(one));
  if (!file) throw new Error(`${name} has no licence`);
  texts.push(`${name} ${version}, ${license}\n\n${(await readFile(folder + file, 'utf8')).trim()}\n`);
}
await writeFile(`${to}licences.txt`, texts.join(`\n${'-'.repeat(80)}\n\n`));
