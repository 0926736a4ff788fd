// A field for SQL, which begins with `text` and tells what it becomes. The editor itself is a module of its own, which
// comes when the first field is shown.
import { html, useEffect, useRef, useState } from './ui.js';

let loading;

export function Editor({ label, text, changed, problem, names, run }) {
  const place = useRef();
  const editor = useRef();
  const [is_plain, set_plain] = useState(false);
  const now = useRef({});
  now.current = { changed, names, run };
  useEffect(() => {
    let is_gone = false;
    loading ??= import('/console/editor.js');
    loading.then(({ open }) => {
      if (!is_gone) editor.current = open(place.current, label, text, now);
    }).catch(() => { loading = undefined; set_plain(true); });
    return () => { is_gone = true; editor.current?.close(); };
  }, []);
  useEffect(() => editor.current?.mark(problem), [problem]);
  return is_plain ? html`<textarea class="mono" rows="10" aria-label=${label} spellcheck="false" value=${text}
    onInput=${(event) => changed(event.target.value)}></textarea>` : html`<div class="editor" ref=${place}></div>`;
}
